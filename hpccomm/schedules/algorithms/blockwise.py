"""All-gather and reduce-scatter in two levels, on the blocks of ranks.

The owners of a node share the blocks of all its ranks. With k owners, an owner has its own block and those
of the ranks k, 2k, ... places further on. Each of these is one lap. In a lap each owner has at most one
block of its node. The owners at the same place of all nodes gather or fold these blocks among themselves,
so that each node has each block of the lap on one owner. Before or after that, the ranks of each node
fold or gather the blocks of the lap.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms.channels import in_channels, side_by_side
from hpccomm.schedules.algorithms.families import PhaseFamily
from hpccomm.schedules.algorithms.levels import FirstBlocks, Levels, TableBlocks
from hpccomm.schedules.algorithms.partition import Blocks, Listed, clipped
from hpccomm.schedules.algorithms.phases import PhasePiece
from hpccomm.schedules.algorithms.power_of_two import span
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
    copies,
    transfers,
)


@dataclass(frozen=True, slots=True, eq=False)
class Lap:
    """One lap of the blocks of all ranks: at most one for each owner of each node.

    Attributes
    ----------
    number : int
        Which lap.
    rank : ndarray of int64, shape (owners, nodes)
        The rank to which each block belongs.
    start, count : ndarray of int64, shape (owners, nodes)
        Where it lies; the count is 0 where there is none.
    largest : int
        Elements of the largest of all blocks.
    """

    number: int
    rank: Column
    start: Column
    count: Column
    largest: int

    def at(self, start: Column) -> "Lap":
        """Return the lap with its blocks at other places: one place for each node."""
        return replace(self, start=np.broadcast_to(start, self.start.shape))

    def own(self, levels: Levels) -> tuple[Column, Column, Column]:
        """Return, for each owner, the rank whose block it has, where that lies, and its count."""
        owners, which = levels.slices, levels.slices.which
        return (
            self.rank[which, owners.at],
            self.start[which, owners.at],
            self.count[which, owners.at],
        )

    def piece(self, levels: Levels, owner: int, node: int, slot: int, segment: int) -> PhasePiece:
        """Return the block of an owner of a node as a piece across the nodes, with its root there."""
        start, count = int(self.start[owner, node]), int(self.count[owner, node])
        return PhasePiece(levels.owners_at(owner), start, count, slot, segment, root=node)

    def across(self, levels: Levels) -> TableBlocks:
        """Return the blocks of each owner's group, by node."""
        which = levels.slices.which
        assert which is not None
        return TableBlocks(self.start, self.count, which, self.largest)

    def of_node(self, node: int) -> FirstBlocks:
        """Return the blocks of a node, by owner."""
        return FirstBlocks(
            TableBlocks(self.start.T, self.count.T, node, self.largest), len(self.rank)
        )


