"""The watchdog: a thread that looks, from time to time, after what nobody polls.

That is the call that a communicator waits for longest (`CallEngine.look`), and what is under way on a
device's streams (`PendingCalls`).
"""

import logging
import threading
import time
import weakref
from typing import Protocol

from hpccomm.runtime.lifetime import after_fork, start_thread

logger = logging.getLogger("hpccomm")

LOOK_SECONDS = 0.1


class Watched(Protocol):
    """Something that the watchdog looks after as long as it lives."""

    def look(self, now: float) -> None:
        """Look whether something has outlived its deadline. ``now`` is ``time.perf_counter()``."""


class Watchdog:
    """Looks after what is watched in one process."""

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._running = False

    def add(self, watched: Watched) -> None:
        """Look after `watched` from now on, as long as it lives."""
        with self._lock:
            self._watched.add(watched)
            if not self._running:
                self._running = start_thread("hpccomm-watch", self._run)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        # In a function of its own, whose end lets go of what is watched.
        with self._lock:
            watched = list(self._watched)
        for each in watched:
            try:
                each.look(now)
            except Exception:  # the others must still be looked after
                logger.exception("the watchdog failed")


_watchdog = Watchdog()


def watch(watched: Watched) -> None:
    """Have the process's watchdog look after something as long as it lives."""
    _watchdog.add(watched)


@after_fork
def _after_fork() -> None:
    global _watchdog  # the child has no such thread; it may watch communicators of its own
    _watchdog = Watchdog()
