"""Ranks in two levels: the ranks of one node, and the ranks at the same place of all nodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hpccomm.schedules.algorithms.channels import side_by_side
from hpccomm.schedules.algorithms.partition import Blocks, Listed, Range, even
from hpccomm.schedules.schedule import Column, Group, Mask, Rounds
from hpccomm.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Which ranks lie on which node, as columns.

    Attributes
    ----------
    node : Column
        For each rank, its node.
    local : Column
        For each rank, its place among the ranks of its node, by rank.
    sizes : Column
        For each node, how many ranks it has.
    """

    node: Column
    local: Column
    sizes: Column
    _ranks: Column
    _first: Column

    def rank(self, node: Column, local: Column | int) -> Column:
        """Return the rank at a place of a node that has such a place."""
        ranks: Column = self._ranks[self._first[node] + local]
        return ranks

    def nodes(self, rank: Column, wanted: Mask) -> tuple[Group, ...]:
        """Return nodes as groups, those of one size together.

        Parameters
        ----------
        rank : Column
            The ranks whose program is wanted.
        wanted : ndarray of bool
            Which nodes to return.
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
        """Return those in `rank` that are in one of the groups with a member on each node.

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


class FirstBlocks:
    """Only the first `owners` positions of a group have a block, as in `blocks`."""

    def __init__(self, blocks: Blocks, owners: int) -> None:
        self._blocks = blocks
        self._owners = owners
        self.largest = blocks.largest

    def at(self, position: Column) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        start, count = self._blocks.at(np.minimum(position, self._owners - 1))
        return start, np.where(position < self._owners, count, 0)


class TableBlocks:
    """Blocks that lie anywhere.

    Parameters
    ----------
    start, count : ndarray of int64, shape (tables, positions)
        Where each block lies.
    which : Column or int
        For each row its table.
    largest : int
        Elements of the largest block.
    """

    def __init__(self, start: Column, count: Column, which: Column | int, largest: int) -> None:
        self._start = start
        self._count = count
        self._which = which
        self.largest = largest

    def at(self, position: Column) -> tuple[Column, Column]:
        """Return first element and count of the block at `position`, for each row."""
        return self._start[self._which, position], self._count[self._which, position]


class Levels:
    """The two levels of the ranks whose program is wanted.

    Parameters
    ----------
    group : Group
        All ranks, or some of them.
    topology : Topology or None
        Where they are; None is one node.
    scattered : bool
        Whether each rank of a node has a part of the array; else the first one has all of it.

    Attributes
    ----------
    rank : Column
        The ranks whose program is wanted.
    place : Placement
        Where all are.
    num_nodes : int
        Number of nodes.
    node_sizes : tuple of int
        The different numbers of ranks of nodes.
    largest : int
        Ranks of the largest node.
    owners : int
        How many ranks of each node, the first ones, have a part: as many as the smallest node has.
    slices : Group
        The owners, those at the same place of their nodes together.
    """

    def __init__(self, group: Group, topology: Topology | None, *, scattered: bool) -> None:
        self.rank = group.rank
        self.place = placement(topology or Topology((0,) * group.size))
        self.num_nodes = len(self.place.sizes)
        self.node_sizes: tuple[int, ...] = tuple(np.unique(self.place.sizes).tolist())
        self.largest = self.node_sizes[-1]
        self.owners = self.node_sizes[0] if scattered else 1
        self.slices = self._across(self.owners)

    @property
    def firsts(self) -> Group:
        """The first rank of each node."""
        return self._across(1)

    def _across(self, owners: int) -> Group:
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        locals_ = np.arange(owners, dtype=np.int64)[:, None]
        return self.place.across(self.rank, self.place.rank(nodes, locals_))

    def interleaved(self, group: Group) -> Group:
        """Return `group` with its ranks by place, and of one place by node.

        Where nodes have one size, ranks at one distance are on one node, or on nodes at one distance:
        each node then exchanges with one other one at a time.
        """
        place = self.place
        order = np.lexsort((place.node, place.local)).astype(np.int64)
        position = np.empty_like(order)
        position[order] = np.arange(len(order), dtype=np.int64)
        which = np.zeros(len(group.rank), np.int64)
        return Group(group.rank, position[group.rank], len(order), order[np.newaxis], which)

    def of(self, rank: int) -> tuple[int, int]:
        """Return the node of `rank` and its place there."""
        return int(self.place.node[rank]), int(self.place.local[rank])

    def slice(self, count: int) -> int:
        """Return the elements of the largest slice of `count` elements."""
        return -(-count // self.owners)

    def cut(self, piece: Range) -> Blocks:
        """Cut a piece into the slices of a node's ranks, by their place; some have none."""
        some = even(piece.count, self.owners)
        return Listed((*some, *(0,) * (self.largest - self.owners)), piece.start)

    def each_node(
        self, phase: Callable[[Group], Rounds], *, only: int = -1, but: int = -1
    ) -> Rounds:
        """Run `phase` on all nodes at the same time; on the node `only`, or on all but one.

        This holds also for nodes of which no rank's program is wanted: all programs have the same rounds.
        """
        nodes = np.arange(self.num_nodes, dtype=np.int64)
        wanted = nodes != but if only < 0 else nodes == only
        return side_by_side(*map(phase, self.place.nodes(self.rank, wanted)))

    def each_slice(self, slices: Blocks, phase: Callable[[Group, Column, int], Rounds]) -> Rounds:
        """Run ``phase(group, start, count)`` on the owners of each slice.

        Parameters
        ----------
        slices : Blocks
            By place.
        phase : callable
            It is called with one count at a time, so that its use of scratch does not depend on whose
            program is wanted.
        """
        counts = slices.at(np.arange(self.owners, dtype=np.int64))[1]
        assert self.slices.which is not None
        start, count = slices.at(self.slices.which)
        runs = []
        for each in np.unique(counts[counts > 0]).tolist():
            alike = count == each
            runs.append(phase(self._owners(alike), start[alike], each))
        return side_by_side(*runs)

    def owners_at(self, local: int) -> Group:
        """Return the owners at one place of their nodes."""
        assert self.slices.which is not None
        return self._owners(self.slices.which == local)

    def _owners(self, where: Mask) -> Group:
        group, which = self.slices, self.slices.which
        assert which is not None
        return replace(group, rank=group.rank[where], at=group.at[where], which=which[where])
