"""All-gather and reduce-scatter in two levels, on the blocks of ranks.

The owners of a node share the blocks of all its ranks. With k owners, an owner has its own block
and the blocks of the ranks k, 2k, ... places further on. Each of these blocks is one lap. In a lap
each owner has at most one block of its node. The owners at the same place of all nodes gather or
fold these blocks among themselves, so that each node has each block of the lap on one owner. Before
or after that, the ranks of each node fold or gather the blocks of the lap.

The hierarchical algorithms compose it with phases within nodes.
"""

from dataclasses import dataclass, replace

import numpy as np

from hpccomm.schedules.algorithms import ring
from hpccomm.schedules.algorithms.levels import Levels, table_blocks
from hpccomm.schedules.algorithms.partition import Blocks, side_by_side
from hpccomm.schedules.schedule import SCRATCH, Column, Place, Rounds


@dataclass(frozen=True, slots=True, eq=False)
class Lap:
    """One lap of the blocks of all ranks: at most one for each owner of each node.

    Attributes
    ----------
    number : int
        The lap.
    rank : ndarray of int64, shape (places, nodes)
        The rank of each block, by its owner's place on the node.
    start, count : ndarray of int64, shape (places, nodes)
        Its place; the count is 0 for a missing block, and at places without an owner.
    largest : int
        Elements of the largest of all blocks.
    """

    number: int
    rank: Column
    start: Column
    count: Column
    largest: int

    def packed(self, slot: int) -> "Lap":
        """Return the lap with its blocks in scratch: all laps' blocks from `slot` on, by node."""
        nodes = self.start.shape[1]
        number = self.number * nodes + np.arange(nodes, dtype=np.int64)
        return replace(self, start=np.broadcast_to(slot + number * self.largest, self.start.shape))

    def own(self, levels: Levels) -> tuple[Column, Column, Column]:
        """Return, for each owner, the rank whose block it has, where that lies, and its count."""
        own = levels.which, levels.slices.at
        return self.rank[own], self.start[own], self.count[own]

    def across(self, levels: Levels) -> Blocks:
        """Return the blocks of each owner's group, by node."""
        return table_blocks(self.start, self.count, levels.which, self.largest)

    def of_node(self, node: int) -> Blocks:
        """Return the blocks of a node, by owner."""
        return table_blocks(self.start.T, self.count.T, node, self.largest)


def laps_of(levels: Levels, blocks: Blocks) -> list[Lap]:
    """Return the laps that hold the blocks of all ranks, where they lie."""
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
    """Send the owners' blocks of `RECV` to the owners at the same place of all nodes."""
    across = (lap.across(levels) for lap in laps)
    return side_by_side(*(ring.all_gather_rounds(levels.slices, blocks) for blocks in across))


def folded_across(levels: Levels, lying: list[Lap], source: str, work: int) -> Rounds:
    """Fold across nodes the blocks that nodes have folded in `source`, into scratch of their owners.

    Parameters
    ----------
    levels : Levels
        The ranks.
    lying : list of Lap
        Where the blocks lie, in `source` and in scratch.
    source : str
        The buffer.
    work : int
        Where in scratch `across_scratch` elements begin.
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
