"""A thread that does a training's reductions while the caller's thread computes gradients."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Worker:
    """One thread that does one job after the other. It starts with the first, and ends with this object."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = False

    def submit(self, job: Job) -> None:
        """Have a job done, which must not raise. Does not block."""
        if not self._started:
            self._started = True
            # A daemon: a program may end with a step under way.
            threading.Thread(
                target=_work, args=(self._jobs,), name="hpccomm gradients", daemon=True
            ).start()
            weakref.finalize(self, self._jobs.put, None)
        self._jobs.put(job)


def _work(jobs: "SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it what it refers to, while the thread waits for the next
