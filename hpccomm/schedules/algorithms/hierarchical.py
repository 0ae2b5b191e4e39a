"""Two levels: any family of algorithms within the nodes, composed with any across them.

The network between nodes is slower than the links within them. Here an element crosses it only as often
as the algorithm across the nodes requires for one rank a node. Each rank of a node has a slice of the
array. The ranks with the same slice work together across the nodes, so that all network ports of a node
are busy. See
A. R. Mamidala, R. Kumar, D. De, D. K. Panda, "MPI collectives on modern multicore clusters:
performance optimizations and communication characteristics", 2008.

With N nodes of L ranks, each call is:

==============  ========================  =====================  =========================
collective      within the nodes          across, on a slice     within the nodes
==============  ========================  =====================  =========================
all_reduce      reduce_scatter            all_reduce             all_gather
broadcast       the root sends slices     broadcast              all_gather
reduce          reduce_scatter            reduce                 the root collects slices
all_gather                                all_gather of blocks   all_gather of N blocks
reduce_scatter  reduce_scatter of N       reduce_scatter
all_to_all      one block for each rank   L blocks a node
barrier         all signal the first      dissemination          the first signals all
==============  ========================  =====================  =========================

In all_to_all each rank exchanges with every other rank. Their order is such that a node communicates
with few other nodes at a time, and all of its ranks with the same ones.

Rounds and elements are the sums over the phases, on L ranks and on N ranks with 1/L of the array. The
array is cut into pieces, so that the phase across nodes of one piece overlaps the other phases of
another.

Where nodes differ in size, there are as many slices as the smallest node has ranks. The other ranks of
a larger node take part only within it. A family that cannot scatter (a tree) has one slice: the first
rank of a node has the whole array.

`hpccomm.schedules.algorithms.hierarchical_direct` moves data within nodes in memory.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import blockwise, ordered, pairwise
from hpccomm.schedules.algorithms.channels import in_channels, side_by_side
from hpccomm.schedules.algorithms.dissemination import barrier_rounds
from hpccomm.schedules.algorithms.families import BALANCED, RING, PhaseFamily
from hpccomm.schedules.algorithms.levels import Levels
from hpccomm.schedules.algorithms.linear import gather_rounds, with_others
from hpccomm.schedules.algorithms.partition import Blocks, Range, ranges
from hpccomm.schedules.algorithms.phases import AllGather, PhasePiece, all_gather_in_pieces
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Column,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    signals,
    transfers,
)


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Algorithms in two levels.

    Attributes
    ----------
    inner, across : PhaseFamily
        Within the nodes and across them.
    """

    inner: PhaseFamily
    across: PhaseFamily

    def all_reduce(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold within the nodes, each slice across them, and gather the slices within them."""
        levels, segment = self.levels(group, tuning), tuning.segment
        pieces = self.pieces(levels, call.counts[0], segment)

        def run(piece: Range, slot: int) -> Rounds:
            if levels.largest > 1 or levels.num_nodes == 1:
                yield from self._fold(levels, piece, RECV, slot, segment)
            yield from self.all_reduced_across(levels, piece, slot, segment)
            yield from self._spread(levels, piece, segment)

        largest = pieces[0].count
        scratch = max(
            self._fold_scratch(levels, largest, segment),
            self.all_reduced_across_scratch(levels, largest, segment),
        )
        return in_channels(pieces, run, tuning, scratch)

    def all_reduced_across(self, levels: Levels, piece: Range, slot: int, segment: int) -> Rounds:
        """Fold the slices that nodes have folded, in `RECV`, so that all owners of a slice get the result.

        With one rank a node, the contributions are in `SEND`.
        """
        source = RECV if levels.largest > 1 else SEND

        def across(slices: Group, start: Column, count: int) -> Rounds:
            return self.across.all_reduce(
                PhasePiece(slices, start, count, slot, segment, source=source)
            )

        return levels.each_slice(levels.cut(piece), across) if levels.num_nodes > 1 else iter(())

    def all_reduced_across_scratch(self, levels: Levels, count: int, segment: int) -> int:
        """Return the elements of scratch that `all_reduced_across` takes."""
        return self.across.all_reduce.scratch(levels.num_nodes, levels.slice(count), segment)

    def reduce(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold within the nodes, each slice across them to the root's, where the root collects them.

        Until then a slice lies in scratch, at its own place.
        """
        levels, segment = self.levels(group, tuning), tuning.segment
        total = call.counts[0]
        pieces = self.pieces(levels, total, segment)
        home, at = levels.of(call.root)

        def run(piece: Range, slot: int) -> Rounds:
            slices = levels.cut(piece)

            def collect(node: Group) -> Rounds:
                own = Place(SCRATCH, slices.at(node.at)[0])
                return gather_rounds(node, at, slices, 0, own, RECV)

            yield from self._fold(levels, piece, SCRATCH, total + slot, segment)
            if levels.num_nodes > 1:
                yield from self.reduced_across(levels, slices, home, None, total + slot, segment)
            yield from levels.each_node(collect, only=home)

        largest = pieces[0].count
        scratch = max(
            self._fold_scratch(levels, largest, segment),
            self.reduced_across_scratch(levels, largest, segment),
        )
        schedule = in_channels(pieces, run, tuning, scratch)
        return replace(schedule, scratch=total + schedule.scratch)

    def reduced_across(
        self,
        levels: Levels,
        slices: Blocks,
        home: int,
        at: int | None,
        slot: int,
        segment: int,
    ) -> Rounds:
        """Fold the slices that nodes have folded, in scratch, to the owners on the node `home`.

        A slice lies at its own place, or at element `at`.
        """

        def across(part: Group, start: Column, count: int) -> Rounds:
            begin = start if at is None else at
            return self.across.reduce(
                PhasePiece(part, begin, count, slot, segment, home, source=SCRATCH, target=SCRATCH)
            )

        return levels.each_slice(slices, across)

    def reduced_across_scratch(self, levels: Levels, count: int, segment: int) -> int:
        """Return the elements of scratch that `reduced_across` takes."""
        return self.across.reduce.scratch(levels.num_nodes, levels.slice(count), segment)

    def broadcast(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Scatter slices on the root's node, broadcast each one across the nodes, gather within them.

        On its own node the root broadcasts the whole array, which is only read.
        """
        levels, segment = self.levels(group, tuning), tuning.segment
        home, at = levels.of(call.root)

        def run(piece: Range, _slot: int) -> Rounds:
            slices = levels.cut(piece)

            def at_home(node: Group) -> Rounds:
                return self.inner.broadcast(
                    PhasePiece(node, piece.start, piece.count, 0, segment, at)
                )

            if levels.num_nodes > 1:
                yield from levels.each_node(
                    lambda node: _scatter_slices(node, at, slices), only=home
                )
                yield from self.broadcast_across(levels, slices, home, segment)
            yield from side_by_side(
                self._spread(levels, piece, segment, but=home),
                levels.each_node(at_home, only=home),
            )

        return in_channels(self.pieces(levels, call.counts[0], segment), run, tuning, 0)

    def broadcast_across(self, levels: Levels, slices: Blocks, home: int, segment: int) -> Rounds:
        """Hand the slices of `RECV` on the node `home` to the owners on all nodes."""

        def across(part: Group, start: Column, count: int) -> Rounds:
            return self.across.broadcast(PhasePiece(part, start, count, 0, segment, home))

        return levels.each_slice(slices, across)

    def all_gather(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Gather each block across the nodes, and then within them."""
        levels = self.levels(group, tuning)
        gather = self._all_gather(levels, tuning)
        return all_gather_in_pieces(gather, partial(blockwise.pieces, levels))(group, call, tuning)

    def reduce_scatter(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold each block within the nodes, and then across them."""
        levels = self.levels(group, tuning)
        return blockwise.reduce_scatter(self.inner, self.across, levels, call, tuning)

    def barrier(self, group: Group, _call: Signature, tuning: Tuning) -> Schedule:
        """Signal to the first rank of the node, then across nodes, then back to all of the node."""
        levels = self.levels(group, tuning)

        def signal_first(node: Group) -> Rounds:
            firsts, others = with_others(node, node.at == 0)
            is_first = node.at == 0
            first = node.peer(0 * node.at)
            yield Round(
                receives=(signals(firsts.rank, firsts.peer(others)),),
                sends=(signals(node.rank, first, ~is_first),),
            )

        def signal_all(node: Group) -> Rounds:
            for each in signal_first(node):
                yield Round(receives=each.sends, sends=each.receives)

        def channel() -> Rounds:
            yield from levels.each_node(signal_first)
            yield from barrier_rounds(levels.firsts)
            yield from levels.each_node(signal_all)

        return Schedule((channel,))

    def ordered_all_reduce(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold in rank order, each rank a block, and gather the blocks in two levels."""
        gather = self._all_gather(self.levels(group, tuning), tuning)
        return ordered.all_reduce(gather)(group, call, tuning)

    def all_to_all(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Exchange with one rank after the other, so that each node exchanges with one at a time."""
        levels = self.levels(group, tuning)
        return pairwise.all_to_all(levels.interleaved(group), call, tuning)

    def _all_gather(self, levels: Levels, tuning: Tuning) -> AllGather:
        def gather(_group: Group, blocks: Blocks) -> Rounds:
            return blockwise.all_gather_rounds(
                self.inner, self.across, levels, blocks, tuning.segment
            )

        return gather

    def levels(self, group: Group, tuning: Tuning) -> Levels:
        """Return the two levels of the ranks."""
        return Levels(group, tuning.topology, scattered=self.inner.scattering is not None)

    def pieces(self, levels: Levels, count: int, segment: int) -> list[Range]:
        """Cut the array so that each slice of a piece keeps the links busy."""
        span = self.across.span(levels.num_nodes)
        if levels.owners == 1:
            span = max(span, self.inner.span(levels.largest))
        return ranges(count, segment * span * levels.owners)

    def _fold(self, levels: Levels, piece: Range, buffer: str, slot: int, segment: int) -> Rounds:
        """Fold the `SEND` of each node. Each owner gets its slice in `buffer`."""
        final, scattering = levels.num_nodes == 1, self.inner.scattering
        if levels.owners == 1 or scattering is None:

            def reduce(node: Group) -> Rounds:
                whole_piece = PhasePiece(node, piece.start, piece.count, slot, segment)
                return self.inner.reduce(replace(whole_piece, target=buffer, final=final))

            return levels.each_node(reduce)

        slices = levels.cut(piece)

        def scatter(node: Group) -> Rounds:
            own = Place(buffer, slices.at(node.at)[0])
            return scattering.reduce_scatter(node, slices, own, slot, final=final, source=SEND)

        return levels.each_node(scatter)

    def _fold_scratch(self, levels: Levels, count: int, segment: int) -> int:
        scattering = self.inner.scattering
        if levels.owners == 1 or scattering is None:
            sizes = levels.node_sizes
            return max(self.inner.reduce.scratch(size, count, segment) for size in sizes)
        return scattering.scratch(levels.largest, levels.slice(count))

    def _spread(self, levels: Levels, piece: Range, segment: int, but: int = -1) -> Rounds:
        """Hand the owners' slices of `RECV` to all of their node; not on the node `but`."""
        scattering = self.inner.scattering
        if levels.owners == 1 or scattering is None:

            def broadcast(node: Group) -> Rounds:
                return self.inner.broadcast(PhasePiece(node, piece.start, piece.count, 0, segment))

            return levels.each_node(broadcast, but=but)
        slices = levels.cut(piece)
        return levels.each_node(lambda node: scattering.all_gather(node, slices), but=but)


def _scatter_slices(node: Group, root: int, slices: Blocks) -> Rounds:
    """Send each rank of the root's node its slice of the root's `RECV`."""
    is_root = node.at == root
    roots, others = with_others(node, is_root)
    first = node.peer(np.full(len(node.at), root, np.int64))
    yield Round(
        receives=(transfers(node.rank, first, RECV, *slices.at(node.at), ~is_root),),
        sends=(transfers(roots.rank, roots.peer(others), RECV, *slices.at(others)),),
    )


def hierarchical(inner: PhaseFamily, across: PhaseFamily) -> Hierarchical:
    """Compose two families: `inner` among the ranks of each node, `across` among the nodes."""
    return Hierarchical(inner, across)


DEFAULT = hierarchical(RING, BALANCED)
"""The algorithms that have the name ``"hierarchical"``."""
