"""Two levels: rings within the nodes, and across the nodes algorithms that load all links evenly.

The network between nodes is slower than the links within them. Here an element crosses the network only as often
as the algorithm across the nodes would move it with one rank on each node. Each rank of a node has a slice of the
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

In all_to_all each rank exchanges with every other rank. The order of these exchanges is such that all ranks of a node
communicate with the same few nodes at a time.

Rounds and elements are the sums over the phases, on L ranks and on N ranks with 1/L of the array. The
array is cut into pieces, so that the phase across nodes of one piece overlaps the other phases of
another.

If nodes differ in size, the number of slices is the smallest node's number of ranks. The other
ranks of a larger node take part only within their node. If the smallest node has one rank, there is one slice:
the first rank of a node has the whole array, and chains move it within the node.

Across the nodes, all_reduce halves and doubles if the number of nodes is a power of two, or the array is short;
otherwise it goes round a ring. All_gather and reduce_scatter use a ring, broadcast and reduce double trees.

The owner of a slice or block is the rank of a node that works on it across the nodes. Within the nodes data moves by
messages (``ByMessages``), or in memory if the ranks of a node reach each
other's arrays (``InMemory``). In memory each owner reads its slice of the arrays on its node, or the blocks that it
passes on. It works across the nodes, and then writes the result to the arrays on its node. The messages
across nodes are the same in both forms, in the same order, so each node may use either form. That matters because
only a node itself knows whether its ranks reach each other's arrays.

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

Within a node, only the owner of an element accesses the element in other ranks' arrays, and it reads before it writes.
So only the beginning and the end of a call need a barrier. Pieces of an array follow each other in a channel,
and while the messages of one piece are under way, another piece is folded. All of this holds in place too.

`ALGORITHMS` lists these algorithms.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import chain, ordered, pairwise, shm, tree
from hpccomm.schedules.algorithms.dissemination import barrier_rounds
from hpccomm.schedules.algorithms.levels import (
    BALANCED,
    Lap,
    Levels,
    across_scratch,
    folded_across,
    gathered_across,
    laps_of,
)
from hpccomm.schedules.algorithms.linear import gather_rounds, signal_rounds
from hpccomm.schedules.algorithms.partition import (
    Blocks,
    Listed,
    PhasePiece,
    Range,
    backwards,
    in_channels,
    side_by_side,
)
from hpccomm.schedules.algorithms.recursive_doubling import span
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Build,
    Channel,
    Column,
    Group,
    LocalStep,
    Mask,
    Place,
    Round,
    Rounds,
    Schedule,
    Tuning,
    copies,
    transfers,
)


@dataclass(frozen=True, slots=True)
class ByMessages:
    """Moves data within the nodes by messages: round a ring, or along a chain.

    Attributes
    ----------
    levels : Levels
        The ranks in two levels.
    node : None
        The all-to-all within a node is by messages.
    """

    levels: Levels
    node = None

    @property
    def packed(self) -> bool:
        """Whether folded slices may lie anywhere in scratch; else they lie at their offsets in the array."""
        return self.levels.scattering is not None

    def fold(self, piece: Range, buffer: str, work: int, lying: int | None = None) -> Rounds:
        """Return the rounds that fold the `SEND` of each node's ranks.

        Each owner gets its slice in `buffer`, at the slice's offset in the array, or at `lying`. Scratch from `work`
        on is used.
        """
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
        """Return the rounds in which the owners hand their slices of `RECV` to all ranks of their node.

        On the node of `root`, the root broadcasts its whole array instead, and only reads it.
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
        """Return the rounds that send each rank of the root's node its slice of the root's `RECV`."""
        home, at = self.levels.of(root)

        def scatter(node: Group) -> Rounds:
            own = Place(RECV, slices.at(node.at)[0])
            return backwards(gather_rounds(node, at, slices, 0, own, RECV))

        return self.levels.each_node(scatter, only=home)

    def to_root(self, slices: Blocks, root: int, lying: int | None) -> Rounds:
        """Return the rounds that collect the slices of the root's node, which lie in scratch, in the root's `RECV`."""
        home, at = self.levels.of(root)

        def collect(node: Group) -> Rounds:
            own = Place(SCRATCH, slices.at(node.at)[0] if lying is None else lying)
            return gather_rounds(node, at, slices, 0, own, RECV)

        return self.levels.each_node(collect, only=home)

    def collect(self, laps: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Return the rounds that copy each rank's block to its own `RECV`, and send it to the block's owner.

        Parameters
        ----------
        laps : list of Lap
            The pieces of the blocks.
        blocks, whole : Blocks
            The pieces of the blocks, and the whole blocks, indexed by rank.
        """
        rank = self.levels.rank
        start, count = blocks.at(rank)
        own = Place(SEND, start - whole.at(rank)[0])
        yield Round(local=(copies(rank, own, Place(RECV, start), count),))
        yield from self.to_owners(laps, blocks)

    def to_owners(self, laps: list[Lap], blocks: Blocks) -> Rounds:
        """Return the round that sends each rank's block of `RECV` to the block's owner."""
        levels, owners = self.levels, self.levels.slices
        owner, further = self._owner()
        own = transfers(levels.rank, owner, RECV, *blocks.at(levels.rank), further)
        theirs = tuple(
            transfers(owners.rank, peer, RECV, start, count)
            for peer, start, count in (lap.own(levels) for lap in laps[1:])
        )
        yield Round(receives=theirs, sends=(own,))

    def hand_out(self, laps: list[Lap], blocks: Blocks) -> Rounds:
        """Return the rounds that send the blocks of all nodes from `RECV` of their owners to all ranks of each node.

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
        """Return the rounds that fold each node's contributions to all blocks, into scratch of the owners.

        Parameters
        ----------
        laps, lying : list of Lap
            The blocks in `SEND`, and their places in scratch.
        work : int
            First element of scratch that the fold may use.
        total : int
            Elements of the whole array.
        """
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
        """Return the round that sends each rank its block from scratch of the block's owner.

        Parameters
        ----------
        lying : list of Lap
            The places of the blocks in scratch.
        blocks, whole : Blocks
            The pieces of the blocks, and the whole blocks, indexed by rank.
        """
        levels, owners = self.levels, self.levels.slices
        owner, further = self._owner()
        start, count = blocks.at(levels.rank)
        begin = start - whole.at(levels.rank)[0]
        sends = tuple(
            transfers(owners.rank, peer, SCRATCH, start, count)
            for peer, start, count in (lap.own(levels) for lap in lying[1:])
        )
        _, here, many = lying[0].own(levels)
        keep = copies(owners.rank, Place(SCRATCH, here), Place(RECV, begin[~further]), many)
        into = transfers(levels.rank, owner, RECV, begin, count, further)
        yield Round(receives=(into,), sends=sends, local=(keep,))

    def _owner(self) -> tuple[Column, Mask]:
        """Return the owner of each rank's block, and whether the owner is another rank."""
        levels, place = self.levels, self.levels.place
        local = place.local[levels.rank]
        owner = place.rank(place.node[levels.rank], local % levels.owners)
        return owner, local >= levels.owners


Steps = Iterator[LocalStep]


@dataclass(frozen=True, slots=True)
class InMemory:
    """Moves data within the nodes in memory: each owner reads and writes the arrays of its peers.

    The methods do the same as those of `ByMessages`.

    Attributes
    ----------
    levels : Levels
        The ranks in two levels.
    packed : bool
        Folded slices may lie anywhere in scratch.
    """

    levels: Levels
    packed = True

    @property
    def node(self) -> Column:
        """The node of each rank."""
        return self.levels.place.node

    def fold(self, piece: Range, buffer: str, _work: int, lying: int | None = None) -> Rounds:
        """Return the round in which each owner folds its slice of the node's arrays into its `buffer`.

        The folded slice lies at the slice's offset in the array, or at `lying`.
        """
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
        """Return the round in which each owner writes its slice of `RECV` to the other ranks of its node but `root`."""
        slices = self.levels.cut(piece)

        def steps(node: Group) -> Steps:
            return shm.to_others(node, *slices.at(node.at), root)

        return self._on_nodes(steps)

    def from_root(self, slices: Blocks, root: int) -> Rounds:
        """Return the round in which the other ranks of the root's node read their slices of the root's `RECV`."""
        rank, place = self.levels.rank, self.levels.place
        start, count = slices.at(place.local[rank])
        home = (place.node[rank] == place.node[root]) & (rank != root)
        source = Place(RECV, start, np.full(len(rank), root, np.int64))
        yield Round(local=(copies(rank, source, Place(RECV, start), count, home),))

    def to_root(self, slices: Blocks, root: int, lying: int | None) -> Rounds:
        """Return the round in which ranks of the root's node write their slices from scratch to the root's `RECV`."""
        rank, place = self.levels.rank, self.levels.place
        start, count = slices.at(place.local[rank])
        home = place.node[rank] == place.node[root]
        source = Place(SCRATCH, start if lying is None else lying)
        target = Place(RECV, start, np.full(len(rank), root, np.int64))
        yield Round(local=(copies(rank, source, target, count, home),))

    def collect(self, laps: list[Lap], blocks: Blocks, whole: Blocks) -> Rounds:
        """Return the round that copies each rank's block to its own `RECV`, and to the `RECV` of the block's owner.

        Parameters
        ----------
        laps : list of Lap
            The pieces of the blocks.
        blocks, whole : Blocks
            The pieces of the blocks, and the whole blocks, indexed by rank.
        """
        rank, owners = self.levels.rank, self.levels.slices
        start, count = blocks.at(rank)
        own = Place(SEND, start - whole.at(rank)[0])
        steps = [copies(rank, own, Place(RECV, start), count)]
        for lap in laps[1:]:
            ranks, start, count = lap.own(self.levels)
            theirs = Place(SEND, start - whole.at(ranks)[0], ranks)
            steps.append(copies(owners.rank, theirs, Place(RECV, start), count))
        yield Round(local=tuple(steps))

    def hand_out(self, laps: list[Lap], _blocks: Blocks) -> Rounds:
        """Return the round in which each owner writes its blocks, of all nodes, to the other ranks of its node.

        A rank already has its own block, so that is not written.
        """
        levels = self.levels

        def steps(node: Group) -> Steps:
            for lap, number in product(laps, range(levels.num_nodes)):
                own = node.at, number
                yield from shm.to_others(node, lap.start[own], lap.count[own], lap.rank[own])

        return self._on_nodes(steps)

    def fold_blocks(self, laps: list[Lap], lying: list[Lap], _work: int, _total: int) -> Rounds:
        """Return the round in which owners fold their node's contributions to all their blocks into scratch."""
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
        """Return the round in which each owner writes the blocks in its scratch to the `RECV` of their ranks.

        Parameters
        ----------
        lying : list of Lap
            The places of the blocks in scratch.
        blocks, whole : Blocks
            The pieces of the blocks, and the whole blocks, indexed by rank.
        """
        steps = []
        for lap in lying:
            ranks, here, count = lap.own(self.levels)
            begin = blocks.at(ranks)[0] - whole.at(ranks)[0]
            target = Place(RECV, begin, ranks if lap.number else None)
            steps.append(copies(self.levels.slices.rank, Place(SCRATCH, here), target, count))
        yield Round(local=tuple(steps))

    def guarded(self, schedule: Schedule) -> Schedule:
        """Return the schedule with a barrier of each node before and after each channel.

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
        """Yield one round with the steps of all ranks; ``steps`` makes them for the nodes of each size."""
        place = self.levels.place
        nodes = place.nodes(self.levels.rank, place.sizes > 0)
        yield Round(local=tuple(step for node in nodes for step in steps(node)))


Within = ByMessages | InMemory
"""The way in which data moves within the nodes."""


def messages(collective: str) -> Build:
    """Return the `Build` of a collective that uses messages within the nodes."""
    compose = _COMPOSED[collective]
    return lambda group, call, tuning: compose(ByMessages(Levels(group, tuning)), call, tuning)


def direct(collective: str) -> Build:
    """Return the `Build` of a collective that uses memory within the nodes.

    On one node it builds the schedule of `hpccomm.schedules.algorithms.shm`. With one rank on each node it builds
    the schedule by messages. It does so too for uneven calls, where each rank gives its own counts: a rank does not
    know where its peers' blocks lie.
    """
    compose, by_messages = _COMPOSED[collective], messages(collective)
    on_one_node: Build = getattr(shm, collective)

    def build(group: Group, call: Signature, tuning: Tuning) -> Schedule:
        levels = Levels(group, tuning)
        if call.individual or levels.largest == 1 < levels.num_nodes:
            return by_messages(group, call, tuning)
        if levels.num_nodes == 1:
            return on_one_node(group, call, tuning)
        within = InMemory(levels)
        return within.guarded(compose(within, call, tuning))

    return build


def ordered_all_reduce(group: Group, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule in which each rank folds a block in rank order, and two levels gather the blocks."""
    within = ByMessages(Levels(group, tuning))

    def gather(_group: Group, blocks: Blocks) -> Rounds:
        laps = laps_of(within.levels, blocks)
        yield from within.to_owners(laps, blocks)
        yield from _gathered(within, laps, blocks)

    return ordered.all_reduce(gather)(group, call, tuning)


def _all_reduce(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that folds within the nodes, folds each slice across the nodes, and spreads within them."""
    levels = within.levels
    across, pieces = BALANCED, levels.pieces(call.counts[0])
    folds = levels.largest > 1 or levels.num_nodes == 1

    def run(piece: Range, slot: int) -> Rounds:
        if folds:
            yield from within.fold(piece, RECV, slot)
        yield from levels.each_slice(
            across, levels.cut(piece), slot, source=RECV if folds else SEND
        )
        yield from within.spread(piece)

    most = pieces[0].count
    scratch = max(within.fold_scratch(most), levels.slice_scratch(across, most))
    return in_channels(pieces, run, tuning, scratch)


def _reduce(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that folds within the nodes, folds each slice to the root's node, and collects at the root.

    Before the last step, a slice lies in scratch; if slices cannot lie anywhere, at its offset in the array.
    """
    levels, total = within.levels, call.counts[0]
    across, pieces = tree.REDUCE, levels.pieces(total)
    home, _ = levels.of(call.root)
    most = pieces[0].count
    room, width = (0, levels.slice(most)) if within.packed else (total, 0)

    def run(piece: Range, slot: int) -> Rounds:
        slices = levels.cut(piece)
        lying = slot if within.packed else None
        work = slot + width
        yield from within.fold(piece, SCRATCH, work, lying)
        yield from levels.each_slice(
            across, slices, work, root=home, source=SCRATCH, target=SCRATCH, lying=lying
        )
        yield from within.to_root(slices, call.root, lying)

    scratch = max(within.fold_scratch(most), levels.slice_scratch(across, most))
    return in_channels(pieces, run, tuning, width + scratch, room)


def _broadcast(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that scatters slices on the root's node, broadcasts each across nodes, and spreads them."""
    levels, root = within.levels, call.root
    home, _ = levels.of(root)

    def run(piece: Range, _slot: int) -> Rounds:
        slices = levels.cut(piece)
        if levels.num_nodes > 1:
            yield from within.from_root(slices, root)
        yield from levels.each_slice(tree.BROADCAST, slices, root=home)
        yield from within.spread(piece, root)

    return in_channels(levels.pieces(call.counts[0]), run, tuning, 0)


def _all_gather(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that collects a node's blocks at their owners, gathers across the nodes, then within them."""
    whole = Listed(call.counts)

    def run(piece: Blocks, _slot: int) -> Rounds:
        laps = laps_of(within.levels, piece)
        yield from within.collect(laps, piece, whole)
        yield from _gathered(within, laps, piece)

    return in_channels(within.levels.clipped(whole), run, tuning, 0)


def _gathered(within: Within, laps: list[Lap], blocks: Blocks) -> Rounds:
    """Return the rounds that gather the owners' blocks of `RECV` across the nodes, and then within them."""
    yield from gathered_across(within.levels, laps)
    yield from within.hand_out(laps, blocks)


def _reduce_scatter(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule that folds each block within the nodes, and then across them.

    The blocks that a node has folded lie in scratch, one after the other. If one rank of a node
    handles the whole array, they lie at their offsets in the array.
    """
    levels, whole, total = within.levels, Listed(call.counts), sum(call.counts)
    pieces = levels.clipped(whole)
    largest = pieces[0].largest
    every = levels.num_laps * levels.num_nodes
    room, partials = (0, every * largest) if within.packed else (total, 0)

    def run(piece: Blocks, slot: int) -> Rounds:
        laps = laps_of(levels, piece)
        lying = [lap.packed(slot) for lap in laps] if within.packed else laps
        work = slot + partials
        yield from within.fold_blocks(laps, lying, work, total)
        source = SCRATCH if levels.largest > 1 else SEND
        yield from folded_across(levels, lying, source, work)
        yield from within.distribute(lying, piece, whole)

    scratch = max(within.fold_blocks_scratch(largest, total), across_scratch(levels, largest))
    return in_channels(pieces, run, tuning, partials + scratch, room)


def _all_to_all(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Return the schedule of pairwise exchanges in an order in which a node meets few other nodes at a time."""
    return pairwise.all_to_all(within.levels.interleaved(), call, tuning, within.node)


def _barrier(within: Within, _call: Signature, _tuning: Tuning) -> Schedule:
    """Return the schedule of signals to the first rank of each node, then across the nodes, then back to all ranks."""
    levels = within.levels

    def channel() -> Rounds:
        yield from levels.each_node(signal_rounds)
        yield from barrier_rounds(levels.firsts)
        yield from backwards(levels.each_node(signal_rounds))

    return Schedule((channel,))


_COMPOSED: Mapping[str, Callable[[Within, Signature, Tuning], Schedule]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
