"""Two levels: a ring within each node, and across the nodes halving and doubling, trees or a ring.

The price is the sum over the phases of the two levels: within a node those of L ranks, across the
nodes those of N ranks with 1/L of the array, L of them side by side. All-reduce of S bytes:
2 (L-1) (α + S/(L β)) + (L-1) S/(L γ) within, and what the halving and doubling of S/L costs across, or
the ring where N is no power of two and S not small.
See A. R. Mamidala, R. Kumar, D. De, D. K. Panda, "MPI collectives on modern multicore clusters:
performance optimizations and communication characteristics", 2008.
"""

import math
from dataclasses import replace

from hpccomm.schedules.algorithms.families import halves_evenly
from hpccomm.schedules.algorithms.hierarchical import DEFAULT
from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas import shifts, tree
from hpccomm.schedules.cost.formulas.doubling import halving_doubling_steps
from hpccomm.schedules.cost.path import Path, Reach, Stage, copy, fold
from hpccomm.schedules.cost.pieces import Pieces, deal
from hpccomm.schedules.cost.step import Step, Steps, chained, in_turn, local_step


def _pieces(case: Case) -> Pieces:
    span = DEFAULT.across.span(case.network.nodes)
    whole = span * case.tuning.segment * case.per_node
    return deal(case.call.counts[0], whole, case.tuning.channels)


def _ring(case: Case, elements: float, local: Path) -> list[Step]:
    """Return the ring within a node on slices of `elements`.

    `local` is what is done with each element that comes in.
    """
    width = case.per_node
    if width == 1:
        return []
    return [(width - 1) * case.step(Reach.INNER, elements, width, elements * local)]


def _first(case: Case, elements: float) -> list[Step]:
    """Return the messages between one rank of a node and all others of it, at once."""
    others = case.per_node - 1
    if not others:
        return []
    step = case.step(Reach.INNER, elements, both_ways=False)
    return [Step(step.hop + (others - 1) * step.port, others * step.port)]


def _between(case: Case, elements: float) -> Case:
    """Return the case of slices of `elements` across the nodes, from or to the root in one pipeline."""
    call = replace(case.call, counts=(math.ceil(elements),), root=0)
    return replace(case.between, call=call, tuning=replace(case.tuning, channels=1))


def all_reduce(case: Case) -> list[Stage]:
    """Fold within the nodes, each slice across them, and gather within them."""
    nodes = case.network.nodes

    def across(part: float) -> list[Step]:
        if case.one_node:
            return []
        if halves_evenly(nodes, math.ceil(part)):
            return halving_doubling_steps(case.between, part)
        return [
            *_round(case, part / nodes, fold(part / nodes)),
            *_round(case, part / nodes, Path()),
        ]

    def ways(elements: float) -> list[Steps]:
        part = max(elements / case.per_node, 1)
        return [[*_ring(case, part, fold(1)), *across(part), *_ring(case, part, Path())]]

    return in_turn(_pieces(case), ways)


def reduce(case: Case) -> list[Stage]:
    """Fold within the nodes, each slice up trees across them, and collect the slices at the root."""
    pieces = _pieces(case)
    part = max(pieces.mean / case.per_node, 1)
    # A rank alone on its node copies what others fold.
    alone = case.per_node == 1
    within = [local_step(copy(part))] if alone else _ring(case, part, fold(1))
    collected = [*_first(case, part), local_step(copy(part))]
    if case.one_node:
        return in_turn(pieces, lambda _: [[*within, *collected]])
    others = pieces.all_pieces - 1
    around = chained(within) + chained(collected)
    first, following = tree.reduce(_between(case, part))
    ways = [around + one + other for one in first for other in following]
    # While pieces follow each other, each port and each rank has to do with all of them.
    ports = sum(
        (step.port for step in [*within, *collected]),
        2 * case.between.inject(Reach.ACROSS, part / 2),
    )
    worked = sum((step.local for step in [*within, *collected]), 2 * fold(part / 2))
    return [tuple(others * busy + way for way in ways for busy in (ports, worked))]


