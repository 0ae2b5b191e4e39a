"""Scatter, then all-gather: a broadcast whose root sends the array once instead of log2 n times.

A binomial scatter gives each rank a block, and a ring passes the blocks round. It suits large arrays.
A pipelined chain or tree gets as close to the limit, but needs many segments for that. See M. Barnett,
L. Shuler, R. van de Geijn, S. Gupta, D. Payne, J. Watts, "Interprocessor collective communication
library (InterCom)", 1994.

==============  ===============  ===========================
collective      rounds           elements sent by a rank
==============  ===============  ===========================
broadcast       ⌈log2 n⌉ + n-1   at most 2(n-1)/n of the array
==============  ===============  ===========================

`ALGORITHMS` lists it.
"""

import numpy as np

from hpccomm.schedules.algorithms import ring
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Even,
    Phase,
    PhasePiece,
    doublings,
)
from hpccomm.schedules.algorithms.recursive_doubling import span
from hpccomm.schedules.schedule import Column, Group, Round, Rounds, transfers


def scatter_rounds(group: Group, root: Column | int, blocks: Blocks, buffer: str) -> Rounds:
    """Return the rounds that hand blocks down a binomial tree: a rank sends the upper half of its blocks on each time.

    Parameters
    ----------
    group : Group
        The ranks.
    root : ndarray of int64 or int
        The position that has all blocks.
    blocks : Blocks
        The blocks, indexed by position counted from the root. They lie one after the other.
    buffer : str
        The buffer of the blocks on every rank. Blocks that a rank passes on lie at their places too.
    """
    n, rank = group.size, group.rank
    relative: Column = (group.at - root) % n
    for distance in reversed(doublings(n)):
        # The upper half of 2 x distance ranks goes from the first of them to the first of that half.
        middle = relative - relative % (2 * distance) + distance
        gives = (relative % (2 * distance) == 0) & (middle < n)
        takes = relative == middle
        partner: Column = np.where(gives, middle, relative - distance)
        peer = group.peer((partner + root) % n)
        begin = np.minimum(middle, n - 1)
        half = span(blocks, begin, np.minimum(begin + distance, n))
        yield Round(
            receives=(transfers(rank, peer, buffer, *half, takes),),
            sends=(transfers(rank, peer, buffer, *half, gives),),
        )


def _broadcast_rounds(piece: PhasePiece) -> Rounds:
    group, root = piece.group, piece.root
    blocks = Even(piece.start, piece.count, group.size)
    yield from scatter_rounds(group, root, blocks, piece.target)
    # The same blocks, indexed by position and not by position counted from the root.
    from_root = Blocks(lambda at: blocks.at((at - root) % group.size), blocks.largest)
    yield from ring.all_gather_rounds(group, from_root, piece.target, but=root)


BROADCAST = Phase(_broadcast_rounds, copies_alone=False, segments=lambda size: size)
"""The phase that scatters the blocks, then passes them round to all ranks but the root, whose array is only read."""

broadcast = BROADCAST.in_pieces
