"""The watchdog: a thread that looks, from time to time, after what nobody polls.

A communicator that enters a call that blocks in a library notes so at its `Station`. When such a call
has outlived its deadline, the watchdog reports what hangs, since when and where in the program, and
ends the job: nothing else can release a blocked call. Calls on a device's streams (`PendingCalls`) are
looked after in the same way; those it can release.
"""

import contextlib
import faulthandler
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from hpccomm.runtime.lifetime import after_fork, start_thread
from hpccomm.runtime.stderr import STDERR, write_stderr

logger = logging.getLogger("hpccomm")

LOOK_SECONDS = 0.1


class Watched(Protocol):
    """Something that the watchdog looks after as long as it lives."""

    def look(self, now: float) -> None:
        """Look whether something has outlived its deadline. ``now`` is ``time.perf_counter()``."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Station:
    """Where one communicator notes the blocking call that it is in.

    Attributes
    ----------
    describe : callable
        Describes the call to a reader: operation, communicator, rank, bytes.
    end_job : callable
        Ends the job, for the given reason.
    armed : tuple of float, or None
        When the blocking call under way began (``time.perf_counter``) and the seconds that it may
        take; one object, so that the watchdog never pairs one call's beginning with another's.
    """

    describe: Callable[[], str]
    end_job: Callable[[str], None]
    armed: tuple[float, float] | None = None

    def look(self, now: float) -> None:
        """End the job if the call under way has outlived its deadline."""
        armed = self.armed
        if armed is not None and now - armed[0] > armed[1]:
            self.armed = None  # reported once
            self._end(now - armed[0], armed[1])

    def _end(self, elapsed: float, timeout: float) -> None:
        write_stderr(
            f"hpccomm: {self.describe()} has been blocked for {elapsed:.1f} s in the library's "
            f"own call; its deadline is {timeout:g} s. A rank did not take part: look at the other "
            "ranks' reports. The call cannot be released, so the job ends now."
        )
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(file=STDERR)
        self.end_job("a blocked call outlived its deadline")


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


@contextmanager
def beside(station: Station, timeout: float) -> Iterator[None]:
    """Have the block watched as one blocking call that may take `timeout` seconds."""
    station.armed = (time.perf_counter(), timeout)
    try:
        yield
    finally:
        station.armed = None


def watch(watched: Watched) -> None:
    """Have the process's watchdog look after a station, or something like it."""
    _watchdog.add(watched)


@after_fork
def _after_fork() -> None:
    global _watchdog  # the child has no such thread; it may watch communicators of its own
    _watchdog = Watchdog()
