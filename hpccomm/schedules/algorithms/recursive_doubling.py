"""Recursive doubling: each rank exchanges all it has with the rank at distance 1, 2, 4, ...

After each round a rank has the data of twice the ranks, so no algorithm needs fewer rounds. An
all-reduce sends the whole array in each round, so it suits small arrays. See R. Thakur, R.
Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005.

With n = 2^k:

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
all_reduce      k                k times the array
all_gather      k                (n-1)/n of the result
==============  ===============  =======================

If n is not a power of two, k is log2 of the largest power of two below n, and there are two more rounds.
In the first, each rank beyond that power of two, a passive rank, sends its array or block to an active neighbor,
which works for both. In the last, it receives the result.

`ALGORITHMS` lists the two; `halving_doubling` uses the active ranks. `bruck` and `scatter_all_gather` use ``span``.
"""

import numpy as np

from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Phase,
    PhasePiece,
    all_gather_in_pieces,
    doublings,
)
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    Column,
    Group,
    Place,
    Round,
    Rounds,
    folds,
    transfers,
)


class ActiveRanks:
    """The active ranks of a group, and their numbers.

    With k passive ranks, the first 2k positions form pairs; the first rank of a pair is active.

    Parameters
    ----------
    group : Group
        All ranks.
    root : ndarray of int64 or int
        The position that has number 0; positions are counted from it.

    Attributes
    ----------
    group : Group
        The parameter.
    size : int
        Number of active ranks: the largest power of two that is not above the group's size.
    extra : int
        Number of passive ranks.
    passive, active : ndarray of bool
        Whether a row is a passive rank, and whether it is an active one.
    helps : ndarray of bool
        Whether a row works for a passive neighbor too.
    neighbor : ndarray of int64
        The other rank of the row's pair; without a pair, the row's own rank.
    number : ndarray of int64
        The row's number among the active ranks; a passive rank has the number of its neighbor.
    """

    def __init__(self, group: Group, root: Column | int = 0) -> None:
        n = group.size
        at: Column = (group.at - root) % n
        self.size = 1 << (n.bit_length() - 1)
        self.extra = n - self.size
        paired = at < 2 * self.extra
        self.passive = paired & (at % 2 == 1)
        self.active = ~self.passive
        self.helps = paired & self.active
        other: Column = np.where(paired, at ^ 1, at)
        self.neighbor = group.peer((other + root) % n)
        self.number = np.where(paired, at // 2, at - self.extra)
        self.group = group
        self._root = root

    def first(self, number: Column) -> Column:
        """Return the first position, counted from the root, for which `number` works."""
        position: Column = number + np.minimum(number, self.extra)
        return position

    def peer(self, number: Column) -> Column:
        """Return the rank that has `number`, for each row."""
        return self.group.peer((self.first(number) + self._root) % self.group.size)


def spans(blocks: Blocks, core: ActiveRanks) -> Blocks:
    """Return the blocks of all positions as blocks of the active ranks; each joins the blocks of one or two positions.

    The blocks must lie one after the other.
    """

    def at(number: Column) -> tuple[Column, Column]:
        return span(blocks, core.first(number), core.first(number + 1))

    return Blocks(at, blocks.largest * (2 if core.extra else 1))


def span(blocks: Blocks, first: Column, end: Column) -> tuple[Column, Column]:
    """Return first element and count of the blocks from `first` up to and without `end`; there is at least one.

    The blocks must lie one after the other.
    """
    start, _ = blocks.at(first)
    last, count = blocks.at(end - 1)
    return start, last + count - start


def _all_reduce_rounds(piece: PhasePiece) -> Rounds:
    group, start, count, slot = piece.group, piece.start, piece.count, piece.slot
    rank, source = group.rank, piece.source
    own, theirs, result = Place(source, start), Place(SCRATCH, slot), Place(RECV, start)
    core = ActiveRanks(group)
    # Pairs of the place of the fold so far, and the ranks that have it there: at first the own contribution.
    so_far = [(own, core.active)]
    if core.extra:
        yield Round(
            receives=(transfers(rank, core.neighbor, SCRATCH, slot, count, core.helps),),
            sends=(transfers(rank, core.neighbor, source, start, count, core.passive),),
            local=(folds(rank, (own, theirs), result, count, final=False, where=core.helps),),
        )
        so_far = [(own, core.active & ~core.helps), (result, core.helps)]
    for distance in doublings(core.size):
        partner = core.peer(core.number ^ distance)
        lower = core.number & distance == 0
        last = piece.final and 2 * distance == core.size
        sends, local = [], []
        for part, where in so_far:
            sends.append(transfers(rank, partner, part.buffer, start, count, where))
            for pair, side in (((part, theirs), lower), ((theirs, part), ~lower)):
                local.append(folds(rank, pair, result, count, final=last, where=where & side))
        receive = transfers(rank, partner, SCRATCH, slot, count, core.active)
        yield Round((receive,), tuple(sends), tuple(local))
        so_far = [(result, core.active)]
    if core.extra:
        yield Round(
            receives=(transfers(rank, core.neighbor, RECV, start, count, core.passive),),
            sends=(transfers(rank, core.neighbor, RECV, start, count, core.helps),),
        )


def all_gather_rounds(group: Group, blocks: Blocks) -> Rounds:
    """Return the rounds that exchange the ranks' blocks of `RECV`.

    The blocks must lie one after the other.
    """
    core = ActiveRanks(group)
    if core.extra:
        own = blocks.at(group.at)
        theirs = blocks.at((group.at + 1) % group.size)
        yield Round(
            receives=(transfers(group.rank, core.neighbor, RECV, *theirs, core.helps),),
            sends=(transfers(group.rank, core.neighbor, RECV, *own, core.passive),),
        )
    yield from spread_rounds(core, spans(blocks, core))


def spread_rounds(core: ActiveRanks, blocks: Blocks) -> Rounds:
    """Return the rounds that exchange the blocks of the active ranks, then send all blocks to the passive ranks.

    Parameters
    ----------
    core : ActiveRanks
        The active ranks.
    blocks : Blocks
        The blocks of the active ranks in `RECV`, indexed by number. They lie one after the other, and each rank
        begins with its own block.
    """
    rank, number = core.group.rank, core.number
    for distance in doublings(core.size):
        partner = core.peer(number ^ distance)
        first = number - number % distance
        own = span(blocks, first, first + distance)
        first = first ^ distance
        theirs = span(blocks, first, first + distance)
        yield Round(
            receives=(transfers(rank, partner, RECV, *theirs, core.active),),
            sends=(transfers(rank, partner, RECV, *own, core.active),),
        )
    if core.extra:
        everything = span(blocks, 0 * number, 0 * number + core.size)
        yield Round(
            receives=(transfers(rank, core.neighbor, RECV, *everything, core.passive),),
            sends=(transfers(rank, core.neighbor, RECV, *everything, core.helps),),
        )


ALL_REDUCE = Phase(_all_reduce_rounds, lambda _size, count, _segment: count)
"""The phase that exchanges and folds. Both sides fold in the same order, so that all ranks get the same bits."""

all_reduce = ALL_REDUCE.in_pieces
all_gather = all_gather_in_pieces(all_gather_rounds, cut=False)
