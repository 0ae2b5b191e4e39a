"""The watchdog: a thread that checks, ten times a second, everything that no thread polls.

It checks the longest wait of each communicator (`CallEngine.look`), and the calls on a device's
streams (`PendingCalls`). A thread of its own asks the devices, since that may block for ever; the
watchdog checks that thread too.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from hpccomm.runtime.lifetime import after_fork, start_thread

logger = logging.getLogger("hpccomm")

LOOK_SECONDS = 0.1


class Watched(Protocol):
    """Something that the watchdog looks after as long as it lives."""

    def look(self, now: float) -> None:
        """Look whether something has outlived its deadline. ``now`` is ``time.perf_counter()``."""


class WatchedOnDevice(Watched, Protocol):
    """Something whose `look` asks a device, and may not come back."""

    def beat(self, now: float) -> None:
        """Look after it without asking the device."""


T = TypeVar("T")


class Watchdog:
    """Checks all watched objects of one process.

    Parameters
    ----------
    name : str
        Of its thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._watched: weakref.WeakKeyDictionary[object, Callable[..., None]]
        self._watched = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._running = False

    def add(self, watched: T, look: Callable[[T, float], None]) -> None:
        """Call ``look(watched, now)`` from now on, as long as `watched` lives."""
        with self._lock:
            self._watched[watched] = look
            if not self._running:
                self._running = start_thread(self._name, self._run)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        # In a function of its own, whose end drops the watched objects.
        with self._lock:
            watched = list(self._watched.items())
        for each, look in watched:
            try:
                look(each, now)
            except Exception:  # the others must still be looked after
                logger.exception("the watchdog failed")


def _pair() -> tuple[Watchdog, Watchdog]:
    return Watchdog("hpccomm-watch"), Watchdog("hpccomm-devices")


_watchdog, _of_devices = _pair()


def watch(watched: Watched) -> None:
    """Have the process's watchdog look after something as long as it lives."""
    _watchdog.add(watched, type(watched).look)


def watch_device(watched: WatchedOnDevice) -> None:
    """Watch calls on a device, from a thread for devices and by the watchdog."""
    _of_devices.add(watched, type(watched).look)
    _watchdog.add(watched, type(watched).beat)


@after_fork
def _after_fork() -> None:
    global _watchdog, _of_devices  # the child has no such threads; it may watch communicators of its own
    _watchdog, _of_devices = _pair()
