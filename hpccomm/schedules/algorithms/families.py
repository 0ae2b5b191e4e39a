"""Families of algorithms: what each gives to a composed one.

The phases of all families have the same parameters, so that any two families can be composed.
`start` and `count` may be columns: then each row has its own range, and the rows of a group the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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
from hpccomm.schedules.algorithms.partition import Blocks
from hpccomm.schedules.schedule import RECV, SEND, Column, Group, Place, Rounds

Scratch = Callable[[int, int, int], int]
"""``scratch(size, count, segment)``: elements of scratch that a phase takes in groups of `size` ranks
with ranges of at most `count` elements."""


class AllReduce(Protocol):
    """Fold `source` of all ranks into `RECV` of all, at the same place."""

    def __call__(
        self,
        group: Group,
        start: Column | int,
        count: Column | int,
        slot: int,
        *,
        segment: int,
        final: bool,
        source: str = SEND,
    ) -> Rounds:
        """Give the rounds; scratch is used from `slot` on."""
        ...


class Reduce(Protocol):
    """Fold `source` of all ranks into `target` at the position `root`, at the same place."""

    def __call__(
        self,
        group: Group,
        root: Column | int,
        start: Column | int,
        count: Column | int,
        slot: int,
        *,
        segment: int,
        final: bool,
        target: str,
        source: str = SEND,
    ) -> Rounds:
        """Give the rounds; scratch is used from `slot` on."""
        ...


class Broadcast(Protocol):
    """Hand a range of `buffer` at the position `root` to all, at the same place."""

    def __call__(
        self,
        group: Group,
        root: Column | int,
        start: Column | int,
        count: Column | int,
        *,
        segment: int,
        buffer: str = RECV,
    ) -> Rounds:
        """Give the rounds."""
        ...


class ReduceScatter(Protocol):
    """Fold the blocks of `source`, and leave the one at the own position in `target`."""

    def __call__(
        self,
        group: Group,
        blocks: Blocks,
        target: Place,
        slot: int,
        *,
        final: bool,
        source: str = SEND,
    ) -> Rounds:
        """Give the rounds; scratch is used from `slot` on."""
        ...


class AllGather(Protocol):
    """Hand the own block of `buffer` to all."""

    def __call__(self, group: Group, blocks: Blocks, buffer: str = RECV) -> Rounds:
        """Give the rounds."""
        ...


@dataclass(frozen=True, slots=True)
class Scattering:
    """The two phases that leave each rank its block, and collect the blocks again.

    The blocks may lie anywhere.

    Attributes
    ----------
    reduce_scatter, all_gather : callable
        The phases.
    scratch : callable
        Elements that `reduce_scatter` takes, from the largest block's.
    """

    reduce_scatter: ReduceScatter
    all_gather: AllGather
    scratch: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Family:
    """A way to carry out each phase.

    Attributes
    ----------
    all_reduce, reduce, broadcast : callable
        The phases.
    all_reduce_scratch, reduce_scratch : callable
        What they take.
    span : callable
        ``span(size)``: segments of an array with which the messages that follow one another among
        `size` ranks cost little beside their bytes.
    scattering : Scattering or None
        Two more phases, which a tree has not.
    """

    all_reduce: AllReduce
    all_reduce_scratch: Scratch
    reduce: Reduce
    reduce_scratch: Scratch
    broadcast: Broadcast
    span: Callable[[int], int]
    scattering: Scattering | None = None


def _of_messages(size: int) -> int:
    """Return as many segments as messages follow one another, log2 of `size`; two at least."""
    return max(2, (size - 1).bit_length())


def _of_pipeline(depth: int) -> int:
    """Return so many segments that a pipeline of `depth` messages spends little on filling."""
    return 8 * depth


_ROUND_A_RING = Scattering(
    ring.reduce_scatter_rounds, ring.all_gather_rounds, lambda largest: ring.SLOTS * largest
)

RING = Family(
    all_reduce=ring.all_reduce_rounds,
    all_reduce_scratch=ring.all_reduce_scratch,
    reduce=chain.reduce_rounds,
    reduce_scratch=chain.reduce_scratch,
    broadcast=chain.broadcast_rounds,
    span=lambda size: size,
    scattering=_ROUND_A_RING,
)
"""Rings; from a root and to it, chains."""

PAIRWISE = Family(
    all_reduce=pairwise.all_reduce_rounds,
    all_reduce_scratch=pairwise.all_reduce_scratch,
    reduce=pairwise.reduce_rounds,
    reduce_scratch=pairwise.reduce_scratch,
    broadcast=scatter_all_gather.broadcast_rounds,
    span=lambda size: size,
    scattering=Scattering(
        pairwise.reduce_scatter_rounds, pairwise.all_gather_rounds, lambda largest: largest
    ),
)
"""Everyone with everyone, one after the other; broadcast goes round a ring."""

TREE = Family(
    all_reduce=tree.all_reduce_rounds,
    all_reduce_scratch=tree.all_reduce_scratch,
    reduce=tree.reduce_rounds,
    reduce_scratch=tree.reduce_scratch,
    broadcast=tree.broadcast_rounds,
    span=lambda size: 2 * _of_pipeline(size.bit_length()),
)
"""Double binary trees."""

BINOMIAL = Family(
    all_reduce=binomial.all_reduce_rounds,
    all_reduce_scratch=binomial.all_reduce_scratch,
    reduce=binomial.reduce_rounds,
    reduce_scratch=binomial.reduce_scratch,
    broadcast=binomial.broadcast_rounds,
    span=_of_messages,
)
"""Binomial trees."""

CHAIN = Family(
    all_reduce=chain.all_reduce_rounds,
    all_reduce_scratch=chain.all_reduce_scratch,
    reduce=chain.reduce_rounds,
    reduce_scratch=chain.reduce_scratch,
    broadcast=chain.broadcast_rounds,
    span=_of_pipeline,
)
"""Chains, pipelined."""

HALVING_DOUBLING = Family(
    all_reduce=halving_doubling.all_reduce_rounds,
    all_reduce_scratch=halving_doubling.all_reduce_scratch,
    reduce=halving_doubling.reduce_rounds,
    reduce_scratch=halving_doubling.reduce_scratch,
    broadcast=tree.broadcast_rounds,
    span=_of_messages,
    scattering=_ROUND_A_RING,
)
"""Recursive halving and doubling; broadcast takes trees, and blocks that lie anywhere a ring."""

RECURSIVE_DOUBLING = Family(
    all_reduce=recursive_doubling.all_reduce_rounds,
    all_reduce_scratch=recursive_doubling.all_reduce_scratch,
    reduce=binomial.reduce_rounds,
    reduce_scratch=binomial.reduce_scratch,
    broadcast=binomial.broadcast_rounds,
    span=_of_messages,
    scattering=_ROUND_A_RING,
)
"""Recursive doubling; a root takes binomial trees, and blocks that lie anywhere a ring."""

SHORT = 4096
"""Elements for each rank below which messages one after the other count more than the array."""


def halves_evenly(size: int, count: Column | int) -> bool:
    """Tell whether halving and doubling moves as little as a ring, or too little is left to move."""
    return size & (size - 1) == 0 or int(np.max(count, initial=0)) < SHORT * size


def _balanced_all_reduce(
    group: Group,
    start: Column | int,
    count: Column | int,
    slot: int,
    *,
    segment: int,
    final: bool,
    source: str = SEND,
) -> Rounds:
    """Halve and double, or go round a ring."""
    family = HALVING_DOUBLING if halves_evenly(group.size, count) else RING
    return family.all_reduce(group, start, count, slot, segment=segment, final=final, source=source)


def _balanced_all_reduce_scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `_balanced_all_reduce` takes, of `count` and of fewer."""
    if size & (size - 1) == 0:
        return halving_doubling.all_reduce_scratch(size, count, segment)
    short = halving_doubling.all_reduce_scratch(size, min(count, SHORT * size), segment)
    return max(ring.all_reduce_scratch(size, count, segment), short)


BALANCED = Family(
    all_reduce=_balanced_all_reduce,
    all_reduce_scratch=_balanced_all_reduce_scratch,
    reduce=tree.reduce_rounds,
    reduce_scratch=tree.reduce_scratch,
    broadcast=tree.broadcast_rounds,
    span=lambda size: _of_messages(size) if size & (size - 1) == 0 else size,
    scattering=_ROUND_A_RING,
)
"""What keeps all links busy alike, and no link with more than the least: halving and doubling among a
power of two of ranks, else a ring, unless the array is short; double trees from a root and to it."""
