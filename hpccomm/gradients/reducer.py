"""Reduces the buckets of a step: each by one call or by a compressor, in an order that ranks share.

`Worker` is a thread that does jobs one after the other, so that gradients are reduced while others are computed. The hook
of `hpccomm.torch` has one, too.
"""

import math
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic, perf_counter
from typing import Any

import numpy as np

from hpccomm.dtypes import BFLOAT16, FLOAT32
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.buckets import FLAGS, Buckets
from hpccomm.gradients.compression import Channel, Exchange
from hpccomm.gradients.layout import FlatMemory
from hpccomm.gradients.parameters import BucketKind
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.service import ExitStep, after_fork, at_exit, leaving
from hpccomm.runtime.waiting import Gate, wait

Span = tuple[float, float]
"""When something began and ended, as ``time.perf_counter`` counts."""

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

    def submit(self, job: Job) -> bool:
        """Have a job done, which must not raise. Does not block. Return False if no thread can do it."""
        if leaving():
            return False
        if self._thread is None:
            # A daemon: the interpreter waits for all other threads before it runs exit functions.
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


SMALL_BYTES = 128 * 1024
"""A step's last bucket of at most this size is left to `wait`: handing it over takes longer than reducing it."""


def next_bucket(waiting: Sequence[int], ready: Collection[int], urgent: Sequence[int]) -> int:
    """Return the bucket that is reduced next.

    Parameters
    ----------
    waiting : sequence of int
        Buckets that have not started, in order. At least one.
    ready : collection of int
        Buckets that are known to be ready on all ranks.
    urgent : sequence of int
        Buckets, the one that the next forward pass needs first at the front.

    Returns
    -------
    int
        The most urgent one that is ready on all ranks; else the first, for which ranks may have to wait. Communication
        is ordered by need in the same way in Jayarajan et al. 2019, "Priority-based Parameter Propagation for
        Distributed DNN Training", MLSys.
    """
    return next((each for each in urgent if each in ready and each in waiting), waiting[0])


def operation(
    group: RankGroup, kind: BucketKind, settings: ReductionSettings
) -> tuple[ReduceOp, int]:
    """Return the operation that reduces gradients of a kind, and what its result has to be divided by.

    NCCL's averages of floats multiply each contribution first, which its algorithm over an NVSwitch, NVLS,
    cannot do (NCCL 2.30, include/device.h: ncclNvlsSupported). So a device sums them up. A sum of float16 or float8
    may overflow.
    """
    if settings.op != "average":
        return ReduceOp.SUM, 1
    summed = kind.on_device and kind.dtype in (FLOAT32, np.dtype(np.float64), BFLOAT16)
    if settings.compressor is not None or (summed and not settings.deterministic):
        return ReduceOp.SUM, group.size
    return ReduceOp.AVG, 1


class BucketReduction:
    """The reduction of one bucket, and how far it is in the present step. Making one is collective.

    Behind the gradients lie flags, as elements of the bucket's dtype: without a compressor, one planned all-reduce
    takes both.

    Attributes
    ----------
    flat : FlatMemory
        The bucket.
    divisor : int
        What the result has to be divided by.
    deferred : bool
        Whether `start` returns before the reduction is done, so that `finish` must wait for it.
    gradients, left : int
        How many there are, and how many are not ready.
    span : (float, float) or None
        When it began and ended, as ``time.perf_counter`` counts.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    seconds, hidden_seconds : float
        As in `BucketStatistics`.
    """

    def __init__(
        self, group: RankGroup, flat: FlatMemory, settings: ReductionSettings, flags: int
    ) -> None:
        self.flat, self.nbytes = flat, flat.bucket.nbytes
        self.op, self.divisor = operation(group, flat.bucket.kind, settings)
        self.gradients = self.left = len(flat.views)
        self.span: Span | None = None
        self.wire_nbytes = 0
        self.seconds = self.hidden_seconds = 0.0
        self._flags: Any = flat.memory[flat.bucket.length :][:flags]
        # An average of narrow floats over many ranks must not become 0.
        self._mark = float(min(group.size, 256))
        # A device works by itself. On the host, a thread makes the call that blocks, which needs no interpreter while
        # it is under way.
        self.deferred = flat.bucket.kind.on_device
        self._work: Any = None
        if settings.compressor is None:
            how = {"deterministic": settings.deterministic, "async_op": self.deferred}
            self._call = group.plan("all_reduce", flat.memory, self.op, **how)

    @property
    def memory_bytes(self) -> int:
        """The state of a compressor, in bytes."""
        return 0

    def set_flags(self, flags: Sequence[bool]) -> None:
        """Write this rank's flags behind the gradients, which a planned call is going to reduce."""
        marks = [self._mark if flag else 0.0 for flag in flags]
        if self.deferred:
            self._flags.set(np.array(marks, self._flags.dtype))  # one copy
        else:
            self._flags[:] = marks
        self.wire_nbytes += self.flat.memory.nbytes

    def start(self, flags: Sequence[bool]) -> None:
        """Reduce gradients and flags. Collective; blocks, if it is not deferred."""
        self.set_flags(flags)
        self._work = self._call()

    def finish(self) -> None:
        """Wait for what `start` has begun. Blocks, if it is deferred."""
        if self.deferred:
            self._work.wait()
        self._work = None

    def flags(self) -> list[bool]:
        """Return which flags any rank has set, once reduced."""
        return list((self._flags != 0).tolist())


