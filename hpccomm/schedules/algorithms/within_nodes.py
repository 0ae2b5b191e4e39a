"""The phases within nodes of an algorithm in two levels: by messages, or where the ranks of a node reach each other's arrays.

In the second form they read and write each other's memory instead of sending messages. Each owner reads its slice of the arrays on its node, or the blocks that it passes
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

`hierarchical` composes both forms with phases across nodes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from hpccomm.schedules.algorithms import chain, shm
from hpccomm.schedules.algorithms.levels import Lap, Levels
from hpccomm.schedules.algorithms.linear import gather_rounds, scattered
from hpccomm.schedules.algorithms.partition import Blocks, PhasePiece, Range, side_by_side
from hpccomm.schedules.algorithms.recursive_doubling import span
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Channel,
    Column,
    Group,
    LocalStep,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    copies,
    transfers,
)


@dataclass(frozen=True, slots=True)
class ByMessages:
    """Moves data within the nodes by messages: round a ring, or along a chain.

    Attributes
    ----------
    levels : Levels
        The ranks.
    """

    levels: Levels
    node = None

    @property
    def packed(self) -> bool:
        """Whether folded slices may lie anywhere in scratch; else they lie at their own places."""
        return self.levels.scattering is not None

    def fold(self, piece: Range, buffer: str, work: int, lying: int | None = None) -> Rounds:
        """Fold the `SEND` of each node. Each owner gets its slice in `buffer`, at its place or at `lying`."""
        levels, scattering = self.levels, self.levels.scattering
        slices, final = levels.cut(piece), levels.num_nodes == 1

        def fold(node: Group) -> Rounds:
            if scattering is None:
                start, count = piece.start, piece.count
                return chain.REDUCE(
                    PhasePiece(node, start, count, work, levels.segment, target=buffer, final=final)
                )
            own = Place(buffer, slices.at(node.at)[0] if lying is None else lying)
            return scattering.reduce_scatter(node, slices, own, work, final=final, source=SEND)

        return levels.each_node(fold)

    def fold_scratch(self, count: int) -> int:
        """Return the elements of scratch that `fold` takes from `work` on, for `count` elements."""
        levels = self.levels
        if levels.scattering is None:
            return chain.REDUCE.scratch(levels.largest, count, levels.segment)
        return levels.scattering.scratch(levels.largest, levels.slice(count))

    def spread(self, piece: Range, root: int = -1) -> Rounds:
        """Hand the owners' slices of `RECV` to all of their node.

        On the node of `root`, it broadcasts the whole array, which is only read.
        """
        levels, scattering = self.levels, self.levels.scattering
        slices = levels.cut(piece)

        def broadcast(node: Group, at: int) -> Rounds:
            whole_piece = PhasePiece(node, piece.start, piece.count, 0, levels.segment, at)
            return chain.BROADCAST(whole_piece)

        def share(node: Group) -> Rounds:
            return broadcast(node, 0) if scattering is None else scattering.all_gather(node, slices)

        if root < 0:
            return levels.each_node(share)
        home, at = levels.of(root)
        return side_by_side(
            levels.each_node(share, but=home),
            levels.each_node(lambda node: broadcast(node, at), only=home),
        )

    def from_root(self, slices: Blocks, root: int) -> Rounds:
        """Send each rank of the root's node its slice of the root's `RECV`."""
        home, at = self.levels.of(root)

        def scatter(node: Group) -> Rounds:
            yield scattered(node, at, slices, RECV, Place(RECV, slices.at(node.at)[0]))

        return self.levels.each_node(scatter, only=home)

    def to_root(self, slices: Blocks, root: int, lying: int | None) -> Rounds:
        """Collect the slices of the root's node, which lie in scratch, in its `RECV`."""
        home, at = self.levels.of(root)

        def collect(node: Group) -> Rounds:
            own = Place(SCRATCH, slices.at(node.at)[0] if lying is None else lying)
            return gather_rounds(node, at, slices, 0, own, RECV)

        return self.levels.each_node(collect, only=home)

    def collect(self, laps: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Copy each rank's block to its own `RECV`, and send it to the block's owner.

        Parameters
        ----------
        laps : list of Lap
            The pieces of the blocks.
        blocks, whole : Blocks
            By rank: the pieces of the blocks, and the blocks.
        """
        rank = self.levels.rank
        start, count = blocks.at(rank)
        own = Place(SEND, start - whole.at(rank)[0])
        yield Round(local=(copies(rank, own, Place(RECV, start), count),))
        yield from self.to_owners(laps, blocks)

    def to_owners(self, laps: list[Lap], blocks: Blocks) -> Rounds:
        """Send each rank's block of `RECV` to its owner."""
        levels, owners = self.levels, self.levels.slices
        owner, further = self._owner()
        own = transfers(levels.rank, owner, RECV, *blocks.at(levels.rank), further)
        theirs = tuple(
            transfers(owners.rank, whose, RECV, start, count)
            for whose, start, count in (lap.own(levels) for lap in laps[1:])
        )
        yield Round(receives=theirs, sends=(own,))

    def hand_out(self, laps: list[Lap], blocks: Blocks) -> Rounds:
        """Send the owners' blocks of `RECV`, of all nodes, to all ranks of the node.

        The blocks must lie one after the other if one rank of a node handles the whole array.
        """
        levels, scattering = self.levels, self.levels.scattering
        if scattering is None:
            (start,), (count,) = span(blocks, np.array([0]), np.array([len(levels.place.node)]))
            return self.spread(Range(int(start), int(count)))
        each = list(product(laps, range(levels.num_nodes)))
        return levels.each_node(
            lambda node: side_by_side(
                *(scattering.all_gather(node, lap.of_node(k)) for lap, k in each)
            )
        )

    def fold_blocks(self, laps: list[Lap], lying: list[Lap], work: int, total: int) -> Rounds:
        """Fold what each node contributes to the blocks, into scratch of their owners."""
        levels, scattering = self.levels, self.levels.scattering
        final, nodes = levels.num_nodes == 1, levels.num_nodes
        if scattering is None:
            folds = levels.largest > 1 or final
            return self.fold(Range(0, total), SCRATCH, work) if folds else iter(())

        def fold(node: Group, number: int, lap: Lap, there: Lap) -> Rounds:
            target = Place(SCRATCH, int(there.start[0, number]))
            free = (lap.number * nodes + number) * scattering.scratch(node.size, lap.largest)
            return scattering.reduce_scatter(
                node, lap.of_node(number), target, work + free, final=final, source=SEND
            )

        each = [(k, *both) for both in zip(laps, lying, strict=True) for k in range(nodes)]
        return levels.each_node(lambda node: side_by_side(*(fold(node, *one) for one in each)))

    def fold_blocks_scratch(self, largest: int, total: int) -> int:
        """Return the elements of scratch that `fold_blocks` takes from `work` on."""
        levels = self.levels
        if levels.scattering is None:
            return self.fold_scratch(total)
        every = levels.num_laps * levels.num_nodes
        return every * levels.scattering.scratch(levels.largest, largest)

    def distribute(self, lying: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Send each rank its block, which its owner has in scratch.

        Parameters
        ----------
        lying : list of Lap
            Where the blocks lie in scratch.
        blocks, whole : Blocks
            By rank: the pieces of the blocks, and the blocks.
        """
        levels, owners = self.levels, self.levels.slices
        owner, further = self._owner()
        start, count = blocks.at(levels.rank)
        begin = start - whole.at(levels.rank)[0]
        sends = tuple(
            transfers(owners.rank, whose, SCRATCH, start, count)
            for whose, start, count in (lap.own(levels) for lap in lying[1:])
        )
        _, here, many = lying[0].own(levels)
        keep = copies(owners.rank, Place(SCRATCH, here), Place(RECV, begin[~further]), many)
        into = transfers(levels.rank, owner, RECV, begin, count, further)
        yield Round(receives=(into,), sends=sends, local=(keep,))

    def _owner(self) -> tuple[Column, Mask]:
        """Return the rank that owns each rank's block, and whether that is another one."""
        levels, place = self.levels, self.levels.place
        local = place.local[levels.rank]
        owner = place.rank(place.node[levels.rank], local % levels.owners)
        return owner, local >= levels.owners


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
