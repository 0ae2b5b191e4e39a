"""Pipelines: the segments of an array follow each other through a tree, one behind the other.

While a rank hands on one segment, it receives the next segment. Moving s segments up or down a tree of
height h takes s+h-1 rounds, so that with many segments the height costs little. See J. Watts, R. van de
Geijn, "A pipelined broadcast for multidimensional meshes", 1995.

A rank at depth d sends segment k up in round k+h-d, and down in round k+d. Both ends of a message
are in the same round, since their depths differ by one.

`chain`, `tree` and the linear `scan` are such pipelines.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product, repeat
from typing import TypeVar

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Phase, PhasePiece, ranges, side_by_side
from hpccomm.schedules.schedule import (
    SCRATCH,
    Build,
    Column,
    Folds,
    Group,
    LocalStep,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    Transfers,
    Tuning,
    folds,
    transfers,
)


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The place of each row of a group in a tree of the group's positions.

    Attributes
    ----------
    height : int
        The largest depth in the tree.
    depth : Column
        The number of messages on the path from the root to the row.
    parent : Column
        Position of the row's parent; -1 at the root.
    children : tuple of Column
        Columns of the positions of the rows' first children, of their second children, ...; -1 for a missing child.
    """

    height: int
    depth: Column
    parent: Column
    children: tuple[Column, ...]


T = TypeVar("T")
RoundTables = Callable[[int], Iterator[T]]
"""Takes the number of a round and yields its tables, if there are any."""


