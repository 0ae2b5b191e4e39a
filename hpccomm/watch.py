"""The watchdog: stands beside calls that block in a library, where nothing can be polled.

A communicator that enters such a call notes so at its `Station`; a thread looks at the stations
from time to time. When a call has outlived its deadline, the thread reports what hangs, since when
and where in the program, and ends the job: nothing else can release a blocked call.
"""

import faulthandler
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    since : float
        When the call began (``time.perf_counter``); 0 when there is none.
    timeout : float
        Seconds that it may take.
    """

    describe: Callable[[], str]
    end_job: Callable[[str], None]
    timeout: float = math.inf
    since: float = 0.0
    fired: bool = field(default=False)


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
            now = time.perf_counter()
            with self._lock:
                stations = list(self._stations)
            for station in stations:
                since = station.since
                if since and now - since > station.timeout and not station.fired:
                    station.fired = True
                    self._end(station, now - since)

    def _end(self, station: Station, elapsed: float) -> None:
        reason = (
            f"{station.describe()} has been blocked for {elapsed:.1f} s in the library's own call; "
            f"its deadline is {station.timeout:g} s. A rank did not take part: look at the other "
            "ranks' reports. The call cannot be released, so the job ends now."
        )
        sys.stderr.write(f"hpccomm: {reason}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(file=2)  # whatever sys.stderr is
        station.end_job("a blocked call outlived its deadline")


_watchdog = Watchdog()


@contextmanager
def beside(station: Station) -> Iterator[None]:
    """Have the block watched as one blocking call."""
    station.since = time.perf_counter()
    try:
        yield
    finally:
        station.since = 0.0


def watch(station: Station) -> None:
    """Have the process's watchdog look at `station`."""
    _watchdog.add(station)


def _after_fork() -> None:
    global _watchdog  # the child has no such thread; it may watch communicators of its own
    _watchdog = Watchdog()


os.register_at_fork(after_in_child=_after_fork)
