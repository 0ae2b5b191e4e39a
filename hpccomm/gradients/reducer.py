"""Reduces the buckets of a step, each by one call or by a compressor, in the same order on all ranks.

`GradientSync` has a `Reducer`. A `Worker` is a thread that does jobs one after the other, so that gradients are reduced
while others are computed. The hook of `hpccomm.torch` has one, too.
"""

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any

from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.buckets import BucketReduction, Buckets
from hpccomm.runtime.service import ExitStep, after_fork, at_exit, leaving
from hpccomm.runtime.waiting import Gate, wait

Job = Callable[[], None]

LEAVE_SECONDS = 2.0
"""When the program ends, a reduction that is under way gets this time. Its peers may never come."""

_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()


class Worker:
    """One thread that does one job after the other. It starts with the first job, and ends when this object is deleted.

    Parameters
    ----------
    give_up : callable
        Ends the job that is under way, which may be waiting for other ranks. It is called if the program ends during a
        job.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        _workers.add(self)

    def submit(self, job: Job) -> bool:
        """Give a job to the thread, and return whether it can do it. The job must not raise. Does not block."""
        if leaving():
            return False
        if self._thread is None:
            # The thread is a daemon: the interpreter waits for all others before it runs exit functions.
            thread = threading.Thread(
                target=_work, args=(self._jobs,), name="hpccomm gradients", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # a process may have too little address space
                return False
            self._thread = thread
            weakref.finalize(self, self._jobs.put, None).atexit = False
        self._jobs.put(job)
        return True

    def leave(self, until: float) -> None:
        """End the thread. Blocks until its job is done.

        At ``time.monotonic() == until`` it gives the job up, and waits at most `LEAVE_SECONDS` more.
        """
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


SMALL_BYTES = 128 * 1024
"""If a step's last bucket has at most this number of bytes, the caller's thread reduces it in `Reducer.finish`. To hand
it to the worker takes longer."""


class Reducer:
    """Reduces the buckets of a step one after the other, in the same order on all ranks; or all together.

    With each bucket, each rank also sends which other buckets are ready on it. So all ranks choose the same next bucket
    without another message. It is the most urgent bucket that is ready on all ranks. If there is none, it is the first
    one, and ranks may have to wait for it. Jayarajan et al. 2019, "Priority-based Parameter Propagation for Distributed
    DNN Training", MLSys, order communication in the same way. Making a reducer is collective and blocks, since it plans
    calls.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    buckets : Buckets
        The buckets that are reduced.
    worker : Worker or None
        Reduces buckets in host memory while the caller's thread computes. With None, `finish` and `wait_for` do.

    Attributes
    ----------
    closing : bool
        Whether no more gradients can become ready in this step. Then every bucket may start.
    num_joint_calls : int
        Number of calls that `reduce_all` makes, one for all buckets of a kind. It is 0 if `reduce_all` makes a call for
        each bucket.
    """

    def __init__(self, group: RankGroup, buckets: Buckets, worker: Worker | None) -> None:
        settings, self._each = buckets.settings, buckets.each
        self._plans: list[Callable[[], Any]] = []
        for each in self._each:
            each.plan(group, deterministic=settings.deterministic)
        if settings.compressor is None and settings.bucketing:
            ops = {each.bucket.kind: each.op for each in self._each}
            for kind, memory in buckets.regions.items():
                how = {"deterministic": settings.deterministic}
                self._plans.append(group.plan("all_reduce", memory, ops[kind], **how))
        self.num_joint_calls = len(self._plans)
        self._bucket_of = {name: each for each in self._each for name in each.views}
        self._buckets, self._urgent, self._worker = buckets, buckets.urgent, worker
        self._deferred = any(each.deferred for each in self._each)
        self._turn = threading.Lock()  # held by the thread that reduces
        self._error: BaseException | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a step."""
        with self._turn:  # the worker may still look for something to do
            for each in self._each:
                each.left, each.span = each.gradients, None
            self._waiting = list(self._each)
            self._ready: set[BucketReduction] = set()  # on all ranks
            self.closing = False

    @property
    def started(self) -> bool:
        """Whether a reduction of the step has started."""
        return len(self._waiting) < len(self._each)

    def ready(self, name: str) -> None:
        """Take note that a gradient is ready, and start the reductions that can start now. Does not block."""
        bucket = self._bucket_of[name]
        bucket.left -= 1
        if bucket.left:
            return
        if self._deferred:
            self._go_on()
        # The list is read once, by a comparison: the worker removes buckets from it.
        elif self._worker and (bucket.nbytes > SMALL_BYTES or self._waiting != [bucket]):
            self._worker.submit(self._work)

    def finish(self) -> None:
        """Reduce the remaining buckets, and wait for all. Blocks."""
        self.closing = True
        self._go_on()
        for each in self._each:
            self._finish(each)

    def wait_for(self, name: str) -> None:
        """Let every bucket start, and wait until the bucket of this gradient is reduced. Blocks."""
        self.closing = True
        bucket, worker = self._bucket_of[name], self._worker
        if not self._deferred and worker is not None and worker.submit(self._work):
            # Each call of the worker has its own deadline.
            wait(
                lambda: bool(self._error or bucket.span),
                timeout=math.inf,
                gate=Gate(shares_process=True),
                expired=lambda _: None,
            )
        if self._error is not None or bucket.span is None:
            self._go_on()
        self._finish(bucket)

    def reduce_all(self) -> None:
        """Reduce all buckets in the caller's thread, together if possible. Collective; blocks."""
        if not self._plans:
            self.finish()
            return
        others = [False] * len(self._urgent)
        for each in self._each:
            self._buckets.prepare(each, others)
        for call in self._plans:
            call()
        for each in self._each:
            self._buckets.take(each)

    def _work(self) -> None:
        with suppress(BaseException):  # the caller's thread raises it
            self._go_on()

    def _go_on(self) -> None:
        """Reduce buckets as long as one may start."""
        with self._turn:
            try:
                while self._waiting and self._error is None:
                    ready, waiting, urgent = self._ready, self._waiting, self._urgent
                    bucket = next((x for x in urgent if x in ready and x in waiting), waiting[0])
                    if bucket.left and not self.closing:
                        return
                    self._reduce(bucket)
            except BaseException as error:
                self._error = error
                raise
        if self._error is not None:
            raise self._error

    def _reduce(self, bucket: BucketReduction) -> None:
        begun, buckets = perf_counter(), self._buckets
        self._waiting.remove(bucket)
        closing = self.closing
        buckets.prepare(bucket, [not closing and bool(other.left) for other in self._urgent])
        bucket.start()
        if not bucket.deferred:
            self._take(bucket)
        bucket.span = begun, perf_counter()

    def _finish(self, bucket: BucketReduction) -> None:
        """Wait for a deferred bucket and take its result, unless that was done before. Blocks."""
        if bucket.work is not None:
            self._take(bucket)

    def _take(self, bucket: BucketReduction) -> None:
        unready = self._buckets.take(bucket)
        self._ready = {b for b, is_late in zip(self._urgent, unready, strict=True) if not is_late}
