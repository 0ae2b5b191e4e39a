"""Cuts arrays into the blocks of ranks, and blocks into pieces. All algorithms use it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, zip_longest
from typing import Protocol, TypeVar

import numpy as np

from hpccomm.schedules.schedule import Channel, Column, Round, Rounds, Schedule, Tuning


def even(count: int, parts: int) -> tuple[int, ...]:
    """Return the sizes of `parts` blocks of `count` elements that differ by at most one."""
    return tuple((i + 1) * count // parts - i * count // parts for i in range(parts))


def array_split(count: int, parts: int) -> tuple[int, ...]:
    """Return the sizes of the parts of ``numpy.array_split``: the larger ones come first."""
    size, larger = divmod(count, parts)
    return (size + 1,) * larger + (size,) * (parts - larger)


def offsets(counts: Sequence[int]) -> tuple[int, ...]:
    """Return where each block begins if blocks of `counts` elements lie one after the other."""
    return (0, *accumulate(counts))[: len(counts)]


def doublings(size: int) -> list[int]:
    """Return the powers of two below `size`, ascending: distances at which ranks meet round after round."""
    return [1 << k for k in range((size - 1).bit_length())]


class Blocks(Protocol):
    """A range of elements that is cut into a block for each position of a group.

    Attributes
    ----------
    largest : int
        Elements of the largest block, of all rows.
    """

    largest: int

    def at(self, position: Column, /) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        ...


class Even:
    """`count` elements from `start`, in `parts` blocks that differ by at most one element.

    `start` and `count` may be columns: each row then has its own range.
    """

    def __init__(self, start: Column | int, count: Column | int, parts: int) -> None:
        self._start = start
        self._count = count
        self._parts = parts
        self.largest = -(-int(np.max(count, initial=0)) // parts)

    def at(self, position: Column) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        first = position * self._count // self._parts
        last = (position + 1) * self._count // self._parts
        return self._start + first, last - first


class Listed:
    """Blocks of the given counts, one after the other from `start`."""

    def __init__(self, counts: Sequence[int], start: int = 0) -> None:
        self._starts = np.array(offsets(counts), np.int64) + start
        self._counts = np.array(counts, np.int64)
        self.largest = max(counts, default=0)

    def at(self, position: Column) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        return self._starts[position], self._counts[position]


class Clipped:
    """A part of each block: at most `count` elements, from its element `first` on."""

    def __init__(self, blocks: Blocks, first: int, count: int) -> None:
        self._blocks = blocks
        self._first = first
        self._count = count
        self.largest = min(max(blocks.largest - first, 0), count)

    def at(self, position: Column) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        start, count = self._blocks.at(position)
        # np.clip takes three times as long on few elements.
        left = np.minimum(np.maximum(count - self._first, 0), self._count)
        return start + self._first, left


@dataclass(slots=True, eq=False)
class Located:
    """Blocks whose places a function gives.

    Attributes
    ----------
    at : callable
        As of `Blocks`.
    largest : int
        Elements of the largest block.
    """

    at: Callable[[Column], tuple[Column, Column]]
    largest: int


def clipped(blocks: Blocks, segment: int) -> list[Blocks]:
    """Cut each block into segments. Return the first segments of all blocks, the second ones, and so on."""
    if blocks.largest <= segment:
        return [blocks]
    return [Clipped(blocks, first, segment) for first in range(0, blocks.largest, segment)]


@dataclass(frozen=True, slots=True)
class Range:
    """`count` elements from `start`."""

    start: int
    count: int


def ranges(count: int, segment: int) -> list[Range]:
    """Cut `count` elements into ranges of `segment`; the last one may be shorter."""
    if count <= segment:
        return [Range(0, count)]
    return [Range(start, min(segment, count - start)) for start in range(0, count, segment)]


T = TypeVar("T")


def in_channels(
    pieces: Sequence[T],
    run: Callable[[T, int], Rounds],
    tuning: Tuning,
    scratch: int,
    first: int = 0,
) -> Schedule:
    """Return the schedule that runs `pieces` in channels, which take them in turn.

    Parameters
    ----------
    pieces : sequence
        What to run. A channel runs its pieces one after the other.
    run : callable
        ``run(piece, slot)`` makes the rounds of a piece, whose scratch begins at element `slot`.
    tuning : Tuning
        Its `channels` is the largest number of channels.
    scratch : int
        Elements of scratch that a piece takes.
    first : int
        Elements of scratch that lie before those of the pieces.
    """
    number = min(tuning.channels, len(pieces))

    def channel(which: int) -> Channel:
        own = pieces[which::number]
        return lambda: chain.from_iterable(run(piece, first + which * scratch) for piece in own)

    channels = tuple(channel(which) for which in range(number))
    cut = tuning.segment if len(pieces) > 1 else None
    return Schedule(channels, first + number * scratch, cut)


def side_by_side(*several: Rounds) -> Rounds:
    """Run several sequences of rounds at the same time: their first rounds become one, and so on.

    They must touch different memory. None may have a barrier.
    """
    return several[0] if len(several) == 1 else _joined(several)


def _joined(several: Sequence[Rounds]) -> Rounds:
    for together in zip_longest(*several, fillvalue=Round()):
        yield Round(
            tuple(chain.from_iterable(each.receives for each in together)),
            tuple(chain.from_iterable(each.sends for each in together)),
            tuple(chain.from_iterable(each.local for each in together)),
        )


def merged(programs: Sequence[Schedule]) -> Schedule:
    """Return the schedule of all ranks, from one schedule for each rank.

    Where calls differ from rank to rank, as in an uneven all-to-all, each rank has a schedule of its
    own. None may have a barrier.
    """
    most = max((len(each.channels) for each in programs), default=0)

    def channel(number: int) -> Channel:
        parts = [each.channels[number] for each in programs if number < len(each.channels)]
        return lambda: side_by_side(*(part() for part in parts))

    return Schedule(
        tuple(channel(number) for number in range(most)),
        max((each.scratch for each in programs), default=0),
        next((each.segment for each in programs if each.segment is not None), None),
    )
