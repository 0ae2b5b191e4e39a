"""Two levels: rings within the nodes, and across them what loads all links evenly.

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

If nodes differ in size, the number of slices is the smallest node's number of ranks. The other
ranks of a larger node take part only within it. If the smallest node has one rank, there is one slice:
the first rank of a node has the whole array, and chains move it within the node.

Across the nodes, all_reduce halves and doubles among a power of two of nodes and for short arrays, and
otherwise goes round a ring. All_gather and reduce_scatter use a ring, broadcast and reduce double trees.

Within the nodes data moves by messages, or in memory as `hpccomm.schedules.algorithms.within_nodes`
says. Across them it moves in the same way in both forms.

`ALGORITHMS` lists them.
"""

from collections.abc import Callable, Mapping

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import ordered, pairwise, shm, tree
from hpccomm.schedules.algorithms.binomial import backwards
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
from hpccomm.schedules.algorithms.linear import signal_rounds
from hpccomm.schedules.algorithms.partition import Blocks, Listed, Range, in_channels
from hpccomm.schedules.algorithms.within_nodes import ByMessages, InMemory
from hpccomm.schedules.schedule import RECV, SCRATCH, SEND, Build, Group, Rounds, Schedule, Tuning

Within = ByMessages | InMemory
"""How data moves within the nodes."""


def messages(collective: str) -> Build:
    """Return the build of a collective by messages."""
    compose = _COMPOSED[collective]
    return lambda group, call, tuning: compose(ByMessages(Levels(group, tuning)), call, tuning)


def direct(collective: str) -> Build:
    """Return the build of a collective with memory within the nodes.

    On one node it is that of `hpccomm.schedules.algorithms.shm`. With one rank a node it is that by
    messages. Where each rank has blocks of its own it is so too: a rank does not know where its
    peers' blocks lie.
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
    """Fold in rank order, each rank a block, and gather the blocks in two levels."""
    within = ByMessages(Levels(group, tuning))

    def gather(_group: Group, blocks: Blocks) -> Rounds:
        laps = laps_of(within.levels, blocks)
        yield from within.to_owners(laps, blocks)
        yield from _gathered(within, laps, blocks)

    return ordered.all_reduce(gather)(group, call, tuning)


def _all_reduce(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Fold within the nodes, each slice across them, and hand the slices out within them."""
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
    """Fold within the nodes, each slice across them to the root's node, then to the root.

    Until then a slice lies in scratch; if it cannot lie anywhere, then at its own place.
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
    """Cut slices on the root's node, broadcast each one across the nodes, hand them out within them."""
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
    """Collect the blocks of a node at their owners, gather each one across the nodes, and within them."""
    whole = Listed(call.counts)

    def run(piece: Blocks, _slot: int) -> Rounds:
        laps = laps_of(within.levels, piece)
        yield from within.collect(laps, piece, whole)
        yield from _gathered(within, laps, piece)

    return in_channels(within.levels.clipped(whole), run, tuning, 0)


def _gathered(within: Within, laps: list[Lap], blocks: Blocks) -> Rounds:
    """Gather the owners' blocks of `RECV` across the nodes, and then within them."""
    yield from gathered_across(within.levels, laps)
    yield from within.hand_out(laps, blocks)


def _reduce_scatter(within: Within, call: Signature, tuning: Tuning) -> Schedule:
    """Fold each block within the nodes, and then across them.

    The blocks that a node has folded lie in scratch, one after the other. If one rank of a node
    handles the whole array, they lie at their own places.
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
    """Exchange with one rank after the other, so that each node exchanges with one at a time."""
    return pairwise.all_to_all(within.levels.interleaved(), call, tuning, within.node)


def _barrier(within: Within, _call: Signature, _tuning: Tuning) -> Schedule:
    """Signal to the first rank of the node, then across nodes, then back to all of the node."""
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
