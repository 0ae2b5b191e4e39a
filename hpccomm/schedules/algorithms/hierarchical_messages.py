"""The phases within nodes of an algorithm in two levels, by messages.

`hierarchical` composes them with phases across nodes; `hierarchical_direct` is the form in memory.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from hpccomm.schedules.algorithms import chain
from hpccomm.schedules.algorithms.blockwise import Lap
from hpccomm.schedules.algorithms.levels import Levels
from hpccomm.schedules.algorithms.linear import gather_rounds, scattered
from hpccomm.schedules.algorithms.partition import Blocks, Range, side_by_side
from hpccomm.schedules.algorithms.phases import PhasePiece
from hpccomm.schedules.algorithms.recursive_doubling import span
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Mask,
    Place,
    Round,
    Rounds,
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
