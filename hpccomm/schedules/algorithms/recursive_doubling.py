"""Recursive doubling: ranks exchange all they have with one at distance 1, 2, 4, ...

What a rank has covers twice as many ranks after each round, so that it takes the fewest rounds. In
all_reduce the whole array is sent in each of them: for small arrays. See R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of collective communication operations in MPICH", 2005.

With n = 2^k:

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
all_reduce      k                k times the array
all_gather      k                (n-1)/n of the result
==============  ===============  =======================

Where n is not a power of two, k is log2 of the largest one below (see `power_of_two`), and there are
two more rounds: in all_reduce the array goes to a neighbour and comes back; in all_gather the block
goes there and the result comes back.
"""

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import dealt
from hpccomm.schedules.algorithms.partition import Blocks, Listed, Range, ranges
from hpccomm.schedules.algorithms.power_of_two import Core, Spans, span
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Folds,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    folds,
    transfers,
)


def all_reduce_scratch(_size: int, count: int, _segment: int) -> int:
    """Return the elements of scratch that `all_reduce_rounds` takes."""
    return count


def all_reduce_rounds(
    group: Group,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,  # noqa: ARG001 (all phases take the same)
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Exchange what has been folded so far, and fold the two in one order on both sides.

    So all ranks come to the same bits.
    """
    rank = group.rank
    given, theirs, result = Place(source, start), Place(SCRATCH, slot), Place(RECV, start)
    if group.size == 1:
        yield Round(local=(copies(rank, given, result, count),))
        return
    core = Core(group)
    # What has been folded so far, and whose it is: at first it is still what was given.
    so_far = [(given, core.active)]
    if core.extra:
        yield Round(
            receives=(transfers(rank, core.neighbour, SCRATCH, slot, count, core.speaks),),
            sends=(transfers(rank, core.neighbour, source, start, count, core.passive),),
            local=(folds(rank, (given, theirs), result, count, final=False, where=core.speaks),),
        )
        so_far = [(given, core.active & ~core.speaks), (result, core.speaks)]
    distance = 1
    while distance < core.size:
        partner = core.peer(core.number ^ distance)
        lower = core.number & distance == 0
        distance *= 2
        last = final and distance == core.size
        sends = []
        local: list[Folds] = []
        for mine, whose in so_far:
            sends.append(transfers(rank, partner, mine.buffer, start, count, whose))
            for pair, side in (((mine, theirs), lower), ((theirs, mine), ~lower)):
                local.append(folds(rank, pair, result, count, final=last, where=whose & side))
        receive = transfers(rank, partner, SCRATCH, slot, count, core.active)
        yield Round((receive,), tuple(sends), tuple(local))
        so_far = [(result, core.active)]
    if core.extra:
        yield Round(
            receives=(transfers(rank, core.neighbour, RECV, start, count, core.passive),),
            sends=(transfers(rank, core.neighbour, RECV, start, count, core.speaks),),
        )


def all_gather_rounds(group: Group, blocks: Blocks, buffer: str = RECV) -> Rounds:
    """Exchange the blocks of `buffer`, of which each rank has its own.

    The blocks must lie one after the other.
    """
    core = Core(group)
    if core.extra:
        own = blocks.at(group.at)
        theirs = blocks.at((group.at + 1) % group.size)
        yield Round(
            receives=(transfers(group.rank, core.neighbour, buffer, *theirs, core.speaks),),
            sends=(transfers(group.rank, core.neighbour, buffer, *own, core.passive),),
        )
    yield from spread_rounds(group, core, Spans(blocks, core), buffer)


def spread_rounds(group: Group, core: Core, blocks: Blocks, buffer: str) -> Rounds:
    """Exchange the blocks of those who speak, then hand all of them to those who do not.

    Parameters
    ----------
    group : Group
        All ranks.
    core : Core
        Those who speak.
    blocks : Blocks
        By number, one after the other; each has its own in `buffer`.
    buffer : str
        Where the blocks are.
    """
    rank, number = group.rank, core.number
    distance = 1
    while distance < core.size:
        partner = core.peer(number ^ distance)
        first = number - number % distance
        mine = span(blocks, first, first + distance)
        first = first ^ distance
        theirs = span(blocks, first, first + distance)
        yield Round(
            receives=(transfers(rank, partner, buffer, *theirs, core.active),),
            sends=(transfers(rank, partner, buffer, *mine, core.active),),
        )
        distance *= 2
    if core.extra:
        everything = span(blocks, 0 * number, 0 * number + core.size)
        yield Round(
            receives=(transfers(rank, core.neighbour, buffer, *everything, core.passive),),
            sends=(transfers(rank, core.neighbour, buffer, *everything, core.speaks),),
        )


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Exchange and fold, segment by segment."""
    pieces = ranges(call.counts[0], tuning.segment)

    def run(piece: Range, slot: int) -> Rounds:
        yield from all_reduce_rounds(
            group, piece.start, piece.count, slot, segment=tuning.segment, final=True
        )

    scratch = all_reduce_scratch(group.size, pieces[0].count, tuning.segment)
    return dealt(pieces, run, tuning, scratch)


def all_gather(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Exchange twice as many blocks in each round, which lie one after the other."""
    blocks = Listed(call.counts)

    def channel() -> Rounds:
        start, count = blocks.at(group.at)
        yield Round(local=(copies(group.rank, Place(SEND, 0), Place(RECV, start), count),))
        yield from all_gather_rounds(group, blocks)

    return Schedule((channel,))
