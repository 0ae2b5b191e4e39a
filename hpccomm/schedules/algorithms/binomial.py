"""Binomial tree: the number of ranks that have the data doubles in each round.

The longest path has ⌈log2 n⌉ messages, and no algorithm needs fewer. So the tree suits small arrays. Each
message is a segment of the array; for gather and scatter it has the blocks of a subtree. The table
counts the rounds of one segment. See R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH", 2005.

==============  ===============  =======================================
collective      rounds           elements sent by a rank
==============  ===============  =======================================
broadcast       ⌈log2 n⌉         at most ⌈log2 n⌉ times the array
reduce          ⌈log2 n⌉         the array; the root none
all_reduce      2⌈log2 n⌉        at most ⌈log2 n⌉ times the array
gather          ⌈log2 n⌉         the blocks of its subtree; the root none
scatter         ⌈log2 n⌉         the blocks of its subtree but its own
==============  ===============  =======================================

`ALGORITHMS` lists them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Listed,
    Phase,
    PhasePiece,
    backwards,
    doublings,
)
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    Transfers,
    Tuning,
    copies,
    folds,
    transfers,
)


class _BinomialTree:
    """The binomial tree of a group, with the parent and the children of each row.

    Attributes
    ----------
    relative : Column
        The position of each row, counted from the root.
    bits : list of int
        The distances 1, 2, 4, ... between parents and children.
    """

    def __init__(self, group: Group, root: Column | int) -> None:
        self._size = group.size
        self.relative = (group.at - root) % group.size
        self.bits = doublings(group.size)

    def is_child(self, bit: int) -> Mask:
        """Return whether each row's parent is at distance `bit`."""
        mask: Mask = self.relative % (2 * bit) == bit
        return mask

    def is_parent(self, bit: int) -> Mask:
        """Return whether each row has a child at distance `bit`."""
        mask: Mask = (self.relative % (2 * bit) == 0) & (self.relative + bit < self._size)
        return mask


def _broadcast_rounds(piece: PhasePiece) -> Rounds:
    group = piece.group
    tree, rank = _BinomialTree(group, piece.root), group.rank
    moved = piece.target, piece.start, piece.count
    for bit in reversed(tree.bits):
        yield Round(
            receives=(transfers(rank, group.at_distance(-bit), *moved, tree.is_child(bit)),),
            sends=(transfers(rank, group.at_distance(bit), *moved, tree.is_parent(bit)),),
        )


def _reduce_rounds(piece: PhasePiece) -> Rounds:
    group, start, count, slot = piece.group, piece.start, piece.count, piece.slot
    tree, rank = _BinomialTree(group, piece.root), group.rank
    own, into = Place(piece.source, start), Place(piece.target, start)
    landing, partial = Place(SCRATCH, slot), Place(SCRATCH, slot + count)
    is_root = tree.relative == 0
    # A rank with children has a child at distance 1.
    is_leaf = ~tree.is_parent(1)
    for bit in tree.bits:
        sender, receiver = tree.is_child(bit), tree.is_parent(bit)
        parent, child = group.at_distance(-bit), group.at_distance(bit)
        complete = piece.final and bit == tree.bits[-1]
        partials = own if bit == 1 else partial, landing
        at_root = own if bit == 1 else into, landing
        inner, root = receiver & ~is_root, receiver & is_root
        yield Round(
            receives=(transfers(rank, child, SCRATCH, slot, count, receiver),),
            sends=(
                transfers(rank, parent, piece.source, start, count, sender & is_leaf),
                transfers(rank, parent, SCRATCH, partial.start, count, sender & ~is_leaf),
            ),
            local=(
                folds(rank, partials, partial, count, final=False, where=inner),
                folds(rank, at_root, into, count, final=complete, where=root),
            ),
        )


def _all_reduce_rounds(piece: PhasePiece) -> Rounds:
    piece = replace(piece, root=0)
    yield from _reduce_rounds(piece)
    yield from _broadcast_rounds(piece)


def _reduce_scratch(_size: int, count: int, _segment: int) -> int:
    return 2 * count


BROADCAST = Phase(_broadcast_rounds, copies_alone=False)
"""The phase that hands the root's array down the tree, the largest subtree first."""

REDUCE = Phase(_reduce_rounds, _reduce_scratch)
"""The phase that folds up the tree, the nearest children first, into the target at the root."""

ALL_REDUCE = Phase(_all_reduce_rounds, _reduce_scratch)
"""The phase that folds up the tree to position 0, and hands the result down."""


