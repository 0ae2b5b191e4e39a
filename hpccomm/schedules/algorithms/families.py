"""Families of algorithms, each with the phases for hierarchical algorithms.

`hierarchical` and `levels` compose any family within nodes with any across them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hpccomm.schedules.algorithms import (
    binomial,
    chain,
    halving_doubling,
    pairwise,
    recursive_doubling,
    ring,
    scatter_all_gather,
    tree,
)
from hpccomm.schedules.algorithms.phases import Phase, PhasePiece, Scattering
from hpccomm.schedules.schedule import Column, Rounds


@dataclass(frozen=True, slots=True)
class PhaseFamily:
    """A phase of each kind, which go well together.

    Attributes
    ----------
    all_reduce : Phase
        Folds the source of all ranks into `RECV` of all.
    reduce : Phase
        Folds the source of all ranks into the target at the root.
    broadcast : Phase
        Hands a range of the root's target to all ranks.
    span : callable
        ``span(size)``: how many segments an array must have so that latency costs little beside
        bandwidth among `size` ranks.
    scattering : Scattering or None
        Reduce-scatter and all-gather, which trees do not have.
    """

    all_reduce: Phase
    reduce: Phase
    broadcast: Phase
    span: Callable[[int], int]
    scattering: Scattering | None = None


def _of_messages(size: int) -> int:
    """Return one segment for each message on the longest path: log2 of `size`, at least two."""
    return max(2, (size - 1).bit_length())


def _of_pipeline(depth: int) -> int:
    """Return the segments with which filling a pipeline of `depth` messages takes little time."""
    return 8 * depth


RING = PhaseFamily(
    all_reduce=ring.ALL_REDUCE,
    reduce=chain.REDUCE,
    broadcast=chain.BROADCAST,
    span=lambda size: size,
    scattering=ring.SCATTERING,
)
"""Rings; reduce and broadcast use chains."""

PAIRWISE = PhaseFamily(
    all_reduce=pairwise.ALL_REDUCE,
    reduce=pairwise.REDUCE,
    broadcast=scatter_all_gather.BROADCAST,
    span=lambda size: size,
    scattering=pairwise.SCATTERING,
)
"""Every two ranks exchange directly, one after the other; broadcast uses scatter and a ring."""

TREE = PhaseFamily(
    all_reduce=tree.ALL_REDUCE,
    reduce=tree.REDUCE,
    broadcast=tree.BROADCAST,
    span=lambda size: 2 * _of_pipeline(size.bit_length()),
)
"""Double binary trees."""

BINOMIAL = PhaseFamily(
    all_reduce=binomial.ALL_REDUCE,
    reduce=binomial.REDUCE,
    broadcast=binomial.BROADCAST,
    span=_of_messages,
)
"""Binomial trees."""

CHAIN = replace(RING, all_reduce=chain.ALL_REDUCE, span=_of_pipeline, scattering=None)
"""Chains, pipelined."""

HALVING_DOUBLING = PhaseFamily(
    all_reduce=halving_doubling.ALL_REDUCE,
    reduce=halving_doubling.REDUCE,
    broadcast=tree.BROADCAST,
    span=_of_messages,
    scattering=ring.SCATTERING,
)
"""Recursive halving and doubling; broadcast uses double trees, and `scattering` a ring."""

RECURSIVE_DOUBLING = replace(
    BINOMIAL, all_reduce=recursive_doubling.ALL_REDUCE, scattering=ring.SCATTERING
)
"""Recursive doubling; reduce and broadcast use binomial trees, and `scattering` a ring."""

SHORT = 4096
"""Elements a rank below which latency costs more than bandwidth."""


def halves_evenly(size: int, count: Column | int) -> bool:
    """Whether halving and doubling moves as few bytes as a ring, or the array is short."""
    return size & (size - 1) == 0 or int(np.max(count, initial=0)) < SHORT * size


def _balanced_rounds(piece: PhasePiece) -> Rounds:
    """Halve and double, or go round a ring."""
    evenly = halves_evenly(piece.group.size, piece.count)
    return halving_doubling.ALL_REDUCE(piece) if evenly else ring.ALL_REDUCE(piece)


def _balanced_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `_balanced_rounds` takes, of `count` and of fewer."""
    halving, around = halving_doubling.ALL_REDUCE.scratch, ring.ALL_REDUCE.scratch
    if size & (size - 1) == 0:
        return halving(size, count, segment)
    short = halving(size, min(count, SHORT * size), segment)
    return max(around(size, count, segment), short)


BALANCED = replace(
    TREE,
    all_reduce=Phase(_balanced_rounds, _balanced_scratch),
    span=lambda size: _of_messages(size) if size & (size - 1) == 0 else size,
    scattering=ring.SCATTERING,
)
"""Loads all links evenly, with as few bytes as possible. All-reduce uses halving and doubling among a
power of two of ranks and for short arrays, else a ring. Reduce and broadcast use double trees."""
