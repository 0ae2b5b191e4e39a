"""Two levels, where the ranks of a node reach each other's arrays.

`hpccomm.schedules.algorithms.hierarchical` sends messages within nodes; here ranks read and write each
other's memory instead. Each owner reads its slice of the arrays on its node, or the blocks that it passes
on. It works across the nodes, and then writes the result to the arrays on its node. The messages across
nodes are the same, in the same order, so each node may use either form. That matters because only a node
itself knows whether its ranks reach each other's arrays.

With N nodes of L ranks, a rank touches in memory, with S for the array and B for a block:

==============  ===========================  =======================  ======================
collective      read from its node           across                   written to its node
==============  ===========================  =======================  ======================
all_reduce      its slice of L arrays        all_reduce of S/L        S/L to L - 1
broadcast       S/L, on the root's node      broadcast of S/L         S/L to L - 1
reduce          its slice of L arrays        reduce of S/L            S/L to the root
all_gather                                   all_gather of B          N B to L - 1
reduce_scatter  N blocks of L arrays         reduce_scatter of N B
all_to_all      L - 1 blocks                 (N-1) L blocks
==============  ===========================  =======================  ======================

Within a node, only the owner of an element reads and writes it, and it reads before it writes. So only
the beginning and the end of a call need a barrier. Pieces of an array follow each other in a channel,
and while the messages of one piece are under way, another piece is folded. This holds in place too.

`hierarchical` makes both forms of an algorithm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from hpccomm.schedules.algorithms import shm
from hpccomm.schedules.algorithms.blockwise import Lap
from hpccomm.schedules.algorithms.levels import Levels
from hpccomm.schedules.algorithms.partition import Blocks, Range
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Channel,
    Column,
    Group,
    LocalStep,
    Place,
    Round,
    Rounds,
    Schedule,
    copies,
)

Steps = Iterator[LocalStep]


@dataclass(frozen=True, slots=True)
class InMemory:
    """Moves data within the nodes in memory: each owner reads and writes the arrays of its peers.

    Attributes
    ----------
    levels : Levels
        The ranks.
    """

    levels: Levels
    packed = True

    @property
    def node(self) -> Column:
        """The node of each rank."""
        return self.levels.place.node

    def fold(self, piece: Range, buffer: str, _work: int, lying: int | None = None) -> Rounds:
        """Fold each slice of a node into `buffer` of its owner, at the slice's own place or at `lying`."""
        slices = self.levels.cut(piece)

        def steps(node: Group) -> Steps:
            start, count = slices.at(node.at)
            target = Place(buffer, start if lying is None else lying)
            yield shm.folded(node, start, count, target, final=False)

        return self._on_nodes(steps)

    def fold_scratch(self, _count: int) -> int:
        """Return 0: `fold` takes no scratch."""
        return 0

    def spread(self, piece: Range, root: int = -1) -> Rounds:
        """Write each owner's slice of `RECV` to the others of its node; not to `root`."""
        slices = self.levels.cut(piece)

        def steps(node: Group) -> Steps:
            return shm.to_others(node, *slices.at(node.at), root)

        return self._on_nodes(steps)

    def from_root(self, slices: Blocks, root: int) -> Rounds:
        """Read the slices of the root's `RECV`, on its node."""
        rank, place = self.levels.rank, self.levels.place
        start, count = slices.at(place.local[rank])
        home = (place.node[rank] == place.node[root]) & (rank != root)
        source = Place(RECV, start, np.full(len(rank), root, np.int64))
        yield Round(local=(copies(rank, source, Place(RECV, start), count, home),))

    def to_root(self, slices: Blocks, root: int, lying: int | None) -> Rounds:
        """Write the slices, which lie in scratch on the root's node, to its `RECV`."""
        rank, place = self.levels.rank, self.levels.place
        start, count = slices.at(place.local[rank])
        home = place.node[rank] == place.node[root]
        source = Place(SCRATCH, start if lying is None else lying)
        target = Place(RECV, start, np.full(len(rank), root, np.int64))
        yield Round(local=(copies(rank, source, target, count, home),))

    def collect(self, laps: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Copy each rank's block to its own `RECV`, and to that of the block's owner.

        Parameters
        ----------
        laps : list of Lap
            The pieces of the blocks.
        blocks, whole : Blocks
            By rank: the pieces of the blocks, and the blocks.
        """
        rank, owners = self.levels.rank, self.levels.slices
        start, count = blocks.at(rank)
        own = Place(SEND, start - whole.at(rank)[0])
        steps = [copies(rank, own, Place(RECV, start), count)]
        for lap in laps[1:]:
            whose, start, count = lap.own(self.levels)
            theirs = Place(SEND, start - whole.at(whose)[0], whose)
            steps.append(copies(owners.rank, theirs, Place(RECV, start), count))
        yield Round(local=tuple(steps))

    def hand_out(self, laps: list[Lap], _blocks: Blocks) -> Rounds:
        """Write the blocks that each owner got from all nodes to the other ranks of its node.

        A rank already has its own block.
        """
        levels = self.levels

        def steps(node: Group) -> Steps:
            for lap, number in product(laps, range(levels.num_nodes)):
                own = node.at, number
                yield from shm.to_others(node, lap.start[own], lap.count[own], lap.rank[own])

        return self._on_nodes(steps)

    def fold_blocks(self, laps: list[Lap], lying: list[Lap], _work: int, _total: int) -> Rounds:
        """Fold, in scratch of each owner, what its node contributes to its blocks on all nodes."""
        levels = self.levels

        def steps(node: Group) -> Steps:
            both = zip(laps, lying, strict=True)
            for (lap, where), number in product(both, range(levels.num_nodes)):
                own = node.at, number
                target = Place(SCRATCH, where.start[own])
                yield shm.folded(node, lap.start[own], lap.count[own], target, final=False)

        return self._on_nodes(steps)

    def fold_blocks_scratch(self, _largest: int, _total: int) -> int:
        """Return 0: `fold_blocks` takes no scratch."""
        return 0

    def distribute(self, lying: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Write each rank's block, which its owner has in scratch, to its `RECV`.

        Parameters
        ----------
        lying : list of Lap
            Where the blocks lie in scratch.
        blocks, whole : Blocks
            By rank: the pieces of the blocks, and the blocks.
        """
        steps = []
        for lap in lying:
            whose, here, count = lap.own(self.levels)
            begin = blocks.at(whose)[0] - whole.at(whose)[0]
            target = Place(RECV, begin, whose if lap.number else None)
            steps.append(copies(self.levels.slices.rank, Place(SCRATCH, here), target, count))
        yield Round(local=tuple(steps))

    def guarded(self, schedule: Schedule) -> Schedule:
        """Add a barrier of each node before each channel and after it.

        A peer's array may be accessed only while the peer takes part in the call.
        """
        place = self.levels.place
        nodes = place.nodes(self.levels.rank, place.sizes > 1)

        def guarded(channel: Channel) -> Channel:
            def rounds() -> Rounds:
                yield from (Round(barrier=each) for each in nodes)
                yield from channel()
                yield from (Round(barrier=each) for each in nodes)

            return rounds

        return replace(schedule, channels=tuple(map(guarded, schedule.channels)))

    def _on_nodes(self, steps: Callable[[Group], Steps]) -> Rounds:
        """Yield the round with the steps of the ranks of nodes of each size."""
        place = self.levels.place
        nodes = place.nodes(self.levels.rank, place.sizes > 0)
        yield Round(local=tuple(step for node in nodes for step in steps(node)))
