"""Ranks in two levels: the ranks of one node, and the ranks at the same place of all nodes.

`hierarchical` groups ranks by it. A rank's place is its position among the ranks of its node. Across nodes the
all-reduce loads all links evenly, with as few bytes as possible. It halves and doubles if the number of nodes is a
power of two, or the array is short; else it goes round a ring.

All-gather and reduce-scatter work on the blocks of ranks. The owners of a node, its first ranks, share the blocks of
all its ranks. With k owners, an owner has its own block and the blocks of the ranks k, 2k, ... places further on. The
first block of each owner is in lap 0, the second in lap 1, and so on: in a lap each owner has at most one block of its
node. The owners at the same place of all nodes gather or fold these blocks among themselves, so that each node has
each block of the lap on one owner. After a gather across nodes, the ranks of each node gather the blocks of the lap;
before a fold across nodes, they fold them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hpccomm.schedules.algorithms import halving_doubling, ring
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Listed,
    Phase,
    PhasePiece,
    Range,
    clipped,
    even,
    ranges,
    side_by_side,
)
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Mask,
    Place,
    Rounds,
    Tuning,
)
from hpccomm.topology import Topology

SHORT = 4096
"""Elements per rank below which latency costs more than bandwidth."""


def halves_evenly(size: int, count: Column | int) -> bool:
    """Return whether halving and doubling moves as few bytes as a ring among `size` ranks, or the array is short."""
    return size & (size - 1) == 0 or int(np.max(count, initial=0)) < SHORT * size


def _rounds(piece: PhasePiece) -> Rounds:
    """Return the rounds that halve and double, or go round a ring."""
    evenly = halves_evenly(piece.group.size, piece.count)
    return halving_doubling.ALL_REDUCE(piece) if evenly else ring.ALL_REDUCE(piece)


def _scratch(size: int, count: int, segment: int) -> int:
    """Return the elements of scratch that `_rounds` takes for `count` elements or fewer."""
    halving, around = halving_doubling.ALL_REDUCE.scratch, ring.ALL_REDUCE.scratch
    if size & (size - 1) == 0:
        return halving(size, count, segment)
    short = halving(size, min(count, SHORT * size), segment)
    return max(around(size, count, segment), short)


def least_segments(size: int) -> int:
    """Return the least number of segments of an array with which latency costs little among `size` ranks."""
    return max(2, (size - 1).bit_length()) if size & (size - 1) == 0 else size


BALANCED = Phase(_rounds, _scratch)
"""The all-reduce across nodes: halving and doubling for a power of two of ranks and for short arrays, else a ring."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The ranks of each node, as columns.

    Attributes
    ----------
    node : Column
        The node of each rank.
    local : Column
        The place of each rank: its position among the ranks of its node, in rank order.
    sizes : Column
        The number of ranks of each node.
    """

    node: Column
    local: Column
    sizes: Column
    _ranks: Column
    _first: Column

    def rank(self, node: Column, local: Column | int) -> Column:
        """Return the rank at place `local` of a node; the node must have such a place."""
        ranks: Column = self._ranks[self._first[node] + local]
        return ranks

    def nodes(self, rank: Column, wanted: Mask) -> tuple[Group, ...]:
        """Return nodes as groups; all nodes of one size form one `Group`.

        Parameters
        ----------
        rank : Column
            The ranks whose program is wanted.
        wanted : ndarray of bool
            Whether to include each node.
        """
        groups = []
        for size in np.unique(self.sizes[wanted]).tolist():
            alike = np.flatnonzero(wanted & (self.sizes == size))
            members = self.rank(alike[:, None], np.arange(size, dtype=np.int64))
            node = self.node[rank]
            chosen = wanted[node] & (self.sizes[node] == size)
            which = np.searchsorted(alike, node[chosen])
            groups.append(Group(rank[chosen], self.local[rank[chosen]], size, members, which))
        return tuple(groups)

    def across(self, rank: Column, members: Column) -> Group:
        """Return groups that have a member on each node, with rows for their ranks among `rank`.

        Parameters
        ----------
        rank : Column
            The ranks whose program is wanted.
        members : ndarray of int64, shape (groups, nodes)
            The rank of each group on each node.
        """
        group_of = np.full(len(self.node), -1, np.int64)
        group_of[members] = np.arange(len(members), dtype=np.int64)[:, None]
        rows = rank[group_of[rank] >= 0]
        return Group(rows, self.node[rows], members.shape[1], members, group_of[rows])


@lru_cache(maxsize=8)
def placement(topology: Topology) -> Placement:
    """Return the columns of `topology`."""
    node = np.array(topology.node_of, np.int64)
    sizes = np.bincount(node).astype(np.int64)
    first = np.cumsum(sizes) - sizes
    ranks = np.argsort(node, kind="stable").astype(np.int64)
    local = np.empty_like(node)
    local[ranks] = np.arange(len(node), dtype=np.int64) - np.repeat(first, sizes)
    return Placement(node, local, sizes, ranks, first)


def table_blocks(start: Column, count: Column, which: Column | int, largest: int) -> Blocks:
    """Return blocks at any places, given by tables.

    Parameters
    ----------
    start, count : ndarray of int64, shape (tables, positions)
        First element and count of each block.
    which : Column or int
        The table of each row.
    largest : int
        Elements of the largest block.
    """
    return Blocks(lambda at: (start[which, at], count[which, at]), largest)


class Levels:
    """The two levels of the ranks, with methods that run phases in each level.

    Parameters
    ----------
    group : Group
        All ranks, with rows for some or all of them.
    tuning : Tuning
        Its topology has the node of each rank; None is one node.

    Attributes
    ----------
    rank : Column
        The ranks whose program is wanted.
    segment : int
        Elements to move at a time.
    place : Placement
        The node and place of all ranks.
    num_nodes : int
        Number of nodes.
    largest : int
        Ranks of the largest node.
    owners : int
        The number of owners of each node, which are its first ranks: as many as the smallest node has ranks.
    num_laps : int
        Most blocks of an owner, if the owners share the blocks of their node's ranks.
    scattering : Scattering or None
        The phases by which the ranks of a node share the array; None if one rank has the whole array.
    slices : Group
        The owners; those at the same place of their nodes form a group.
    which : Column
        The place of each owner.
    """

    def __init__(self, group: Group, tuning: Tuning) -> None:
        self.rank = group.rank
        self.segment = tuning.segment
        self.place = placement(tuning.topology or Topology((0,) * group.size))
        self.num_nodes = len(self.place.sizes)
        self.largest = int(self.place.sizes.max())
        self.owners = int(self.place.sizes.min())
        self.num_laps = -(-self.largest // self.owners)
        self.scattering = ring.SCATTERING if self.owners > 1 else None
        self.slices = self._across(self.owners)
        self.which = self.slices.meetings()[1]

    @property
    def firsts(self) -> Group:
        """The first rank of each node."""
        return self._across(1)

    def _across(self, owners: int) -> Group:
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        locals_ = np.arange(owners, dtype=np.int64)[:, None]
        return self.place.across(self.rank, self.place.rank(nodes, locals_))

    def interleaved(self) -> Group:
        """Return the group of all ranks ordered by place, and within a place by node.

        If all nodes have the same size, ranks at one distance are on one node, or on nodes at one distance:
        each node then exchanges with one other node at a time.
        """
        place = self.place
        order = np.lexsort((place.node, place.local)).astype(np.int64)
        position = np.empty_like(order)
        position[order] = np.arange(len(order), dtype=np.int64)
        which = np.zeros(len(self.rank), np.int64)
        return Group(self.rank, position[self.rank], len(order), order[np.newaxis], which)

    def of(self, rank: int) -> tuple[int, int]:
        """Return the node of `rank` and its place there."""
        return int(self.place.node[rank]), int(self.place.local[rank])

    def pieces(self, count: int) -> list[Range]:
        """Cut the array of `count` elements into pieces so large that each slice of a piece keeps the links busy."""
        least = least_segments(self.num_nodes)
        if self.owners == 1:
            least = max(least, self.largest)
        return ranges(count, self.segment * least * self.owners)

    def clipped(self, blocks: Blocks) -> list[Blocks]:
        """Cut blocks into segments, unless one rank of a node handles the whole array."""
        one_has_all = self.owners == 1 and (self.largest > 1 or self.num_nodes == 1)
        return [blocks] if one_has_all else clipped(blocks, self.segment)

    def slice(self, count: int) -> int:
        """Return the elements of the largest slice of `count` elements."""
        return -(-count // self.owners)

    def cut(self, piece: Range) -> Blocks:
        """Cut a piece into the slices of a node's ranks, indexed by place; ranks that are not owners get empty ones."""
        some = even(piece.count, self.owners)
        return Listed((*some, *(0,) * (self.largest - self.owners)), piece.start)

    def each_node(
        self, phase: Callable[[Group], Rounds], *, only: int = -1, but: int = -1
    ) -> Rounds:
        """Return the rounds of `phase` on all nodes at the same time; only on the node `only`, or on all but `but`.

        They include nodes without a wanted program, so that all programs have the same number of rounds.
        """
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        wanted = nodes != but if only < 0 else nodes == only
        return side_by_side(*map(phase, self.place.nodes(self.rank, wanted)))

    def each_slice(
        self,
        phase: Phase,
        slices: Blocks,
        slot: int = 0,
        *,
        root: int = 0,
        source: str = SEND,
        target: str = RECV,
        lying: int | None = None,
    ) -> Rounds:
        """Return the rounds of `phase` across the nodes, on the owners of each slice. There are none for a single node.

        The phase runs on the slices of one count at a time, so that its use of scratch does not depend on the ranks
        whose program is wanted.

        Parameters
        ----------
        phase : Phase
            The phase to run.
        slices : Blocks
            The slices, indexed by place.
        slot, root, source, target
            As in `PhasePiece`; the root is a node.
        lying : int or None
            First element of every slice in the buffers; None if each slice lies at its offset in the array.
        """
        if self.num_nodes == 1:
            return iter(())
        counts = slices.at(np.arange(self.owners, dtype=np.int64))[1]
        start, count = slices.at(self.which)
        runs = []
        for each in np.unique(counts[counts > 0]).tolist():
            alike = count == each
            begin = start[alike] if lying is None else lying
            owners = self._owners(alike)
            piece = PhasePiece(owners, begin, each, slot, self.segment, root, source, target)
            runs.append(phase(piece))
        return side_by_side(*runs)

    def slice_scratch(self, phase: Phase, count: int) -> int:
        """Return the elements of scratch that `phase` takes on the slices of `count` elements."""
        return phase.scratch(self.num_nodes, self.slice(count), self.segment)

    def _owners(self, where: Mask) -> Group:
        group = self.slices
        return replace(group, rank=group.rank[where], at=group.at[where], which=self.which[where])


