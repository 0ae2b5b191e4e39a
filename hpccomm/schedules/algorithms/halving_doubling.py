"""Recursive halving and doubling: reduce-scatter over distances n/2, ..., 2, 1, then all-gather over 1, 2, ..., n/2.

In each round of the halving, two ranks share a part of the array. Each sends one half of that part to the
other, and folds the other half, which is its part in the next round. This moves as few bytes as a ring, in log2 n
rounds instead of n-1. It suits arrays of middle size, and large arrays on many ranks. See R. Rabenseifner,
"Optimization of collective reduction operations", 2004.

With n = 2^k:

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
reduce_scatter  k                (n-1)/n of the array
all_reduce      2k               2(n-1)/n of the array
reduce          2k               at most 3/2 - 1/n of it
==============  ===============  =======================

If n is not a power of two, k is log2 of the largest power of two below n (see
`recursive_doubling`), and there are two more rounds at the beginning. In the first, the ranks of a pair exchange
halves of the array, and each folds one half. In the second, one rank of the pair, the passive one, hands over the half
that it has folded. At the end the passive rank receives its block (reduce_scatter) or the array (all_reduce).

`ALGORITHMS` lists the three; `levels` uses the phase of the all-reduce.
"""

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Even,
    Listed,
    Phase,
    PhasePiece,
    doublings,
)
from hpccomm.schedules.algorithms.recursive_doubling import ActiveRanks, span, spans, spread_rounds
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
    Tuning,
    copies,
    folds,
    transfers,
)


def halving_rounds(
    core: ActiveRanks, blocks: Blocks, work: Place, slot: Column | int, *, final: bool, source: str
) -> Rounds:
    """Return the rounds that fold `source` over the group until each active rank has the block of its number.

    Parameters
    ----------
    core : ActiveRanks
        The active ranks of the group, which has more than one rank.
    blocks : Blocks
        The blocks of the active ranks, indexed by number. They lie one after the other.
    work : Place
        The place of the folded blocks: the first element of the first block; the other blocks follow. It may
        be the memory of `source`.
    slot : ndarray of int64 or int
        Offset in scratch that receives half of the array.
    final : bool
        Whether the fold completes the result, so that AVG divides.
    source : str
        The buffer that holds each rank's contribution.
    """
    rank, number = core.group.rank, core.number
    shift = work.start - blocks.at(0 * number)[0]
    incoming = Place(SCRATCH, slot)
    # Tuples of the buffer of the fold so far, its shift against the source, and the ranks that have it there.
    so_far: list[tuple[str, Column | int, Mask]] = [(source, 0, core.active)]
    if core.extra:
        half = core.size // 2
        low, low_count = span(blocks, 0 * number, 0 * number + half)
        high, high_count = span(blocks, 0 * number + half, 0 * number + core.size)
        paired = core.helps | core.passive
        part, count = np.where(core.helps, (low, low_count), (high, high_count))
        sent, sent_count = np.where(core.helps, (high, high_count), (low, low_count))
        pair = (Place(source, part), incoming)
        result = Place(work.buffer, part + shift)
        yield Round(
            receives=(transfers(rank, core.neighbor, SCRATCH, slot, count, paired),),
            sends=(transfers(rank, core.neighbor, source, sent, sent_count, paired),),
            local=(folds(rank, pair, result, count, final=False, where=paired),),
        )
        high = high + shift
        yield Round(
            receives=(transfers(rank, core.neighbor, work.buffer, high, high_count, core.helps),),
            sends=(transfers(rank, core.neighbor, work.buffer, high, high_count, core.passive),),
        )
        so_far = [(source, 0, core.active & ~core.helps), (work.buffer, shift, core.helps)]
    for distance in reversed(doublings(core.size)):
        partner = core.peer(number ^ distance)
        first = number - number % distance
        own, count = span(blocks, first, first + distance)
        first = first ^ distance
        theirs, their_count = span(blocks, first, first + distance)
        last = final and distance == 1
        result = Place(work.buffer, own + shift)
        sends, local = [], []
        for buffer, by, where in so_far:
            sends.append(transfers(rank, partner, buffer, theirs + by, their_count, where))
            pair = (Place(buffer, own + by), incoming)
            local.append(folds(rank, pair, result, count, final=last, where=where))
        receive = transfers(rank, partner, SCRATCH, slot, count, core.active)
        yield Round((receive,), tuple(sends), tuple(local))
        so_far = [(work.buffer, shift, core.active)]


