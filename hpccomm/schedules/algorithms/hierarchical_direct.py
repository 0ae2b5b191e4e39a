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
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import blockwise, pairwise, shm
from hpccomm.schedules.algorithms.blockwise import Lap
from hpccomm.schedules.algorithms.channels import in_channels
from hpccomm.schedules.algorithms.hierarchical import DEFAULT, Hierarchical
from hpccomm.schedules.algorithms.levels import Levels
from hpccomm.schedules.algorithms.partition import Blocks, Listed, Range, offsets
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Channel,
    Column,
    Copies,
    Folds,
    Group,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
)

Steps = Iterator[Copies | Folds]


@dataclass(frozen=True, slots=True)
class Direct:
    """Algorithms in two levels, with memory within the nodes.

    On one node they are those of `hpccomm.schedules.algorithms.shm`. With one rank a node they are those by
    messages.

    Attributes
    ----------
    messages : Hierarchical
        The same by messages.
    """

    messages: Hierarchical

    def all_reduce(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold the own slice of the node, then across the nodes, and write it to the node."""
        levels, segment = self.messages.levels(group, tuning), tuning.segment
        if levels.num_nodes == 1:
            return shm.all_reduce(group, call, tuning)
        if levels.largest == 1:
            return self.messages.all_reduce(group, call, tuning)
        pieces = self.messages.pieces(levels, call.counts[0], segment)

        def run(piece: Range, slot: int) -> Rounds:
            slices = levels.cut(piece)
            yield Round(local=tuple(_folded(levels, slices, RECV)))
            yield from self.messages.all_reduced_across(levels, piece, slot, segment)
            yield Round(local=tuple(_written(levels, slices)))

        scratch = self.messages.all_reduced_across_scratch(levels, pieces[0].count, segment)
        return _between_barriers(levels, in_channels(pieces, run, tuning, scratch))

    def reduce(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold the own slice of the node, then across the nodes; the root's node writes it there."""
        levels, segment = self.messages.levels(group, tuning), tuning.segment
        if levels.num_nodes == 1:
            return shm.reduce(group, call, tuning)
        if levels.largest == 1:
            return self.messages.reduce(group, call, tuning)
        pieces = self.messages.pieces(levels, call.counts[0], segment)
        home, _ = levels.of(call.root)
        width = levels.slice(pieces[0].count)

        def run(piece: Range, slot: int) -> Rounds:
            slices = levels.cut(piece)
            yield Round(local=tuple(_folded(levels, slices, SCRATCH, slot)))
            yield from self.messages.reduced_across(
                levels, slices, home, slot, slot + width, segment
            )
            yield Round(local=(_to_root(levels, slices, call.root, slot),))

        beyond = self.messages.reduced_across_scratch(levels, pieces[0].count, segment)
        return _between_barriers(levels, in_channels(pieces, run, tuning, width + beyond))

    def broadcast(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Read the own slice from the root, hand it across the nodes, and write it to the node."""
        levels, segment = self.messages.levels(group, tuning), tuning.segment
        if levels.num_nodes == 1:
            return shm.broadcast(group, call, tuning)
        if levels.largest == 1:
            return self.messages.broadcast(group, call, tuning)
        home, _ = levels.of(call.root)

        def run(piece: Range, _slot: int) -> Rounds:
            slices = levels.cut(piece)
            yield Round(local=(_from_root(levels, slices, call.root),))
            yield from self.messages.broadcast_across(levels, slices, home, segment)
            yield Round(local=tuple(_written(levels, slices, but=call.root)))

        pieces = self.messages.pieces(levels, call.counts[0], segment)
        return _between_barriers(levels, in_channels(pieces, run, tuning, 0))

    def all_gather(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Hand the own block across the nodes, and write what comes from there to the node.

        Where nodes differ in size, owners read the blocks of ranks that are no owners.
        """
        levels, segment = self.messages.levels(group, tuning), tuning.segment
        if levels.num_nodes == 1:
            return shm.all_gather(group, call, tuning)
        if levels.largest == 1:
            return self.messages.all_gather(group, call, tuning)
        blocks = Listed(call.counts)
        first = np.array(offsets(call.counts), np.int64)

        def run(piece: Blocks, _slot: int) -> Rounds:
            laps = blockwise.laps(levels, piece)
            yield Round(local=tuple(_collected(levels, laps, piece, first)))
            yield from blockwise.gathered_across(self.messages.across, levels, laps, segment)
            yield Round(local=tuple(_handed_out(levels, laps)))

        pieces = blockwise.pieces(levels, blocks, segment)
        return _between_barriers(levels, in_channels(pieces, run, tuning, 0))

    def reduce_scatter(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Fold the blocks of one owner a node over the own node, and then across the nodes.

        Where nodes differ in size, owners write the blocks of ranks that are no owners.
        """
        levels, segment = self.messages.levels(group, tuning), tuning.segment
        if levels.num_nodes == 1:
            return shm.reduce_scatter(group, call, tuning)
        if levels.largest == 1:
            return self.messages.reduce_scatter(group, call, tuning)
        blocks = Listed(call.counts)
        first = np.array(offsets(call.counts), np.int64)
        pieces = blockwise.pieces(levels, blocks, segment)
        largest, nodes = pieces[0].largest, levels.num_nodes
        across = self.messages.across
        partials = -(-levels.largest // levels.owners) * nodes * largest

        def run(piece: Blocks, slot: int) -> Rounds:
            laps = blockwise.laps(levels, piece)
            numbers = np.arange(nodes, dtype=np.int64)
            lying = [lap.at(slot + (lap.number * nodes + numbers) * largest) for lap in laps]
            yield Round(local=tuple(_blocks_folded(levels, laps, lying)))
            work = slot + partials
            yield from blockwise.folded_across(across, levels, lying, SCRATCH, work, segment)
            yield Round(local=tuple(_distributed(levels, laps, lying, first)))

        beyond = blockwise.across_scratch(across, levels, largest, segment)
        return _between_barriers(levels, in_channels(pieces, run, tuning, partials + beyond))

    def all_to_all(self, group: Group, call: Signature, tuning: Tuning) -> Schedule:
        """Exchange blocks with other nodes by messages, and with the own one in memory.

        Blocks of different sizes go by messages: a rank does not know where its peers' blocks lie.
        """
        levels = self.messages.levels(group, tuning)
        if not call.uniform or levels.largest == 1:
            return self.messages.all_to_all(group, call, tuning)
        if levels.num_nodes == 1:
            return shm.all_to_all(group, call, tuning)
        exchanged = pairwise.all_to_all(levels.interleaved(group), call, tuning, levels.place.node)
        return _between_barriers(levels, exchanged)


def _between_barriers(levels: Levels, schedule: Schedule) -> Schedule:
    """Add a barrier of each node before each channel and after it.

    A peer's array may be accessed only while the peer takes part in the call.
    """
    nodes = levels.place.nodes(levels.rank, levels.place.sizes > 1)

    def guarded(channel: Channel) -> Channel:
        def rounds() -> Rounds:
            yield from (Round(barrier=each) for each in nodes)
            yield from channel()
            yield from (Round(barrier=each) for each in nodes)

        return rounds

    return replace(schedule, channels=tuple(map(guarded, schedule.channels)))


def _on_nodes(levels: Levels, steps: Callable[[Group], Steps]) -> Steps:
    """Yield the steps of the ranks of nodes of each size."""
    for node in levels.place.nodes(levels.rank, levels.place.sizes > 0):
        yield from steps(node)


def _folded(levels: Levels, slices: Blocks, buffer: str, lying: int | None = None) -> Steps:
    """Fold each slice of a node into `buffer` of its owner, at the slice's own place or at `lying`."""

    def steps(node: Group) -> Steps:
        start, count = slices.at(node.at)
        target = Place(buffer, start if lying is None else lying)
        yield shm.folded(node, start, count, target, final=False)

    return _on_nodes(levels, steps)


def _written(levels: Levels, slices: Blocks, but: int = -1) -> Steps:
    """Write each owner's slice of `RECV` to the others of its node; not to the rank `but`."""

    def steps(node: Group) -> Steps:
        start, count = slices.at(node.at)
        for distance in range(1, node.size):
            peer = node.peer((node.at + distance) % node.size)
            target = Place(RECV, start, peer)
            yield copies(node.rank, Place(RECV, start), target, count, peer != but)

    return _on_nodes(levels, steps)


def _from_root(levels: Levels, slices: Blocks, root: int) -> Copies:
    """Read the slices of the root's `RECV`, on its node."""
    rank, place = levels.rank, levels.place
    start, count = slices.at(place.local[rank])
    home = (place.node[rank] == place.node[root]) & (rank != root)
    source = Place(RECV, start, np.full(len(rank), root, np.int64))
    return copies(rank, source, Place(RECV, start), count, home)


def _to_root(levels: Levels, slices: Blocks, root: int, lying: int) -> Copies:
    """Write the slices, which lie in scratch on the root's node, to its `RECV`."""
    rank, place = levels.rank, levels.place
    start, count = slices.at(place.local[rank])
    home = place.node[rank] == place.node[root]
    target = Place(RECV, start, np.full(len(rank), root, np.int64))
    return copies(rank, Place(SCRATCH, lying), target, count, home)


def _collected(levels: Levels, laps: list[Lap], blocks: Blocks, first: Column) -> Steps:
    """Copy each rank's block to its own `RECV`, and to that of the block's owner.

    Parameters
    ----------
    levels, laps, blocks
        The ranks and the pieces of their blocks.
    first : ndarray of int64
        For each rank, where its block begins, which is cut into these pieces.
    """
    start, count = blocks.at(levels.rank)
    own = Place(SEND, start - first[levels.rank])
    yield copies(levels.rank, own, Place(RECV, start), count)
    for lap in laps[1:]:
        whose, start, count = lap.own(levels)
        theirs = Place(SEND, start - first[whose], whose)
        yield copies(levels.slices.rank, theirs, Place(RECV, start), count)


def _handed_out(levels: Levels, laps: list[Lap]) -> Steps:
    """Write the blocks that each owner got from all nodes to the other ranks of its node.

    A rank already has its own block.
    """

    def steps(node: Group) -> Steps:
        owner = np.minimum(node.at, levels.owners - 1)
        for lap in laps:
            for number in range(levels.num_nodes):
                whose, start = lap.rank[owner, number], lap.start[owner, number]
                count = np.where(node.at < levels.owners, lap.count[owner, number], 0)
                for distance in range(1, node.size):
                    peer = node.peer((node.at + distance) % node.size)
                    target = Place(RECV, start, peer)
                    yield copies(node.rank, Place(RECV, start), target, count, peer != whose)

    return _on_nodes(levels, steps)


def _blocks_folded(levels: Levels, laps: list[Lap], lying: list[Lap]) -> Steps:
    """Fold, in scratch of each owner, what its node contributes to its blocks on all nodes."""

    def steps(node: Group) -> Steps:
        owner = np.minimum(node.at, levels.owners - 1)
        for lap, there in zip(laps, lying, strict=True):
            for number in range(levels.num_nodes):
                count = np.where(node.at < levels.owners, lap.count[owner, number], 0)
                target = Place(SCRATCH, there.start[owner, number])
                start = lap.start[owner, number]
                yield shm.folded(node, start, count, target, final=False)

    return _on_nodes(levels, steps)


def _distributed(levels: Levels, laps: list[Lap], lying: list[Lap], first: Column) -> Steps:
    """Write each rank's block, which its owner has in scratch, to its `RECV`.

    Parameters
    ----------
    levels, laps
        The ranks and the pieces of their blocks.
    lying : list of Lap
        Where these lie in scratch.
    first : ndarray of int64
        For each rank, where its block begins, which is cut into these pieces.
    """
    rank = levels.slices.rank
    for lap, there in zip(laps, lying, strict=True):
        whose, start, count = lap.own(levels)
        source = Place(SCRATCH, there.own(levels)[1])
        begin = start - first[whose]
        target = Place(RECV, begin) if lap.number == 0 else Place(RECV, begin, whose)
        yield copies(rank, source, target, count)


def direct(messages: Hierarchical) -> Direct:
    """Return the same algorithms with memory within the nodes."""
    return Direct(messages)


DEFAULT_DIRECT = direct(DEFAULT)
"""The direct form of the algorithms that have the name ``"hierarchical"``."""
