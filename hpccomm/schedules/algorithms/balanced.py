"""All-reduce that loads all links evenly, with as few bytes as possible.

Among a power of two of ranks, and for short arrays, it halves and doubles; else it goes round a ring.

Hierarchical algorithms use it across nodes.
"""

import numpy as np

from hpccomm.schedules.algorithms import halving_doubling, ring
from hpccomm.schedules.algorithms.phases import Phase, PhasePiece
from hpccomm.schedules.schedule import Column, Rounds

SHORT = 4096
"""Elements a rank below which latency costs more than bandwidth."""


def halves_evenly(size: int, count: Column | int) -> bool:
    """Whether halving and doubling moves as few bytes as a ring, or the array is short."""
    return size & (size - 1) == 0 or int(np.max(count, initial=0)) < SHORT * size


def _rounds(piece: PhasePiece) -> Rounds:
    """Halve and double, or go round a ring."""
    evenly = halves_evenly(piece.group.size, piece.count)
    return halving_doubling.ALL_REDUCE(piece) if evenly else ring.ALL_REDUCE(piece)


def _scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `_rounds` takes, of `count` and of fewer."""
    halving, around = halving_doubling.ALL_REDUCE.scratch, ring.ALL_REDUCE.scratch
    if size & (size - 1) == 0:
        return halving(size, count, segment)
    short = halving(size, min(count, SHORT * size), segment)
    return max(around(size, count, segment), short)


def span(size: int) -> int:
    """Return how many segments an array must have so that latency costs little among `size` ranks."""
    return max(2, (size - 1).bit_length()) if size & (size - 1) == 0 else size


ALL_REDUCE = Phase(_rounds, _scratch)
"""Halving and doubling among a power of two of ranks and for short arrays, else a ring."""