@dataclass(frozen=True, slots=True, eq=False)
class Lap:
    """One lap of the blocks of all ranks: at most one for each owner of each node.

    Attributes
    ----------
    number : int
        The number of the lap, from 0.
    rank : ndarray of int64, shape (places, nodes)
        The rank of each block, indexed by the place of the block's owner and by node.
    start, count : ndarray of int64, shape (places, nodes)
        First element and count of each block; the count is 0 for a missing block, and at places without an owner.
    largest : int
        Elements of the largest of all blocks.
    """

    number: int
    rank: Column
    start: Column
    count: Column
    largest: int

    def packed(self, slot: int) -> "Lap":
        """Return the lap with its blocks packed in scratch: from `slot` on first those of lap 0 by node, then those of lap 1, ..."""
        nodes = self.start.shape[1]
        number = self.number * nodes + np.arange(nodes, dtype=np.int64)
        return replace(self, start=np.broadcast_to(slot + number * self.largest, self.start.shape))

    def own(self, levels: Levels) -> tuple[Column, Column, Column]:
        """Return, for each owner, the rank of its block, and the block's first element and count."""
        own = levels.which, levels.slices.at
        return self.rank[own], self.start[own], self.count[own]

    def across(self, levels: Levels) -> Blocks:
        """Return the blocks of each owner's group, indexed by node."""
        return table_blocks(self.start, self.count, levels.which, self.largest)

    def of_node(self, node: int) -> Blocks:
        """Return the blocks of a node, indexed by the owner's place."""
        return table_blocks(self.start.T, self.count.T, node, self.largest)