def _half(_size: int, count: int, _segment: int) -> int:
    return Even(0, count, 2).largest


def _all_reduce_rounds(piece: PhasePiece) -> Rounds:
    group = piece.group
    core = ActiveRanks(group)
    blocks, result = Even(piece.start, piece.count, core.size), Place(RECV, piece.start)
    yield from halving_rounds(
        core, blocks, result, piece.slot, final=piece.final, source=piece.source
    )
    yield from spread_rounds(core, blocks)


def _reduce_rounds(piece: PhasePiece) -> Rounds:
    group, root, start, count, slot = piece.group, piece.root, piece.start, piece.count, piece.slot
    rank, is_root, target = group.rank, group.at == root, piece.target
    core = ActiveRanks(group, root)
    blocks = Even(start, count, core.size)
    work = Place(SCRATCH, slot)
    yield from halving_rounds(
        core, blocks, work, slot + count, final=piece.final, source=piece.source
    )
    number, shift = core.number, slot - start
    own_start, own_count = blocks.at(number)
    own = Place(SCRATCH, own_start + shift)
    yield Round(local=(copies(rank, own, Place(target, own_start), own_count, is_root),))
    for distance in doublings(core.size):
        partner = core.peer(number ^ distance)
        upper = number - number % (2 * distance) + distance
        begin, many = span(blocks, upper, upper + distance)
        takes = core.active & (number % (2 * distance) == 0)
        gives = core.active & (number % (2 * distance) == distance)
        yield Round(
            receives=(
                transfers(rank, partner, SCRATCH, begin + shift, many, takes & ~is_root),
                transfers(rank, partner, target, begin, many, takes & is_root),
            ),
            sends=(transfers(rank, partner, SCRATCH, begin + shift, many, gives),),
        )


def _reduce_scratch(size: int, count: int, segment: int) -> int:
    return count + _half(size, count, segment)


# The longest message is half of a piece. It is one segment, so a piece has two.
ALL_REDUCE = Phase(_all_reduce_rounds, _half, segments=lambda _size: 2)
"""The phase that halves until each rank has folded a block, then doubles until all ranks have all blocks."""

REDUCE = Phase(_reduce_rounds, _reduce_scratch, segments=lambda _size: 2)
"""The phase that halves until each rank has folded a block, then collects the blocks along a binomial tree."""


all_reduce = ALL_REDUCE.in_pieces
reduce = REDUCE.in_pieces


def reduce_scatter(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule that halves the whole array, uncut: the halves of pieces would not lie one after the other.

    Scratch holds the fold so far and the received half. If blocks are uneven, that half may have all elements.
    """
    n, at, rank = group.size, group.at, group.rank
    blocks, total = Listed(call.counts), sum(call.counts)

    def channel() -> Rounds:
        start, count = blocks.at(at)
        if n == 1:
            yield Round(local=(copies(rank, Place(SEND, start), Place(RECV, 0), count),))
            return
        core = ActiveRanks(group)
        of_active = spans(blocks, core)
        work = Place(SCRATCH, 0)
        yield from halving_rounds(core, of_active, work, total, final=True, source=SEND)
        theirs, their_count = blocks.at((at + 1) % n)
        own = copies(rank, Place(SCRATCH, start), Place(RECV, 0), count, core.active)
        yield Round(
            receives=(transfers(rank, core.neighbor, RECV, 0, count, core.passive),),
            sends=(transfers(rank, core.neighbor, SCRATCH, theirs, their_count, core.helps),),
            local=(own,),
        )

    return Schedule((channel,), 2 * total if n > 1 else 0)
