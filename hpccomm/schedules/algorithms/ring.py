"""Ring: each rank passes data from its left neighbor on to its right neighbor.

All links are busy in every round. Each rank sends (n-1)/n of the array in each phase, and no algorithm
needs fewer bytes. But the n-1 messages of a phase follow one after the other. See P. Patarasuk, X. Yuan, "Bandwidth
optimal all-reduce algorithms for clusters of workstations", 2009.

==============  ===============  =======================
collective      rounds           elements sent by a rank
==============  ===============  =======================
reduce_scatter  n-1              (n-1)/n of the array
all_gather      n-1              (n-1)/n of the result
all_reduce      2(n-1)           2(n-1)/n of the array
==============  ===============  =======================

n is the number of ranks. `ALGORITHMS` lists the three; `levels`, `ordered`, `pairwise` and `scatter_all_gather` use the
phases.
"""

from hpccomm.schedules.algorithms.partition import Blocks, Scattering, all_gather_in_pieces
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Place,
    Round,
    Rounds,
    folds,
    transfers,
)

SLOTS = 2
"""Blocks of scratch that `reduce_scatter_rounds` needs: a rank receives into one block while it sends the other."""


def reduce_scatter_rounds(
    group: Group, blocks: Blocks, target: Place, slot: int, *, final: bool, source: str = SEND
) -> Rounds:
    """Return the rounds that fold the blocks of `source` over the group.

    Each rank gets the folded block of its position in `target`. Partial folds take `SLOTS` blocks of the largest
    size in scratch, from element `slot` on. `source` is only read. `final` says that the fold completes the result.
    """
    n, at, rank = group.size, group.at, group.rank
    right, left = group.at_distance(1), group.at_distance(-1)
    incoming, outgoing = slot, slot + blocks.largest
    for step in range(n - 1):
        out_start, out_count = blocks.at((at - step - 1) % n)
        into_start, into_count = blocks.at((at - step - 2) % n)
        last = step == n - 2
        buffer, start = (source, out_start) if step == 0 else (SCRATCH, outgoing)
        both = Place(SCRATCH, incoming), Place(source, into_start)
        result = target if last else Place(SCRATCH, outgoing)
        yield Round(
            receives=(transfers(rank, left, SCRATCH, incoming, into_count),),
            sends=(transfers(rank, right, buffer, start, out_count),),
            local=(folds(rank, both, result, into_count, final=final and last),),
        )


def all_gather_rounds(
    group: Group, blocks: Blocks, buffer: str = RECV, but: Column | int | None = None
) -> Rounds:
    """Return the rounds that pass the blocks of `buffer` round the ring; each rank sends its own block first.

    The position `but` already has all blocks and receives none.
    """
    n, at = group.size, group.at
    right, left = group.at_distance(1), group.at_distance(-1)
    takes = None if but is None else at != but
    gives = None if but is None else (at + 1) % n != but
    for step in range(n - 1):
        out_start, out_count = blocks.at((at - step) % n)
        into_start, into_count = blocks.at((at - step - 1) % n)
        yield Round(
            receives=(transfers(group.rank, left, buffer, into_start, into_count, takes),),
            sends=(transfers(group.rank, right, buffer, out_start, out_count, gives),),
        )


SCATTERING = Scattering(
    reduce_scatter_rounds, all_gather_rounds, lambda _size, largest: SLOTS * largest
)
"""The reduce-scatter and the all-gather round the ring, with the scratch that they need."""

ALL_REDUCE = SCATTERING.all_reduce()
"""The phase of a reduce-scatter that an all-gather follows."""

all_reduce = ALL_REDUCE.in_pieces
reduce_scatter = SCATTERING.reduce_scatter_in_pieces()
all_gather = all_gather_in_pieces(all_gather_rounds)
