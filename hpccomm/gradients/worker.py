"""A thread that does jobs one after the other, so that gradients are reduced while others are computed.

`reducer` reduces buckets in one, as do the hooks of `hpccomm.torch`.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic

from hpccomm.runtime.lifetime import ExitStep, after_fork, at_exit, leaving

Job = Callable[[], None]

LEAVE_SECONDS = 2.0
"""How long a reduction that is under way may take when the program ends; peers may never come."""

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class Worker:
    """One thread that does one job after the other. It starts with the first, and ends with this object.

    Parameters
    ----------
    give_up : callable
        Ends a job that is under way, which may wait for other ranks. Called if the program ends
        during it.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        _workers.add(self)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that does jobs."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Job) -> bool:
        """Have a job done, which must not raise. Does not block. Return False if the program has ended."""
        if leaving():
            return False
        if self._thread is None:
            # A daemon: the interpreter waits for all other threads before it runs exit functions.
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name="hpccomm gradients", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None).atexit = False
        self._jobs.put(job)
        return True

    def leave(self, until: float) -> None:
        """End the thread, at ``time.monotonic() == until`` at the latest. Blocks."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(max(0.0, until - monotonic()))
            if self._thread.is_alive():
                self._give_up()
                self._thread.join(LEAVE_SECONDS)


def _work(jobs: "SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and its references, while the thread waits for the next


def _leave() -> None:
    until = monotonic() + LEAVE_SECONDS
    for each in list(_workers):
        each.leave(until)


at_exit(ExitStep.CALLERS, _leave)
after_fork(_workers.clear)