class CompressedReduction(BucketReduction):
    """A compressor's channel among `ranks`; on two levels, between sums and copies in full precision on each `node`.

    `ranks` is None where another rank of the node exchanges what is compressed.
    """

    def __init__(
        self,
        group: RankGroup,
        flat: FlatMemory,
        settings: ReductionSettings,
        flags: int,
        channel: Channel,
        ranks: Exchange | None,
        node: RankGroup | None,
    ) -> None:
        super().__init__(group, flat, settings, flags)
        self._channel, self._ranks = channel, ranks
        self._node = None if node is None or node.size == 1 else node

    @property
    def memory_bytes(self) -> int:
        """The state of the channel, in bytes."""
        return 0 if self._ranks is None else self._channel.memory_bytes

    def start(self, flags: Sequence[bool]) -> None:
        """Sum gradients up, and flags. Collective; blocks."""
        node, gradients, marks = self._node, self.flat.elements, np.array(flags, np.uint8)
        if node is not None:
            node.reduce(gradients)
            node.reduce(marks, op=ReduceOp.MAX)
        if self._ranks is not None:
            before = self._ranks.wire_nbytes
            self._channel.reduce(gradients, self._ranks)
            self._ranks.max(marks)
            self.wire_nbytes += self._ranks.wire_nbytes - before
        if node is not None:
            node.broadcast_each([gradients, marks], 0)
            self.wire_nbytes += gradients.nbytes
        self._flags[:] = marks


