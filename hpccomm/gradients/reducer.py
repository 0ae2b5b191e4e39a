"""In which order the buckets of a step are reduced, and in which thread."""

import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Protocol

from hpccomm.gradients.worker import Worker

MOST_URGENT = 32
"""So many buckets can be taken out of turn."""

SMALL_BYTES = 64 * 1024
"""A step's last bucket of at most so many bytes is left to `wait`: handing it over takes longer than reducing it."""


class Way(Protocol):
    """How one bucket is reduced."""

    @property
    def deferred(self) -> bool:
        """Whether `start` returns before the reduction is done, so that `finish` must wait for it."""

    @property
    def wire_nbytes(self) -> int:
        """Bytes that this rank gave to collectives so far."""

    def start(self, flags: Sequence[bool]) -> None:
        """Reduce the gradients, and the flags with them. Collective; blocks, if it is not deferred."""

    def finish(self) -> list[bool]:
        """Return which flags any rank has set. Blocks, if it is deferred."""


def next_bucket(waiting: Sequence[int], ready: Collection[int], urgent: Sequence[int]) -> int:
    """Return the bucket that is reduced next.

    Parameters
    ----------
    waiting : sequence of int
        Buckets that have not started, in order. At least one.
    ready : collection of int
        Those that are known to be ready on all ranks.
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
    """Reduces the buckets of a step one after the other, in an order that all ranks share.

    With each bucket, the ranks tell each other which others are ready. From this they all learn which bucket comes
    next, without another message.

    Parameters
    ----------
    ways : sequence of Way
        By bucket.
    urgent : sequence of int
        As in `next_bucket`.
    prepare : callable
        Makes a bucket's gradients ready to be sent, and returns flags to be sent with them.
    settle : callable
        Takes note of a bucket's flags from all ranks, when it is reduced.
    worker : Worker or None
        Reduces while the caller's thread computes; with None, buckets are reduced by `finish`.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        urgent: Sequence[int],
        prepare: Callable[[int], list[bool]],
        settle: Callable[[int, list[bool]], None],
        worker: Worker | None,
    ) -> None:
        self.ways = ways
        self._urgent = urgent[:MOST_URGENT] if len(ways) > 1 else ()
        self._prepare, self._settle, self._worker = prepare, settle, worker
        self._deferred = any(way.deferred for way in ways)
        self._turn = threading.Lock()  # held by the thread that reduces
        self._changed = threading.Condition()  # notified when a bucket is reduced
        self._error: BaseException | None = None
        self.reset([])

    @property
    def slots(self) -> int:
        """Flags that are sent with each bucket besides those of `prepare`."""
        return len(self._urgent)

    def reset(self, left: Sequence[int]) -> None:
        """Begin a step: `left` tells how many gradients of each bucket are not ready."""
        with self._turn:  # the thread may still look whether there is something to do
            self.left = list(left)
            self._waiting = list(range(len(left)))
            self._ready: set[int] = set()
            self._closing = False
            self._under_way: set[int] = set()  # by ways that are deferred
            self.spans: list[tuple[float, float] | None] = [None] * len(left)

    @property
    def under_way(self) -> bool:
        """Whether a reduction has started."""
        return len(self._waiting) < len(self.left)

    def advance(self, number: int, nbytes: int) -> None:
        """Take note that one more gradient of a bucket is ready. Does not block."""
        self.left[number] -= 1
        if self.left[number]:
            return
        if self._deferred:
            self._go_on()
        # In one comparison, since the other thread takes buckets from the list.
        elif self._worker is not None and not (nbytes <= SMALL_BYTES and self._waiting == [number]):
            self._worker.submit(self._work)

    def close(self) -> None:
        """Let every bucket start: no more gradients become ready. Does not block."""
        self._closing = True

    def finish(self) -> None:
        """Reduce what is left, and wait for all. Blocks."""
        self.close()
        self._go_on()
        self._raise()
        for number in sorted(self._under_way):
            self._finish(number)

    def wait_for(self, number: int) -> None:
        """Wait until a bucket is reduced, after `close`. Blocks."""
        if self._deferred or self._worker is None:
            self._go_on()
            self._raise()
            self._finish(number)
            return
        if self.spans[number] is None:
            self._worker.submit(self._work)
            with self._changed:
                self._changed.wait_for(lambda: self._error or self.spans[number] is not None)
        self._raise()

    def _finish(self, number: int) -> None:
        """Wait for a bucket that was started alone, unless that was done before."""
        if number in self._under_way:
            self._under_way.remove(number)
            self._settle(number, self.ways[number].finish())

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            self._go_on()
        except BaseException as error:  # noqa: BLE001 (the caller's thread raises it)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _go_on(self) -> None:
        """Reduce buckets as long as one may start."""
        with self._turn:
            while self._waiting and self._error is None:
                number = next_bucket(self._waiting, self._ready, self._urgent)
                if self.left[number] and not self._closing:
                    return
                try:
                    self._reduce(number)
                except BaseException as error:
                    self._fail(error)
                    raise

    def _reduce(self, number: int) -> None:
        begun = perf_counter()
        self._waiting.remove(number)
        flags = self._prepare(number)
        closing = self._closing
        flags += [not closing and bool(self.left[each]) for each in self._urgent]
        way = self.ways[number]
        way.start(flags)
        if way.deferred:
            self._under_way.add(number)
        else:
            told = way.finish()
            if self._urgent:
                unready = told[-self.slots :]
                self._ready = {
                    each for each, no in zip(self._urgent, unready, strict=True) if not no
                }
                told = told[: -self.slots]
            self._settle(number, told)
        with self._changed:
            self.spans[number] = (begun, perf_counter())
            self._changed.notify_all()
