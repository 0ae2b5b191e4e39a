"""Bruck: all-gather and all-to-all in ⌈log2 n⌉ rounds for any n.

In round k each rank sends to the rank 2^k away the blocks that it still needs, or has to pass on. All-gather
moves as few bytes as a ring, and suits small and middle-sized blocks. All-to-all moves each block up to
⌈log2 n⌉ times, and suits small blocks. See J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby,
"Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.

==============  ===============  ==========================
collective      rounds           elements sent by a rank
==============  ===============  ==========================
all_gather      ⌈log2 n⌉         (n-1)/n of the result
all_to_all      ⌈log2 n⌉         about ⌈log2 n⌉/2 times its array
==============  ===============  ==========================

In all-gather every block is received at its final place, so that no rotation is needed in the end.
A run of blocks that goes round the end of the result takes two messages.

`ALGORITHMS` lists both.
"""

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.partition import Blocks, all_gather_in_pieces, doublings
from hpccomm.schedules.algorithms.recursive_doubling import span
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Copies,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Transfers,
    Tuning,
    copies,
    transfers,
)


def all_gather_rounds(group: Group, blocks: Blocks) -> Rounds:
    """Return the rounds in which each rank gets the blocks of the rank 1, 2, 4, ... further on.

    Each round doubles the number of blocks that a rank has. The blocks must lie one after the other.
    """
    n, at = group.size, group.at
    have = 1
    while have < n:
        more = min(have, n - have)
        of, to = (at + have) % n, (at - have) % n
        yield Round(
            receives=_around(group, group.peer(of), blocks, of, more),
            sends=_around(group, group.peer(to), blocks, at, more),
        )
        have += more


def _around(
    group: Group, peer: Column, blocks: Blocks, first: Column, number: int
) -> tuple[Transfers, Transfers]:
    """Return the messages with `number` blocks from `first` on, going round from the last block to the first."""
    n, rank = group.size, group.rank
    end = np.minimum(first + number, n)
    over = first + number - end
    some = over > 0
    # A span has at least one block, so `some` drops the second message of ranks whose blocks do not go round.
    return (
        transfers(rank, peer, RECV, *span(blocks, first, end)),
        transfers(rank, peer, RECV, *span(blocks, 0 * first, np.maximum(over, 1)), some),
    )


all_gather = all_gather_in_pieces(all_gather_rounds, cut=False)
"""The build of the all-gather, which does not cut the blocks: they must lie one after the other."""


def all_to_all(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule that passes on, in round k, all blocks that go a distance with bit k set.

    Blocks lie in scratch in the order of the distance that they go. The blocks of a round are packed one behind
    the other and sent; the received blocks take their places.
    """
    n, at, rank = group.size, group.at, group.rank
    count = call.counts[0]
    packed = n * count
    incoming = packed + n // 2 * count

    def channel() -> Rounds:
        yield Round(local=_turn(rank, at, n, count))
        for distance in doublings(n):
            # Runs of blocks whose distance has the bit; the last run may be shorter.
            first = np.arange(distance, n, 2 * distance, dtype=np.int64)
            length = np.minimum(first + distance, n) - first
            behind = np.cumsum(length) - length
            rows = np.repeat(rank, len(first))
            run, many, row = (np.tile(each * count, len(rank)) for each in (first, length, behind))
            total = int(length.sum()) * count
            pack = copies(rows, Place(SCRATCH, run), Place(SCRATCH, packed + row), many)
            unpack = copies(rows, Place(SCRATCH, incoming + row), Place(SCRATCH, run), many)
            to, of = group.at_distance(distance), group.at_distance(-distance)
            yield Round(local=(pack,))
            yield Round(
                receives=(transfers(rank, of, SCRATCH, incoming, total),),
                sends=(transfers(rank, to, SCRATCH, packed, total),),
                local=(unpack,),
            )
        yield Round(local=(_turn_back(rank, at, n, count),))

    return Schedule((channel,), 2 * n * count)


def _turn(rank: Column, at: Column, n: int, count: int) -> tuple[Copies, Copies]:
    """Return the copies that put the block for each rank to the place of the rank's distance."""
    before = Place(SCRATCH, (n - at) * count)
    return (
        copies(rank, Place(SEND, at * count), Place(SCRATCH, 0), (n - at) * count),
        copies(rank, Place(SEND, 0), before, at * count),
    )


def _turn_back(rank: Column, at: Column, n: int, count: int) -> Copies:
    """Return the copies that put the block received from each distance to the place of its rank."""
    distance = np.tile(np.arange(n, dtype=np.int64), len(rank))
    of = (np.repeat(at, n) - distance) % n
    rows = np.repeat(rank, n)
    return copies(rows, Place(SCRATCH, distance * count), Place(RECV, of * count), count)
