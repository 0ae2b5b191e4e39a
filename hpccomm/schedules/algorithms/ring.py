"""Ring: each rank passes on to its right neighbour what came from its left one.

All links are busy in every round, and no algorithm moves fewer bytes: (n-1)/n of the array for each
rank and phase. The price is n-1 messages one after the other. See P. Patarasuk, X. Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009.

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
reduce_scatter  n-1              (n-1)/n of the array
all_gather      n-1              (n-1)/n of the result
all_reduce      2(n-1)           2(n-1)/n of the array
==============  ===============  =======================
"""

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import dealt
from hpccomm.schedules.algorithms.partition import Blocks, Even, Listed, Range, clipped, ranges
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
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

SLOTS = 2
"""Blocks of scratch that `reduce_scatter_rounds` takes: one comes in while the other goes out."""


def reduce_scatter_rounds(
    group: Group,
    blocks: Blocks,
    target: Place,
    slot: int,
    *,
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Fold the blocks of `source` over the group, and leave the one at the own position in `target`.

    What is passed on lies in scratch from `slot`, `SLOTS` times the largest block; `source` is only
    read.
    """
    n, at, rank = group.size, group.at, group.rank
    own_start, own_count = blocks.at(at)
    if n == 1:
        yield Round(local=(copies(rank, Place(source, own_start), target, own_count),))
        return
    right, left = group.peer((at + 1) % n), group.peer((at - 1) % n)
    incoming, outgoing = slot, slot + blocks.largest
    for step in range(n - 1):
        out_start, out_count = blocks.at((at - step - 1) % n)
        into_start, into_count = blocks.at((at - step - 2) % n)
        last = step == n - 2
        buffer, start = (source, out_start) if step == 0 else (SCRATCH, outgoing)
        yield Round(
            receives=(transfers(rank, left, SCRATCH, incoming, into_count),),
            sends=(transfers(rank, right, buffer, start, out_count),),
            local=(
                folds(
                    rank,
                    (Place(SCRATCH, incoming), Place(source, into_start)),
                    target if last else Place(SCRATCH, outgoing),
                    into_count,
                    final=final and last,
                ),
            ),
        )


def all_gather_rounds(
    group: Group, blocks: Blocks, buffer: str = RECV, but: Column | int | None = None
) -> Rounds:
    """Hand round the blocks of `buffer`, of which each rank has its own.

    The position `but` has all of them, and receives none.
    """
    n, at = group.size, group.at
    right, left = group.peer((at + 1) % n), group.peer((at - 1) % n)
    takes = None if but is None else at != but
    gives = None if but is None else (at + 1) % n != but
    for step in range(n - 1):
        out_start, out_count = blocks.at((at - step) % n)
        into_start, into_count = blocks.at((at - step - 1) % n)
        yield Round(
            receives=(transfers(group.rank, left, buffer, into_start, into_count, takes),),
            sends=(transfers(group.rank, right, buffer, out_start, out_count, gives),),
        )


def all_reduce_scratch(size: int, count: int, _segment: int) -> int:
    """Return the elements of scratch that `all_reduce_rounds` takes."""
    return SLOTS * Even(0, count, size).largest


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
    """Reduce-scatter, then all-gather."""
    blocks = Even(start, count, group.size)
    own = Place(RECV, blocks.at(group.at)[0])
    yield from reduce_scatter_rounds(group, blocks, own, slot, final=final, source=source)
    yield from all_gather_rounds(group, blocks)


def all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Reduce-scatter, then all-gather, piece by piece."""
    n = group.size
    # Each rank's block of a piece is a segment.
    pieces = ranges(call.counts[0], min(tuning.segment, call.counts[0]) * n)

    def run(piece: Range, slot: int) -> Rounds:
        return all_reduce_rounds(
            group, piece.start, piece.count, slot, segment=tuning.segment, final=True
        )

    return dealt(pieces, run, tuning, all_reduce_scratch(n, pieces[0].count, tuning.segment))


def reduce_scatter(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each block goes once round the ring and is folded at each rank."""
    blocks = Listed(call.counts)
    pieces = clipped(blocks, tuning.segment)
    own = blocks.at(group.at)[0]

    def run(piece: Blocks, slot: int) -> Rounds:
        target = Place(RECV, piece.at(group.at)[0] - own)
        yield from reduce_scatter_rounds(group, piece, target, slot, final=True)

    return dealt(pieces, run, tuning, SLOTS * pieces[0].largest)


def all_gather(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Each block goes once round the ring."""
    blocks = Listed(call.counts)
    own = blocks.at(group.at)[0]

    def run(piece: Blocks, _slot: int) -> Rounds:
        start, count = piece.at(group.at)
        mine = copies(group.rank, Place(SEND, start - own), Place(RECV, start), count)
        yield Round(local=(mine,))
        yield from all_gather_rounds(group, piece)

    return dealt(clipped(blocks, tuning.segment), run, tuning, 0)