class _Subtrees:
    """The blocks of the subtrees of a binomial tree. A subtree consists of consecutive positions.

    These positions may go round the end of the group, from the last position to the first. Then they are
    counted on beyond the end.
    """

    def __init__(self, group: Group, root: Column | int, blocks: Blocks) -> None:
        self._n = group.size
        self._blocks = blocks
        self._end = root + np.full_like(group.at, self._n)
        zero = np.zeros_like(group.at)
        self._origin = blocks.at(zero)[0]
        last, count = blocks.at(zero + self._n - 1)
        self._total = last + count - self._origin

    def before(self, position: Column) -> Column:
        """Return how many elements lie between the block of position 0 and the block of `position`."""
        lap, at = np.divmod(position, self._n)
        elements: Column = self._blocks.at(at)[0] - self._origin + lap * self._total
        return elements

    def parts(self, first: Column, bit: int) -> Iterator[tuple[Column, Column, Column]]:
        """Yield the blocks of the subtree of `bit` positions from `first` on, in at most two parts.

        Yields
        ------
        relative, start, count : Column
            The part's first element, counted from the block of position 0 and on beyond the end; its first element
            in the array of all blocks; its number of elements.
        """
        stop = np.minimum(first + bit, self._end)
        for low, high, lap in (
            (first, np.minimum(stop, self._n), 0),
            (np.maximum(first, self._n), stop, 1),
        ):
            relative = self.before(low)
            count = np.maximum(self.before(high) - relative, 0)
            if count.any():
                yield relative, relative + self._origin - lap * self._total, count


def gather_scratch(group: Group, root: Column | int, blocks: Blocks) -> int:
    """Return the elements of scratch that `gather_rounds` needs for the largest subtree of a row."""
    tree, subtrees = _BinomialTree(group, root), _Subtrees(group, root, blocks)
    first = root + tree.relative
    stop = np.minimum(first + (tree.relative & -tree.relative), root + group.size)
    count = subtrees.before(stop) - subtrees.before(first)
    return int(np.max(count[tree.is_parent(1) & (tree.relative > 0)], initial=0))


def gather_rounds(
    group: Group, root: Column | int, blocks: Blocks, slot: int, source: Place, target: str
) -> Rounds:
    """Collect the own block of each rank, from `source`, in the root's buffer `target`.

    `blocks` lie one after the other. Inner ranks of the tree collect the blocks of their subtree in
    scratch, from `slot` on.
    """
    tree, subtrees, rank = _BinomialTree(group, root), _Subtrees(group, root, blocks), group.rank
    start, count = blocks.at(group.at)
    is_root, is_leaf = tree.relative == 0, ~tree.is_parent(1)
    first = root + tree.relative
    base = slot - subtrees.before(first)
    own = (
        copies(rank, source, Place(target, start), count, is_root),
        copies(rank, source, Place(SCRATCH, slot), count, ~is_root & ~is_leaf),
    )
    if group.size == 1:
        yield Round(local=own)
    for bit in tree.bits:
        sender, receiver = tree.is_child(bit), tree.is_parent(bit)
        parent, child = group.at_distance(-bit), group.at_distance(bit)
        sends: list[Transfers] = []
        for relative, _, part in subtrees.parts(first, bit):
            sends += [
                transfers(rank, parent, source.buffer, source.start, part, sender & is_leaf),
                transfers(rank, parent, SCRATCH, base + relative, part, sender & ~is_leaf),
            ]
        receives: list[Transfers] = []
        for relative, into, part in subtrees.parts(first + bit, bit):
            receives += [
                transfers(rank, child, SCRATCH, base + relative, part, receiver & ~is_root),
                transfers(rank, child, target, into, part, receiver & is_root),
            ]
        yield Round(tuple(receives), tuple(sends), own if bit == 1 else ())


all_reduce = ALL_REDUCE.in_pieces
broadcast = BROADCAST.in_pieces
reduce = REDUCE.in_pieces


def gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule that gathers up the tree. The blocks of a subtree move in one uncut message."""
    blocks = Listed(call.counts)
    rounds = partial(gather_rounds, group, call.root, blocks, 0, Place(SEND, 0), RECV)
    return Schedule((rounds,), gather_scratch(group, call.root, blocks))


def scatter(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule that scatters down the tree. The blocks of a subtree move in one uncut message."""
    blocks = Listed(call.counts)
    gathering = partial(gather_rounds, group, call.root, blocks, 0, Place(RECV, 0), SEND)
    return Schedule((lambda: backwards(gathering()),), gather_scratch(group, call.root, blocks))
