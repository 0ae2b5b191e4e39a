"""Families of algorithms: what each gives to a composed one."""

from collections.abc import Callable
from dataclasses import dataclass

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
class Family:
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
        ``span(size)``: segments of an array with which the messages that follow one another among
        `size` ranks cost little beside their bytes.
    scattering : Scattering or None
        Two more phases, which a tree does not have.
    """

    all_reduce: Phase
    reduce: Phase
    broadcast: Phase
    span: Callable[[int], int]
    scattering: Scattering | None = None


def _of_messages(size: int) -> int:
    """Return as many segments as messages follow one another, log2 of `size`; two at least."""
    return max(2, (size - 1).bit_length())


def _of_pipeline(depth: int) -> int:
    """Return so many segments that a pipeline of `depth` messages spends little on filling."""
    return 8 * depth


RING = Family(
    all_reduce=ring.ALL_REDUCE,
    reduce=chain.REDUCE,
    broadcast=chain.BROADCAST,
    span=lambda size: size,
    scattering=ring.SCATTERING,
)
"""Rings; from a root and to it, chains."""

PAIRWISE = Family(
    all_reduce=pairwise.ALL_REDUCE,
    reduce=pairwise.REDUCE,
    broadcast=scatter_all_gather.BROADCAST,
    span=lambda size: size,
    scattering=pairwise.SCATTERING,
)
"""Everyone with everyone, one after the other; broadcast goes round a ring."""

TREE = Family(
    all_reduce=tree.ALL_REDUCE,
    reduce=tree.REDUCE,
    broadcast=tree.BROADCAST,
    span=lambda size: 2 * _of_pipeline(size.bit_length()),
)
"""Double binary trees."""

BINOMIAL = Family(
    all_reduce=binomial.ALL_REDUCE,
    reduce=binomial.REDUCE,
    broadcast=binomial.BROADCAST,
    span=_of_messages,
)
"""Binomial trees."""

CHAIN = Family(
    all_reduce=chain.ALL_REDUCE,
    reduce=chain.REDUCE,
    broadcast=chain.BROADCAST,
    span=_of_pipeline,
)
"""Chains, pipelined."""

HALVING_DOUBLING = Family(
    all_reduce=halving_doubling.ALL_REDUCE,
    reduce=halving_doubling.REDUCE,
    broadcast=tree.BROADCAST,
    span=_of_messages,
    scattering=ring.SCATTERING,
)
"""Recursive halving and doubling; broadcast takes trees, and blocks that lie anywhere a ring."""

RECURSIVE_DOUBLING = Family(
    all_reduce=recursive_doubling.ALL_REDUCE,
    reduce=binomial.REDUCE,
    broadcast=binomial.BROADCAST,
    span=_of_messages,
    scattering=ring.SCATTERING,
)
"""Recursive doubling; a root takes binomial trees, and blocks that lie anywhere a ring."""

SHORT = 4096
"""Elements for each rank below which messages one after the other count more than the array."""


def halves_evenly(size: int, count: Column | int) -> bool:
    """Tell whether halving and doubling moves as little as a ring, or too little is left to move."""
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


BALANCED = Family(
    all_reduce=Phase(_balanced_rounds, _balanced_scratch),
    reduce=tree.REDUCE,
    broadcast=tree.BROADCAST,
    span=lambda size: _of_messages(size) if size & (size - 1) == 0 else size,
    scattering=ring.SCATTERING,
)
"""What keeps all links busy alike, and no link with more than the least: halving and doubling among a
power of two of ranks, else a ring, unless the array is short; double trees from a root and to it."""