class Segments:
    """`count` elements from `start`, cut into segments.

    `start` and `count` may be columns: each row then has its own range.

    Attributes
    ----------
    length : int
        Elements of a segment. The last segments of a range may have fewer elements, or none.
    number : int
        Segments of the longest range.
    """

    def __init__(self, start: Column | int, count: Column | int, segment: int) -> None:
        longest = int(np.max(count, initial=0))
        self.start = start
        self.count = count
        self.length = max(1, min(segment, longest))
        self.number = -(-longest // self.length)


class SegmentRows:
    """Rows of a group that handle one segment a round; each row begins in its own round.

    Parameters
    ----------
    group : Group
        The group that has the rows.
    segments : Segments
        The segments in their order.
    delay : Column
        For each row of the group, the round of its first segment.
    where : Mask
        The participating rows.
    """

    def __init__(self, group: Group, segments: Segments, delay: Column, where: Mask) -> None:
        rows = np.flatnonzero(where)
        # Sorted by delay, the rows at work in a round are adjacent, so that a slice selects them without copies.
        self._rows = rows[np.argsort(delay[rows], kind="stable")]
        self._segments = segments
        self._delay = delay[self._rows]
        self._first = self.of(segments.start) - self._delay * segments.length
        self._end = self.of(segments.start + segments.count)
        self.rank = self.of(group.rank)
        self._earliest = int(self._delay[0]) if len(rows) else 0
        self._latest = int(self._delay[-1]) if len(rows) else -segments.number

    def of(self, value: Column | int) -> Column:
        """Return a column of the group, or a number, as a column of these rows."""
        if isinstance(value, np.ndarray):
            return value[self._rows]
        return np.full(len(self._rows), value, np.int64)

    def at_work(self, turn: int) -> tuple[slice, Column, Column] | None:
        """Return the rows that have a segment in round `turn`, and first element and count of each row's segment.

        None if no row has a segment.
        """
        if not self._earliest <= turn < self._latest + self._segments.number:
            return None
        if self._latest <= turn < self._earliest + self._segments.number:
            rows = slice(None)  # all rows, as in most rounds
        else:
            turns = turn - self._segments.number, turn
            first, last = np.searchsorted(self._delay, turns, side="right")
            if first == last:
                return None
            rows = slice(first, last)
        start = self._first[rows] + turn * self._segments.length
        return rows, start, np.minimum(self._end[rows] - start, self._segments.length)

    def each(self, table: Callable[[slice, Column, Column], T]) -> RoundTables[T]:
        """Return the tables ``table(rows, start, count)`` of the rounds in which some row has a segment."""

        def at(turn: int) -> Iterator[T]:
            work = self.at_work(turn)
            if work is not None:
                yield table(*work)

        return at

    def messages(
        self, peer: Column, buffer: str, start: Column | int | None = None
    ) -> RoundTables[Transfers]:
        """Return each row's messages to, or from, one peer.

        Parameters
        ----------
        peer : Column
            The peer of each row of the group. Values of rows that take no part are ignored.
        buffer : str
            The buffer of the segments.
        start : Column or int, optional
            First element of every segment; by default each segment lies at its offset in the array.
        """
        peers = self.of(peer)
        fixed = None if start is None else self.of(start)

        def table(rows: slice, own: Column, count: Column) -> Transfers:
            begin = own if fixed is None else fixed[rows]
            return transfers(self.rank[rows], peers[rows], buffer, begin, count)

        return self.each(table)


def pipelined(
    turns: int,
    receives: Iterable[RoundTables[Transfers]],
    sends: Iterable[RoundTables[Transfers]],
    local: Iterable[RoundTables[LocalStep]] = (),
) -> Rounds:
    """Yield `turns` rounds, each with the tables that `receives`, `sends` and `local` yield for its number."""
    for turn in range(turns):
        yield Round(
            tuple(chain.from_iterable(each(turn) for each in receives)),
            tuple(chain.from_iterable(each(turn) for each in sends)),
            tuple(chain.from_iterable(each(turn) for each in local)),
        )


def _peers(group: Group, position: Column) -> Column:
    return group.peer(np.maximum(position, 0))


def up(piece: PhasePiece, tree: Tree, segments: Segments, slot: int) -> Rounds:
    """Return the rounds that fold the source of all ranks up the tree, into the target at the root.

    A rank folds the segments of its children first, then its own. It needs `up_scratch` elements of
    scratch from `slot` on: a segment for each child, and a segment to send.
    """
    group, source = piece.group, piece.source
    fan_out = np.sum([child >= 0 for child in tree.children], axis=0)
    is_root = tree.depth == 0
    parent = _peers(group, tree.parent)
    landing = [slot + i * segments.length for i in range(len(tree.children))]
    partial = slot + len(tree.children) * segments.length
    sending = tree.height - tree.depth
    leaves = SegmentRows(group, segments, sending, ~is_root & (fan_out == 0))
    inner = SegmentRows(group, segments, sending, ~is_root & (fan_out > 0))
    sends = leaves.messages(parent, source), inner.messages(parent, SCRATCH, partial)

    def folding(stage: SegmentRows, children: int, *, root: bool) -> RoundTables[Folds]:
        landed = tuple(Place(SCRATCH, start) for start in landing[:children])

        def fold(rows: slice, start: Column, count: Column) -> Folds:
            sources = (*landed, Place(source, start))
            into = Place(piece.target, start) if root else Place(SCRATCH, partial)
            return folds(stage.rank[rows], sources, into, count, final=piece.final and root)

        return stage.each(fold)

    receives: list[RoundTables[Transfers]] = []
    steps: list[RoundTables[Folds]] = []
    for children, root in product(range(1, len(tree.children) + 1), (False, True)):
        where = (fan_out == children) & (is_root == root)
        stage = SegmentRows(group, segments, sending - 1, where)
        receives += [
            stage.messages(_peers(group, child), SCRATCH, start)
            for child, start in zip(tree.children[:children], landing, strict=False)
        ]
        steps.append(folding(stage, children, root=root))
    yield from pipelined(segments.number + tree.height - 1, receives, sends, steps)


def up_scratch(children: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `up` needs in a tree of at most `children` children a rank."""
    return (children + 1) * Segments(0, count, segment).length


def down(
    group: Group, tree: Tree, segments: Segments, buffer: str, *, after_up: bool = False
) -> Rounds:
    """Return the rounds that hand the root's `buffer` down the tree.

    With `after_up`, they run side by side with `up` into the same buffer, and a segment goes down once
    it is complete: the root has folded segment k in round k+h-1, and sends it in round k+h. No rank
    receives a segment before it has sent its own contribution to that segment.
    """
    if after_up:
        yield from repeat(Round(), tree.height)
    takers = SegmentRows(group, segments, tree.depth - 1, tree.depth > 0)
    receives = takers.messages(_peers(group, tree.parent), buffer)
    sends = [
        SegmentRows(group, segments, tree.depth, child >= 0).messages(_peers(group, child), buffer)
        for child in tree.children
    ]
    yield from pipelined(segments.number + tree.height - 1, [receives], sends)


Trees = Callable[[Group, Column | int], tuple[Tree, ...]]
"""``trees(group, root)`` returns the trees of a group that share an array evenly."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Pipelines through one or several trees; each tree carries its part of the array.

    Attributes
    ----------
    to_root, from_root : callable
        Make the trees towards the root, for folds, and away from the root.
    parts : int
        Number of trees.
    children : int
        Most children of a rank in a tree.
    last : callable
        ``last(size)`` returns the position at which an all-reduce completes the fold.
    """

    to_root: Trees
    from_root: Trees
    parts: int
    children: int
    last: Callable[[int], int] = lambda _size: 0

    def reduce(self) -> Phase:
        """Return the phase that folds up the trees, into the target at the root."""

        def rounds(piece: PhasePiece) -> Rounds:
            return side_by_side(*self._up(piece, self.to_root(piece.group, piece.root)))

        return Phase(rounds, self._scratch)

    def broadcast(self) -> Phase:
        """Return the phase that hands the root's target down the trees."""

        def rounds(piece: PhasePiece) -> Rounds:
            return side_by_side(*self._down(piece, self.from_root(piece.group, piece.root)))

        return Phase(rounds, copies_alone=False)

    def all_reduce(self) -> Phase:
        """Return the phase that folds up the trees, and hands each segment down once it is folded."""

        def rounds(piece: PhasePiece) -> Rounds:
            trees = self.to_root(piece.group, self.last(piece.group.size))
            return side_by_side(*self._up(piece, trees), *self._down(piece, trees, after_up=True))

        return Phase(rounds, self._scratch)

    def builds(self) -> tuple[Build, Build, Build]:
        """Return the builds of all_reduce, broadcast and reduce."""
        phases = self.all_reduce(), self.broadcast(), self.reduce()
        all_reduce, broadcast, reduce = (in_streams(phase, self.parts) for phase in phases)
        return all_reduce, broadcast, reduce

    def _up(self, piece: PhasePiece, trees: tuple[Tree, ...]) -> list[Rounds]:
        parts = self._cut(piece.start, piece.count, piece.segment)
        width = (self.children + 1) * parts[0].length
        return [
            up(piece, tree, part, piece.slot + number * width)
            for number, (tree, part) in enumerate(zip(trees, parts, strict=True))
        ]

    def _down(
        self, piece: PhasePiece, trees: tuple[Tree, ...], *, after_up: bool = False
    ) -> list[Rounds]:
        parts = self._cut(piece.start, piece.count, piece.segment)
        return [
            down(piece.group, tree, part, piece.target, after_up=after_up)
            for tree, part in zip(trees, parts, strict=True)
        ]

    def _cut(self, start: Column | int, count: Column | int, segment: int) -> list[Segments]:
        """Return the segments of each tree's part of the array. The first parts may be larger by one element."""
        parts = []
        for left in range(self.parts, 0, -1):
            own = -(-count // left)
            parts.append(Segments(start, own, segment))
            start, count = start + own, count - own
        return parts

    def _scratch(self, _size: int, count: int, segment: int) -> int:
        most = -(-count // self.parts)
        return self.parts * up_scratch(self.children, most, segment)


def in_streams(phase: Phase, parts: int = 1) -> Build:
    """Return the `Build` of channels that share an array; each runs a pipelined `phase` on its share.

    Channels that would have no whole segment are left out.

    Parameters
    ----------
    phase : Phase
        The phase that each channel runs.
    parts : int
        Segments that the phase moves at a time.
    """

    def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        count, at_a_time = call.counts[0], parts * tuning.segment
        number = max(1, min(tuning.channels, count // at_a_time))
        shares = ranges(count, -(-count // number))
        schedule = phase.on(shares, group, call, tuning)
        cut = number > 1 or shares[0].count > at_a_time
        return replace(schedule, segment=tuning.segment if cut else None)

    return build
