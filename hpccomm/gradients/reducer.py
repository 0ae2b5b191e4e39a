"""Reduces the buckets of a step: in which order, and in which thread. `steps` owns it."""

import math
import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

from hpccomm.gradients.bucket_reducers import CompressedReducer, PlannedReducer, operation
from hpccomm.gradients.buckets import FLAGS, Buckets
from hpccomm.gradients.compression.contract import Channel, Exchange
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.gradients.worker import Worker
from hpccomm.runtime.waiting import Gate, wait

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


class Reducer:
    """Reduces the buckets of a step one after the other, in an order that all ranks share; or all together.

    With each bucket, the ranks exchange which others are ready. From this they all learn which bucket comes
    next, without another message. Making one is collective and blocks: its calls are planned.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    buckets : Buckets
        What is reduced.
    settings : ReductionSettings
        Equal on all ranks.
    urgent : sequence of int
        As in `next_bucket`.
    channels : sequence of Channel
        Of the compressor, by bucket; empty without one.
    worker : Worker or None
        Reduces while the caller's thread computes; with None, buckets are reduced by `finish`.
    levels : (RankGroup, RankGroup or None) or None
        For a reduction on two levels: the ranks of this node, and the ranks 0 of the nodes, if this is one.

    Attributes
    ----------
    each : sequence of PlannedReducer or CompressedReducer
        By bucket.
    ranks : Exchange or None
        Among which this rank exchanges what is compressed.
    together : int
        Calls by which `reduce_all` reduces all buckets, each of all of a kind; 0 if it takes one a bucket.
    spans : list of (float, float) or None
        When the reduction of each bucket began and ended, as ``time.perf_counter`` counts.
    """

    def __init__(
        self,
        group: RankGroup,
        buckets: Buckets,
        settings: ReductionSettings,
        urgent: Sequence[int],
        channels: Sequence[Channel],
        worker: Worker | None,
        levels: tuple[RankGroup, RankGroup | None] | None,
    ) -> None:
        self.each: Sequence[PlannedReducer | CompressedReducer]
        self.ranks: Exchange | None = None
        self._plans: list[Callable[[], Any]] = []
        if not channels:
            flags = len(FLAGS) + len(urgent)
            self._planned = [PlannedReducer(group, flat, settings, flags) for flat in buckets.flats]
            self.each = self._planned
            for kind, memory in buckets.regions.items() if settings.bucketing else ():
                op, _ = operation(group, kind, settings)
                exact = settings.deterministic
                self._plans.append(group.plan("all_reduce", memory, op, deterministic=exact))
        else:
            node, across = levels or (None, group)
            self.ranks = None if across is None else Exchange(across)
            self.each = [
                CompressedReducer(group, flat, settings, channel, self.ranks, node)
                for flat, channel in zip(buckets.flats, channels, strict=True)
            ]
        self.together = len(self._plans)
        self._buckets, self._urgent, self._worker = buckets, urgent, worker
        self._deferred = any(each.deferred for each in self.each)
        self._turn = threading.Lock()  # held by the thread that reduces
        self._error: BaseException | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a step."""
        with self._turn:  # the thread may still look whether there is something to do
            self._left = [len(flat.views) for flat in self._buckets.flats]  # not ready
            self._waiting = list(range(len(self._left)))
            self._ready: set[int] = set()
            self._closing = False
            self._under_way: set[int] = set()  # if they are deferred
            self.spans: list[tuple[float, float] | None] = [None] * len(self._left)

    @property
    def wire_nbytes(self) -> int:
        """Bytes that this rank gave to collectives so far."""
        return sum(each.wire_nbytes for each in self.each)

    @property
    def started(self) -> bool:
        """Whether a reduction of the step has started."""
        return len(self._waiting) < len(self._left)

    def ready(self, name: str) -> None:
        """Take note that a gradient is ready, and start the reductions that can start now. Does not block."""
        number = self._buckets.bucket_of[name]
        self._left[number] -= 1
        if self._left[number]:
            return
        if self._deferred:
            self._go_on()
        elif self._worker is not None:
            small = self._buckets.flats[number].bucket.nbytes <= SMALL_BYTES
            # In one comparison, since the other thread takes buckets from the list.
            if not (small and self._waiting == [number]):
                self._worker.submit(self._work)

    def close(self) -> None:
        """Let every bucket start: no more gradients become ready. Does not block."""
        self._closing = True

    def finish(self) -> None:
        """Reduce the remaining buckets, and wait for all. Blocks."""
        self.close()
        self._go_on()
        for number in sorted(self._under_way):
            self._finish(number)

    def wait_for(self, number: int) -> None:
        """Wait until a bucket is reduced, after `close`. Blocks."""
        worker = self._worker
        if not self._deferred and worker is not None and worker.submit(self._work):
            # Each call of the worker has its own deadline.
            wait(
                lambda: bool(self._error or self.spans[number] or not worker.is_running),
                timeout=math.inf,
                gate=Gate(shares_process=True),
                expired=lambda _: None,
            )
        if self._error is not None or self.spans[number] is None:
            self._go_on()
        self._finish(number)

    def reduce_all(self) -> None:
        """Reduce all buckets in the caller's thread, together if possible. Collective; blocks."""
        if not self._plans:
            self.finish()
            return
        others = [False] * len(self._urgent)
        for number, each in enumerate(self._planned):
            each.set_flags(self._buckets.prepare(number) + others)
        for call in self._plans:
            call()
        for number, each in enumerate(self._planned):
            self._buckets.reduced(number, each.flags()[: len(FLAGS)], each.divisor)

    def _finish(self, number: int) -> None:
        """Wait for a bucket that is deferred, unless that was done before."""
        if number in self._under_way:
            self._under_way.remove(number)
            self._take(number)

    def _take(self, number: int) -> None:
        each = self.each[number]
        flags = each.finish()
        self._buckets.reduced(number, flags[: len(FLAGS)], each.divisor)
        unready = flags[len(FLAGS) :]
        self._ready = {b for b, no in zip(self._urgent, unready, strict=True) if not no}

    def _work(self) -> None:
        try:
            self._go_on()
        except BaseException as error:  # noqa: BLE001 (the caller's thread raises it)
            self._error = error

    def _go_on(self) -> None:
        """Reduce buckets as long as one may start."""
        with self._turn:
            while self._waiting and self._error is None:
                number = next_bucket(self._waiting, self._ready, self._urgent)
                if self._left[number] and not self._closing:
                    return
                try:
                    self._reduce(number)
                except BaseException as error:
                    self._error = error
                    raise
        if self._error is not None:
            raise self._error

    def _reduce(self, number: int) -> None:
        begun = perf_counter()
        self._waiting.remove(number)
        flags = self._buckets.prepare(number)
        closing = self._closing
        flags += [not closing and bool(self._left[each]) for each in self._urgent]
        self.each[number].start(flags)
        if self.each[number].deferred:
            self._under_way.add(number)
        else:
            self._take(number)
        self.spans[number] = (begun, perf_counter())
