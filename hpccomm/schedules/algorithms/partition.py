"""Cuts arrays into the blocks of ranks, and blocks into pieces; defines phases, which work on the pieces.

A phase folds or hands on a range of the array, or both, in one group of ranks. An algorithm of one level runs a phase
on the ranks of the call. A hierarchical algorithm composes phases within nodes and across them. All phases take the
same argument, a ``PhasePiece``, so that any two can be composed. All algorithms use this module; the proof, the calls
and the tools use its cuts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, zip_longest
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Build,
    Channel,
    Column,
    Copies,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
)


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
    """Return the powers of two below `size`, ascending: the distances between partners, round after round."""
    return [1 << k for k in range((size - 1).bit_length())]


@dataclass(slots=True, eq=False)
class Blocks:
    """A range of elements that is cut into a block for each position of a group.

    Attributes
    ----------
    at : callable
        ``at(position)`` returns first element and count of the block at `position`, for each row.
    largest : int
        Elements of the largest block of any row.
    """

    at: Callable[[Column], tuple[Column, Column]]
    largest: int


class Even(Blocks):
    """`count` elements from `start`, in `parts` blocks that differ by at most one element.

    `start` and `count` may be columns: each row then has its own range.
    """

    def __init__(self, start: Column | int, count: Column | int, parts: int) -> None:
        def at(position: Column) -> tuple[Column, Column]:
            first, end = position * count // parts, (position + 1) * count // parts
            return start + first, end - first

        super().__init__(at, -(-int(np.max(count, initial=0)) // parts))


class Listed(Blocks):
    """Blocks of the given counts, one after the other from `start`."""

    def __init__(self, counts: Sequence[int], start: int = 0) -> None:
        starts, sizes = np.array(offsets(counts), np.int64) + start, np.array(counts, np.int64)
        super().__init__(
            lambda position: (starts[position], sizes[position]), max(counts, default=0)
        )


def clip(blocks: Blocks, first: int, count: int) -> Blocks:
    """Return a part of each block: at most `count` elements from the block's element `first` on."""

    def at(position: Column) -> tuple[Column, Column]:
        start, size = blocks.at(position)
        # np.clip takes three times as long on few elements.
        return start + first, np.minimum(np.maximum(size - first, 0), count)

    return Blocks(at, min(max(blocks.largest - first, 0), count))


def clipped(blocks: Blocks, segment: int) -> list[Blocks]:
    """Cut each block into segments. Return the first segments of all blocks, the second ones, and so on."""
    if blocks.largest <= segment:
        return [blocks]
    return [clip(blocks, first, segment) for first in range(0, blocks.largest, segment)]


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
    """Return the schedule that deals `pieces` out to channels in turn.

    Parameters
    ----------
    pieces : sequence
        The pieces. A channel runs its pieces one after the other.
    run : callable
        ``run(piece, slot)`` makes the rounds of a piece, whose scratch begins at element `slot`.
    tuning : Tuning
        Its `channels` is the largest number of channels.
    scratch : int
        Elements of scratch that a piece takes.
    first : int
        Elements of scratch before those of the pieces.
    """
    number = min(tuning.channels, len(pieces))

    def channel(which: int) -> Channel:
        own = pieces[which::number]
        return lambda: chain.from_iterable(run(piece, first + which * scratch) for piece in own)

    channels = tuple(channel(which) for which in range(number))
    cut = tuning.segment if len(pieces) > 1 else None
    return Schedule(channels, first + number * scratch, cut)


def side_by_side(*several: Rounds) -> Rounds:
    """Return the rounds that run several sequences at the same time: their first rounds become one round, and so on.

    The sequences must touch different memory. None may have a barrier.
    """
    return several[0] if len(several) == 1 else _joined(several)


def _joined(several: Sequence[Rounds]) -> Rounds:
    for together in zip_longest(*several, fillvalue=Round()):
        yield Round(
            tuple(chain.from_iterable(each.receives for each in together)),
            tuple(chain.from_iterable(each.sends for each in together)),
            tuple(chain.from_iterable(each.local for each in together)),
        )


