"""The watchdog: stands beside calls that block in a library, where nothing can be polled.

A communicator that enters such a call notes so at its `Station`; a thread looks at the stations
from time to time. When a call has outlived its deadline, the thread reports what hangs, since when
and where in the program, and ends the job: nothing else can release a blocked call.
"""

import contextlib
import faulthandler
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpccomm.distress import STDERR, tell

LOOK_SECONDS = 0.25


@dataclass(slots=True, eq=False, weakref_slot=True)
class Station:
    """Where one communicator notes the blocking call that it is in.

    Attributes
    ----------
    describe : callable
        Describes the call to a reader: operation, communicator, rank, bytes.
    end_job : callable
        Ends the job, told why.
    armed : tuple of float, or None
        When the blocking call under way began (``time.perf_counter``) and the seconds that it may
        take; one object, so that the watchdog never pairs one call's beginning with another's.
    """

    describe: Callable[[], str]
    end_job: Callable[[str], None]
    armed: tuple[float, float] | None = None


class Watchdog:
    """Looks at the stations of one process."""

    def __init__(self) -> None:
        self._stations: weakref.WeakSet[Station] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, station: Station) -> None:
        """Look at `station` from now on, as long as it lives."""
        with self._lock:
            self._stations.add(station)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hpccomm-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self._look(time.perf_counter())

    def _look(self, now: float) -> None:
        # In a function of its own, whose end lets go of the stations.
        with self._lock:
            stations = list(self._stations)
        for station in stations:
            armed = station.armed
            if armed is not None and now - armed[0] > armed[1]:
                station.armed = None  # told once
                self._end(station, now - armed[0], armed[1])

    def _end(self, station: Station, elapsed: float, timeout: float) -> None:
        tell(
            f"hpccomm: {station.describe()} has been blocked for {elapsed:.1f} s in the library's "
            f"own call; its deadline is {timeout:g} s. A rank did not take part: look at the other "
            "ranks' reports. The call cannot be released, so the job ends now."
        )
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(file=STDERR)
        station.end_job("a blocked call outlived its deadline")


_watchdog = Watchdog()


@contextmanager
def beside(station: Station, timeout: float) -> Iterator[None]:
    """Have the block watched as one blocking call that may take `timeout` seconds."""
    station.armed = (time.perf_counter(), timeout)
    try:
        yield
    finally:
        station.armed = None


def watch(station: Station) -> None:
    """Have the process's watchdog look at `station`."""
    _watchdog.add(station)


def _after_fork() -> None:
    global _watchdog  # the child has no such thread; it may watch communicators of its own
    _watchdog = Watchdog()


os.register_at_fork(after_in_child=_after_fork)