def laps_of(levels: Levels, blocks: Blocks) -> list[Lap]:
    """Return the laps of the blocks of all ranks; `blocks` has the places, indexed by rank."""
    place, owners = levels.place, levels.owners
    nodes = np.arange(levels.num_nodes, dtype=np.int64)
    at = np.arange(levels.largest, dtype=np.int64)[:, None]
    every = []
    for number in range(levels.num_laps):
        local = number * owners + at
        present = (at < owners) & (local < place.sizes)
        rank = place.rank(nodes, np.where(present, local, 0))
        start, count = blocks.at(rank)
        every.append(Lap(number, rank, start, np.where(present, count, 0), blocks.largest))
    return every


def gathered_across(levels: Levels, laps: list[Lap]) -> Rounds:
    """Return the rounds that send the owners' blocks of `RECV` to the owners at the same place of all nodes."""
    across = (lap.across(levels) for lap in laps)
    return side_by_side(*(ring.all_gather_rounds(levels.slices, blocks) for blocks in across))


def folded_across(levels: Levels, lying: list[Lap], source: str, work: int) -> Rounds:
    """Return the rounds that fold blocks across the nodes, into scratch of each block's owner.

    Parameters
    ----------
    levels : Levels
        The ranks in two levels.
    lying : list of Lap
        The places of the blocks, which are the same in `source` and in scratch.
    source : str
        The buffer with the blocks that each node has folded.
    work : int
        Offset in scratch of the `across_scratch` elements that the fold uses.
    """

    def fold(lap: Lap) -> Rounds:
        slot = work + lap.number * ring.SCATTERING.scratch(levels.num_nodes, lap.largest)
        blocks, target = lap.across(levels), Place(SCRATCH, lap.own(levels)[1])
        return ring.reduce_scatter_rounds(
            levels.slices, blocks, target, slot, final=True, source=source
        )

    return side_by_side(*map(fold, lying))


def across_scratch(levels: Levels, largest: int) -> int:
    """Return the elements that `folded_across` needs for blocks of at most `largest` elements."""
    return levels.num_laps * ring.SCATTERING.scratch(levels.num_nodes, largest)