def backwards(rounds: Rounds) -> Rounds:
    """Yield `rounds` in reverse order. Receives become sends, sends become receives, copies swap source and target.

    The rounds have no folds.
    """
    for each in reversed(list(rounds)):
        local = tuple(
            Copies(step.rank, step.target, step.source, step.count)
            for step in each.local
            if isinstance(step, Copies)
        )
        yield Round(each.sends, each.receives, local)


def merged(programs: Sequence[Schedule]) -> Schedule:
    """Return the schedule of all ranks, from one schedule for each rank.

    If calls differ from rank to rank, as in an uneven all-to-all, each rank builds its own schedule. No schedule
    may have a barrier.
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


@dataclass(frozen=True, slots=True, eq=False)
class PhasePiece:
    """A range of the array, and the parameters of a phase on it.

    `start`, `count` and `root` may be columns: then each row has its own range, and all rows of a
    group have the same range.

    Attributes
    ----------
    group : Group
        The ranks that take part.
    start, count : Column or int
        First element and number of elements. Both are the same in the source and in the target.
    slot : int
        First element of scratch that the phase may use.
    segment : int
        Elements that a pipeline moves at a time.
    root : Column or int
        The position of the root in the group. An all-reduce ignores it.
    source : str
        The buffer that is folded. A broadcast ignores it.
    target : str
        The buffer that gets the result. A broadcast reads it at the root.
    final : bool
        Whether the fold completes the result, so that AVG divides.
    """

    group: Group
    start: Column | int
    count: Column | int
    slot: int
    segment: int
    root: Column | int = 0
    source: str = SEND
    target: str = RECV
    final: bool = True


Scratch = Callable[[int, int, int], int]
"""``scratch(size, count, segment)``: elements of scratch that a phase takes in groups of `size` ranks
with ranges of at most `count` elements."""


class Phase(NamedTuple):
    """One step of a collective algorithm, on a range of the array.

    A rank that is alone copies the source to the target, or does nothing.

    Attributes
    ----------
    rounds : callable
        Makes the rounds for a `PhasePiece` of several ranks.
    needs : callable
        The scratch that the rounds take; see `Scratch`.
    copies_alone : bool
        Whether a rank that is alone copies the source to the target.
    segments : callable
        ``segments(size)`` returns the segments of a piece among `size` ranks, if the array is cut; by default
        one.
    """

    rounds: Callable[[PhasePiece], Rounds]
    needs: Scratch = lambda _size, _count, _segment: 0
    copies_alone: bool = True
    segments: Callable[[int], int] = lambda _size: 1

    def __call__(self, piece: PhasePiece) -> Rounds:
        """Return the rounds for a piece."""
        if piece.group.size > 1:
            return self.rounds(piece)
        if not self.copies_alone or piece.source == piece.target:
            return iter(())
        source, target = Place(piece.source, piece.start), Place(piece.target, piece.start)
        return iter((Round(local=(copies(piece.group.rank, source, target, piece.count),)),))

    def scratch(self, size: int, count: int, segment: int) -> int:
        """Return the elements of scratch that the rounds take; see `Scratch`."""
        return self.needs(size, count, segment) if size > 1 else 0

    def on(
        self, pieces: Sequence[Range], group: Group, call: Signature, tuning: Tuning
    ) -> Schedule:
        """Return the schedule that runs the phase on each of `pieces`, of which the first is the largest."""
        segment = tuning.segment

        def run(piece: Range, slot: int) -> Rounds:
            return self(PhasePiece(group, piece.start, piece.count, slot, segment, call.root))

        scratch = self.scratch(group.size, pieces[0].count, segment)
        return in_channels(pieces, run, tuning, scratch)

    def in_pieces(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Return the schedule that cuts the array into pieces and runs the phase on each of them."""
        pieces = ranges(call.counts[0], tuning.segment * self.segments(group.size))
        return self.on(pieces, group, call, tuning)


# Phases that work on blocks: each position of the group has one.


class ReduceScatter(Protocol):
    """Folds the blocks of `source`. Each rank gets the folded block of its position in `target`."""

    def __call__(
        self, group: Group, blocks: Blocks, target: Place, slot: int, *, final: bool, source: str
    ) -> Rounds:
        """Return the rounds, which use scratch from `slot` on."""
        ...