def laps(levels: Levels, blocks: Blocks) -> list[Lap]:
    """Return the laps that hold the blocks of all ranks, where they lie."""
    place, owners = levels.place, levels.owners
    nodes = np.arange(levels.num_nodes, dtype=np.int64)
    every = []
    for number in range(-(-levels.largest // owners)):
        local = number * owners + np.arange(owners, dtype=np.int64)[:, None]
        there = local < place.sizes
        rank = place.rank(nodes, np.where(there, local, 0))
        start, count = blocks.at(rank)
        every.append(Lap(number, rank, start, np.where(there, count, 0), blocks.largest))
    return every


def pieces(levels: Levels, blocks: Blocks, segment: int) -> list[Blocks]:
    """Cut blocks into segments, unless one rank of a node handles the whole array."""
    one_has_all = levels.owners == 1 and (levels.largest > 1 or levels.num_nodes == 1)
    return [blocks] if one_has_all else clipped(blocks, segment)


def all_gather_rounds(
    inner: PhaseFamily, across: PhaseFamily, levels: Levels, blocks: Blocks, segment: int
) -> Rounds:
    """Gather the blocks of `RECV`, of which each rank has its own.

    Parameters
    ----------
    inner, across : PhaseFamily
        Within the nodes and across them.
    levels : Levels
        The ranks.
    blocks : Blocks
        By rank. They must lie one after the other if one rank of a node handles the whole array.
    segment : int
        As in the phases.
    """
    all_laps = laps(levels, blocks)
    yield _collected(levels, all_laps, blocks)
    yield from gathered_across(across, levels, all_laps, segment)
    scattering = inner.scattering
    if levels.owners == 1 or scattering is None:
        first, last = np.array([0]), np.array([len(levels.place.node)])
        (start,), (count,) = span(blocks, first, last)
        yield from levels.each_node(
            lambda node: inner.broadcast(PhasePiece(node, int(start), int(count), 0, segment))
        )
        return
    gather = scattering.all_gather

    def gathers(node: Group) -> Rounds:
        return side_by_side(
            *(gather(node, lap.of_node(k)) for lap in all_laps for k in range(levels.num_nodes))
        )

    yield from levels.each_node(gathers)


def gathered_across(
    across: PhaseFamily, levels: Levels, all_laps: list[Lap], segment: int
) -> Rounds:
    """Send the owners' blocks of `RECV` to the owners at the same place of all nodes."""
    if levels.num_nodes == 1:
        return iter(())
    return side_by_side(*(_gather(across, levels, lap, segment) for lap in all_laps))


def _gather(across: PhaseFamily, levels: Levels, lap: Lap, segment: int) -> Rounds:
    """Send each owner's block of the lap to the owners at the same place of all nodes."""
    if across.scattering is not None:
        return across.scattering.all_gather(levels.slices, lap.across(levels))
    return side_by_side(
        *(
            across.broadcast(lap.piece(levels, owner, node, 0, segment))
            for owner, node in np.ndindex(lap.start.shape)
        )
    )


def _collected(levels: Levels, all_laps: list[Lap], blocks: Blocks) -> Round:
    """Return the round in which owners get the blocks of the other ranks of their node."""
    place, rank, owners = levels.place, levels.rank, levels.slices
    local = place.local[rank]
    owner = place.rank(place.node[rank], local % levels.owners)
    start, count = blocks.at(rank)
    mine = transfers(rank, owner, RECV, start, count, local >= levels.owners)
    theirs = tuple(
        transfers(owners.rank, whose, RECV, start, count)
        for whose, start, count in (lap.own(levels) for lap in all_laps[1:])
    )
    return Round(receives=theirs, sends=(mine,))


def reduce_scatter(
    inner: PhaseFamily, across: PhaseFamily, levels: Levels, call: Signature, tuning: Tuning
) -> Schedule:
    """Fold the blocks of the ranks, piece by piece.

    The blocks that a node has folded lie in scratch, one after the other. If one rank of a node
    handles the whole array, they lie at their own places.
    """
    blocks, total, segment = Listed(call.counts), sum(call.counts), tuning.segment
    cut = pieces(levels, blocks, segment)
    largest, nodes = cut[0].largest, np.arange(levels.num_nodes, dtype=np.int64)
    own = blocks.at(levels.rank)[0]
    scattering = inner.scattering if levels.owners > 1 else None
    final = levels.num_nodes == 1
    folded = -(-levels.largest // levels.owners) * levels.num_nodes
    room = total if scattering is None else 0
    partials = 0 if scattering is None else folded * largest

    def fold(lap: Lap, node: Group, slot: int, work: int) -> Iterator[Rounds]:
        assert scattering is not None
        for each in nodes.tolist():
            number = lap.number * levels.num_nodes + each
            target = Place(SCRATCH, slot + number * largest)
            free = work + number * scattering.scratch(node.size, largest)
            yield scattering.reduce_scatter(
                node, lap.of_node(each), target, free, final=final, source=SEND
            )

    def run(piece: Blocks, slot: int) -> Rounds:
        slot += room
        work = slot + partials
        all_laps = laps(levels, piece)
        if scattering is not None:
            yield from levels.each_node(
                lambda node: side_by_side(
                    *chain.from_iterable(fold(lap, node, slot, work) for lap in all_laps)
                )
            )
            lying = [
                lap.at(slot + (lap.number * levels.num_nodes + nodes) * largest) for lap in all_laps
            ]
        else:
            if levels.largest > 1 or final:
                yield from levels.each_node(
                    lambda node: inner.reduce(
                        PhasePiece(node, 0, total, work, segment, target=SCRATCH, final=final)
                    )
                )
            lying = all_laps
        source = SCRATCH if levels.largest > 1 else SEND
        yield from folded_across(across, levels, lying, source, work, segment)
        yield _distributed(levels, lying, piece, own)

    within = (
        folded * scattering.scratch(levels.largest, largest)
        if scattering is not None
        else max(inner.reduce.scratch(size, total, segment) for size in levels.node_sizes)
    )
    beyond = across_scratch(across, levels, largest, segment)
    schedule = in_channels(cut, run, tuning, partials + max(within, beyond))
    return replace(schedule, scratch=room + schedule.scratch)


def across_scratch(across: PhaseFamily, levels: Levels, largest: int, segment: int) -> int:
    """Return the elements that `folded_across` needs for blocks of at most `largest` elements."""
    every = -(-levels.largest // levels.owners)
    if across.scattering is not None:
        return every * across.scattering.scratch(levels.num_nodes, largest)
    return every * levels.num_nodes * across.reduce.scratch(levels.num_nodes, largest, segment)


def folded_across(
    across: PhaseFamily, levels: Levels, lying: list[Lap], source: str, work: int, segment: int
) -> Rounds:
    """Fold across nodes the blocks that nodes have folded in `source`, into scratch of their owners.

    Parameters
    ----------
    across : PhaseFamily
        Across the nodes.
    levels : Levels
        The ranks.
    lying : list of Lap
        Where the blocks lie, in `source` and in scratch.
    source : str
        The buffer.
    work : int
        Where in scratch `across_scratch` elements begin.
    segment : int
        As in the phases.
    """
    if levels.num_nodes == 1:
        return iter(())
    return side_by_side(*(_fold(across, levels, lap, source, work, segment) for lap in lying))


def _fold(
    across: PhaseFamily, levels: Levels, lap: Lap, source: str, work: int, segment: int
) -> Rounds:
    """Fold the blocks of a lap over all nodes, into scratch of each block's owner."""
    if across.scattering is not None:
        slot = work + lap.number * across.scattering.scratch(levels.num_nodes, lap.largest)
        target = Place(SCRATCH, lap.own(levels)[1])
        return across.scattering.reduce_scatter(
            levels.slices, lap.across(levels), target, slot, final=True, source=source
        )
    scratch = across.reduce.scratch(levels.num_nodes, lap.largest, segment)
    return side_by_side(
        *(
            across.reduce(
                replace(
                    lap.piece(
                        levels,
                        owner,
                        node,
                        work + (lap.number * levels.num_nodes + node) * scratch,
                        segment,
                    ),
                    source=source,
                    target=SCRATCH,
                )
            )
            for owner, node in np.ndindex(lap.start.shape)
        )
    )


def _distributed(levels: Levels, lying: list[Lap], blocks: Blocks, own: Column) -> Round:
    """Return the round in which each rank gets its block from the owner that has it in scratch.

    Parameters
    ----------
    levels : Levels
        The ranks.
    lying : list of Lap
        Where the blocks lie in scratch.
    blocks : Blocks
        By rank.
    own : ndarray of int64
        Where the block of each rank begins, which is cut into these pieces.
    """
    place, rank, owners = levels.place, levels.rank, levels.slices
    local = place.local[rank]
    owner = place.rank(place.node[rank], local % levels.owners)
    start, count = blocks.at(rank)
    into = transfers(rank, owner, RECV, start - own, count, local >= levels.owners)
    sends = tuple(
        transfers(owners.rank, whose, SCRATCH, start, count)
        for whose, start, count in (lap.own(levels) for lap in lying[1:])
    )
    _, here, many = lying[0].own(levels)
    has = local < levels.owners
    keep = copies(owners.rank, Place(SCRATCH, here), Place(RECV, (start - own)[has]), many)
    return Round(receives=(into,), sends=sends, local=(keep,))