class Reducer:
    """Reduces the buckets of a step one after the other, in an order that all ranks share; or all together.

    With each bucket, the ranks exchange which others are ready. From this they all learn which bucket comes
    next, without another message. Making one is collective and blocks: its calls are planned.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    buckets : Buckets
        The buckets that are reduced.
    worker : Worker or None
        Reduces while the caller's thread computes; with None, buckets are reduced by `finish`.
    levels : (RankGroup, RankGroup or None) or None
        For a reduction on two levels: the ranks of this node, and the ranks 0 of the nodes, if this is one.

    Attributes
    ----------
    each : sequence of BucketReduction
        The reduction of each bucket.
    together : int
        Calls by which `reduce_all` reduces all buckets, each of all of a kind; 0 if it takes one a bucket.
    """

    def __init__(
        self,
        group: RankGroup,
        buckets: Buckets,
        worker: Worker | None,
        levels: tuple[RankGroup, RankGroup | None] | None,
    ) -> None:
        settings, flags = buckets.settings, len(FLAGS) + len(buckets.urgent)
        self.each: Sequence[BucketReduction]
        self._exchange: Exchange | None = None
        self._plans: list[Callable[[], Any]] = []
        if buckets.channels:
            node, across = levels or (None, group)
            self._exchange = exchange = None if across is None else Exchange(across)
            self.each = [
                CompressedReduction(group, flat, settings, flags, channel, exchange, node)
                for flat, channel in zip(buckets.flats, buckets.channels, strict=True)
            ]
        else:
            self.each = [BucketReduction(group, flat, settings, flags) for flat in buckets.flats]
            exact, ops = settings.deterministic, {x.flat.bucket.kind: x.op for x in self.each}
            for kind, memory in buckets.regions.items() if settings.bucketing else ():
                plan = group.plan("all_reduce", memory, ops[kind], deterministic=exact)
                self._plans.append(plan)
        self.together = len(self._plans)
        self._reduction_of = {name: each for each in self.each for name in each.flat.views}
        self._buckets, self._urgent, self._worker = buckets, buckets.urgent, worker
        self._deferred = any(each.deferred for each in self.each)
        self._turn = threading.Lock()  # held by the thread that reduces
        self._error: BaseException | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a step."""
        with self._turn:  # the thread may still look whether there is something to do
            for each in self.each:
                each.left, each.span = each.gradients, None
            self._waiting = list(range(len(self.each)))
            self._ready: set[int] = set()
            self._closing = False
            self._under_way: set[int] = set()  # if they are deferred

    @property
    def started(self) -> bool:
        """Whether a reduction of the step has started."""
        return len(self._waiting) < len(self.each)

    def ready(self, name: str) -> None:
        """Take note that a gradient is ready, and start the reductions that can start now. Does not block."""
        reduction = self._reduction_of[name]
        reduction.left -= 1
        if reduction.left:
            return
        if self._deferred:
            self._go_on()
        elif self._worker is not None:
            # In one comparison, since the other thread takes buckets from the list.
            last = [reduction.flat.bucket.index]
            if reduction.nbytes > SMALL_BYTES or self._waiting != last:
                self._worker.submit(self._work)

    def finish(self) -> None:
        """Reduce the remaining buckets, and wait for all. Blocks."""
        self._closing = True  # no more gradients become ready: every bucket may start
        self._go_on()
        for number in sorted(self._under_way):
            self._finish(number)

    def wait_for(self, name: str) -> None:
        """Let every bucket start, and wait until that of a gradient is reduced. Blocks."""
        self._closing = True
        reduction, worker = self._reduction_of[name], self._worker
        if not self._deferred and worker is not None and worker.submit(self._work):
            # Each call of the worker has its own deadline.
            wait(
                lambda: bool(self._error or reduction.span),
                timeout=math.inf,
                gate=Gate(shares_process=True),
                expired=lambda _: None,
            )
        if self._error is not None or reduction.span is None:
            self._go_on()
        self._finish(reduction.flat.bucket.index)

    def reduce_all(self) -> None:
        """Reduce all buckets in the caller's thread, together if possible. Collective; blocks."""
        if not self._plans:
            self.finish()
            return
        others = [False] * len(self._urgent)
        for number, each in enumerate(self.each):
            each.set_flags(self._buckets.prepare(number) + others)
        for call in self._plans:
            call()
        for number, each in enumerate(self.each):
            self._buckets.take(number, each.flags()[: len(FLAGS)], each.divisor)

    def _work(self) -> None:
        with suppress(BaseException):  # the caller's thread raises it
            self._go_on()

    def _go_on(self) -> None:
        """Reduce buckets as long as one may start."""
        with self._turn:
            while self._waiting and self._error is None:
                number = next_bucket(self._waiting, self._ready, self._urgent)
                if self.each[number].left and not self._closing:
                    return
                try:
                    self._reduce(number)
                except BaseException as error:
                    self._error = error
                    raise
        if self._error is not None:
            raise self._error

    def _reduce(self, number: int) -> None:
        begun, reduction = perf_counter(), self.each[number]
        self._waiting.remove(number)
        if self._exchange is not None:
            self._exchange.scale = self._buckets.scale.value
        flags = self._buckets.prepare(number)
        closing = self._closing
        flags += [not closing and bool(self.each[other].left) for other in self._urgent]
        reduction.start(flags)
        self._under_way.add(number)
        if not reduction.deferred:
            self._finish(number)
        reduction.span = begun, perf_counter()

    def _finish(self, number: int) -> None:
        """Take a bucket that is under way, unless that was done before. Blocks, if it is deferred."""
        if number in self._under_way:
            self._under_way.remove(number)
            reduction = self.each[number]
            reduction.finish()
            flags = reduction.flags()
            self._buckets.take(number, flags[: len(FLAGS)], reduction.divisor)
            unready = flags[len(FLAGS) :]
            self._ready = {b for b, no in zip(self._urgent, unready, strict=True) if not no}