AllGather = Callable[[Group, Blocks], Rounds]
"""``all_gather(group, blocks)`` returns the rounds by which each rank gets all blocks in `RECV`; its own block is there
before."""


Gather = Callable[[Group, Column | int, Blocks, int, Place, str], Rounds]
"""``gather(group, root, blocks, slot, source, target)`` returns the rounds that collect each rank's own block, from
`source`, in the root's buffer `target`. Scratch from `slot` on has room for all blocks."""


class Scattering(NamedTuple):
    """A reduce-scatter and an all-gather. The blocks may lie anywhere.

    Attributes
    ----------
    reduce_scatter, all_gather : callable
        Make the rounds among several ranks; see `ReduceScatter` and `AllGather`.
    scratch : callable
        ``scratch(size, largest)`` returns the elements of scratch that `reduce_scatter` takes among `size` ranks, with
        blocks of at most `largest` elements.
    """

    reduce_scatter: ReduceScatter
    all_gather: AllGather
    scratch: Callable[[int, int], int]

    def all_reduce(self) -> Phase:
        """Return the phase that scatters the folded blocks and gathers them again."""

        def rounds(piece: PhasePiece) -> Rounds:
            group = piece.group
            blocks = Even(piece.start, piece.count, group.size)
            own = Place(RECV, blocks.at(group.at)[0])
            yield from self.reduce_scatter(
                group, blocks, own, piece.slot, final=piece.final, source=piece.source
            )
            yield from self.all_gather(group, blocks)

        def scratch(size: int, count: int, _segment: int) -> int:
            return self.scratch(size, Even(0, count, size).largest)

        return Phase(rounds, scratch, segments=lambda size: size)

    def reduce(self, gather: Gather) -> Phase:
        """Return the phase that scatters the folded blocks and collects them at the root.

        A folded block lies in scratch: only the root has an array for the result, and the gathering writes that.
        """

        def scratch(size: int, count: int, _segment: int) -> int:
            largest = Even(0, count, size).largest
            return self.scratch(size, largest) + largest

        def rounds(piece: PhasePiece) -> Rounds:
            group, slot = piece.group, piece.slot
            blocks = Even(piece.start, piece.count, group.size)
            own = Place(SCRATCH, slot + self.scratch(group.size, blocks.largest))
            yield from self.reduce_scatter(
                group, blocks, own, slot, final=piece.final, source=piece.source
            )
            # All received blocks have been folded: their scratch is free.
            yield from gather(group, piece.root, blocks, slot, own, piece.target)

        return Phase(rounds, scratch, segments=lambda size: size)

    def reduce_scatter_in_pieces(self) -> Build:
        """Return the `Build` of a reduce-scatter that cuts each rank's block into segments."""

        def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
            blocks = Listed(call.counts)
            pieces = clipped(blocks, tuning.segment)
            own = blocks.at(group.at)[0]

            def run(piece: Blocks, slot: int) -> Rounds:
                target = Place(RECV, piece.at(group.at)[0] - own)
                return self.reduce_scatter(group, piece, target, slot, final=True, source=SEND)

            def copy(piece: Blocks, _slot: int) -> Rounds:
                start, count = piece.at(group.at)
                source, target = Place(SEND, start), Place(RECV, start)
                yield Round(local=(copies(group.rank, source, target, count),))

            if group.size == 1:
                return in_channels(pieces, copy, tuning, 0)
            return in_channels(pieces, run, tuning, self.scratch(group.size, pieces[0].largest))

        return build


def all_gather_in_pieces(rounds: AllGather, *, cut: bool = True) -> Build:
    """Return the `Build` of an all-gather: each rank copies its own block, then `rounds` follow.

    With `cut`, the blocks are cut into pieces, and both are done for one piece after the other.
    """

    def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        blocks = Listed(call.counts)
        own = blocks.at(group.at)[0]

        def run(piece: Blocks, _slot: int) -> Rounds:
            start, count = piece.at(group.at)
            own_block = copies(group.rank, Place(SEND, start - own), Place(RECV, start), count)
            yield Round(local=(own_block,))
            yield from rounds(group, piece)

        return in_channels(clipped(blocks, tuning.segment) if cut else [blocks], run, tuning, 0)

    return build