def broadcast(case: Case) -> list[Stage]:
    """Deal slices on the root's node, each goes across in a tree, and gather within the nodes.

    The root has sent its slice long before it has come to all nodes; then it hands out all of the
    array on its own node, along a chain.
    """
    pieces = _pieces(case)
    width, elements = case.per_node, pieces.mean
    part = max(elements / width, 1)
    segments = max(1, -(-int(elements) // case.tuning.segment))
    step = case.step(Reach.INNER, elements / segments, width)
    along = (width - 1) * step.hop + (segments - 1) * step.port if width > 1 else Path()
    spread = chained(_ring(case, part, Path()))
    others = pieces.all_pieces - 1
    if case.one_node:
        return [(others * segments * step.port + along,)]
    dealt = chained(_first(case, part))
    between = _between(case, elements / width)
    ports = 2 * between.inject(Reach.ACROSS, part / 2)
    ways = [dealt.without_latency + ports + along]
    first, following = tree.broadcast(between)
    ways += [dealt + one + other + spread for one in first for other in following]
    # Until the last piece the root, and ranks of other nodes that hand on to two, are busy.
    root = dealt.without_latency + ports + segments * step.port
    inner = ports + spread
    return [tuple(others * busy + way for way in ways for busy in (root, inner))]


def _blocks(case: Case) -> Pieces:
    return deal(max(case.call.counts), case.tuning.segment, case.tuning.channels)


def _many(case: Case, elements: float, local: Path) -> list[Step]:
    """Return the rings within a node on one block for each node, side by side."""
    width, nodes = case.per_node, case.network.nodes
    if width == 1:
        return []
    step = case.step(Reach.INNER, elements, width)
    at_once = Step(step.hop + (nodes - 1) * step.port, nodes * step.port, nodes * local)
    return [(width - 1) * at_once]


def _round(case: Case, elements: float, local: Path) -> list[Step]:
    """Return the ring across the nodes."""
    steps = case.network.nodes - 1
    return [steps * case.between.step(Reach.ACROSS, elements, 1, local)] if steps else []


def all_gather(case: Case) -> list[Stage]:
    """Hand each block across the nodes, and those of each node round within them."""

    def ways(elements: float) -> list[Steps]:
        within = _many(case, elements, Path())
        return [[local_step(copy(elements)), *_round(case, elements, Path()), *within]]

    return in_turn(_blocks(case), ways)


def reduce_scatter(case: Case) -> list[Stage]:
    """Fold each block within the nodes, and then across them."""

    def ways(elements: float) -> list[Steps]:
        folded = fold(elements)
        across = _round(case, elements, folded)
        return [[*_many(case, elements, folded), *across, local_step(copy(elements))]]

    return in_turn(_blocks(case), ways)


def all_to_all(case: Case) -> list[Stage]:
    """Exchange with the ranks at distance 1 on both sides, by place and then by node, at distance 2, ..."""
    n, width, nodes = case.ranks, case.per_node, case.network.nodes
    if case.one_node:
        return shifts.all_to_all(case)
    block = max(max(case.call.counts), 1)
    segment = min(case.tuning.segment, block)
    pieces = -(-block // segment)
    channels = min(case.tuning.channels, pieces * (n // 2 + 1)) if case.call.uniform else 1
    each = block / pieces
    inner, across = case.step(Reach.INNER, each, width), case.step(Reach.ACROSS, each, width)
    near = n // 2 // nodes
    far = n // 2 - near
    # In the last round both sides are one rank where n is even.
    alone, alone_far = int(n % 2 == 0 and width % 2 == 0), int(n % 2 == 0 and width % 2 == 1)
    own = (
        far * across.hop
        + (far - alone_far) * across.port
        + near * inner.hop
        + (near - alone) * inner.port
    )
    busy = across.hop + (pieces * (n - width) - 1) * across.port
    within = inner.hop + (pieces * (width - 1) - 1) * inner.port if width > 1 else Path()
    before = copy(block)
    return [(before + pieces / channels * own, before + busy, before + within)]


def barrier(case: Case) -> list[Stage]:
    """Hear of all of the node, then of all nodes, then tell all of the node."""
    within = (chained(_first(case, 0)),)
    if case.one_node:
        return [within, within]
    return [within, *shifts.dissemination(replace(case.between, streams=1)), within]
