"""Rounds in which each rank sends to the one at the same distance: what crosses nodes, and how often.

Dissemination and Bruck take the distances 1, 2, 4, ..., pairwise exchange 1, 2, 3, ..., n-1. On one
level the latter costs (n-1) (α + S/(n β)) a phase, Bruck's all-gather k α + (n-1)/n S/β with
k = ⌈log2 n⌉. See J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for
all-to-all communications in multiport message-passing systems", 1997; D. Hensgen, R. Finkel,
U. Manber, "Two algorithms for barrier synchronization", 1988; and for pairwise exchange R. Thakur,
R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", 2005.

Over at least a node's ranks every message is between nodes. Over a shorter distance some are. A path
that follows the messages is seldom where they are; a rank at the end of its node sends all of its own
across. So there is one path that goes on, and one that stays there.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.path import Path, Reach, Stage, after, copy, fold
from hpccomm.schedules.cost.pieces import Pieces, deal
from hpccomm.schedules.cost.step import Step, chained, local_step


def _doubling(
    case: Case, elements: Sequence[float], local: Path
) -> tuple[list[Step], list[Step], list[Step]]:
    """Return the rounds at distance 1, 2, 4, ... with so many elements each, and `local` after them.

    Returns
    -------
    near, edge, far : list of Step
        Those below a node's ranks, as seen within it and as seen from its end; the others.
    """
    near: list[Step] = []
    edge: list[Step] = []
    far: list[Step] = []
    for bit, many in enumerate(elements):
        distance = 1 << bit
        away = min(distance, case.ranks - distance)
        if not case.one_node and away >= case.per_node:
            far.append(case.step(Reach.ACROSS, many, case.per_node, local))
        else:
            near.append(case.step(Reach.INNER, many, case.per_node, local))
            edge.append(case.step(Reach.ACROSS, many, away, local))
    return near, edge, far


def _crossings_of(case: Case, near: list[Step], edge: list[Step]) -> list[list[Step]]:
    """Return the ways through rounds below a node's ranks that cross as often as can be."""
    # All distances below a power of two together are less than it: they cross once. Else twice.
    often = ((1 << len(near)) + case.per_node - 2) // case.per_node
    if often > 1:
        return [[*near[:-often], *edge[-often:]]]
    return [[*near[:i], edge[i], *near[i + 1 :]] for i in range(len(near))]


def _around(case: Case, elements: Sequence[float]) -> Stage:
    """Return the paths through rounds at distance 1, 2, 4, ..., round the end."""
    near, edge, far = _doubling(case, elements, Path())
    if case.one_node or not near:
        return (chained([*near, *far]),)
    staying = [*(step.stay for step in edge[:-1]), edge[-1]]
    ways = [*_crossings_of(case, near, edge), staying]
    return tuple(chained([*steps, *far]) for steps in ways)


def dissemination(case: Case) -> list[Stage]:
    """⌈log2 n⌉ signals."""
    return [_around(case, [0.0] * (case.ranks - 1).bit_length())]


def bruck_all_gather(case: Case) -> list[Stage]:
    """Twice as many blocks in each round."""
    n, block = case.ranks, max(case.call.counts)
    sent = [min(1 << bit, n - (1 << bit)) * block for bit in range((n - 1).bit_length())]
    return [(copy(block),), _around(case, sent)]


def bruck_all_to_all(case: Case) -> list[Stage]:
    """About half of the blocks in each round, packed before and unpacked after."""
    n, block = case.ranks, case.call.counts[0]
    sent = []
    for bit in range((n - 1).bit_length()):
        laps, rest = divmod(n, 2 << bit)
        sent.append((laps * (1 << bit) + max(rest - (1 << bit), 0)) * block)
    packing = copy(2 * n * block + 2 * sum(sent))
    return [(packing,), _around(case, sent)]


class _Way(NamedTuple):
    """What lies on a path over the distances 1, 2, ..., L-1.

    Attributes
    ----------
    crossing : int
        Messages between nodes that it follows.
    held : int
        Rounds in which it stays with a rank that sends one.
    near : int
        Messages within nodes that it follows.
    """

    crossing: int
    held: int
    near: int


@lru_cache
def _ways(per_node: int) -> tuple[_Way, ...]:
    """Return the paths that are longest where latencies weigh much, as much as ports, and little."""
    return tuple(dict.fromkeys(_way(per_node, share) for share in (1.0, 0.7, 0.5, 0.3)))


def _way(per_node: int, latency: float) -> _Way:
    """Return the longest path where latency is such a share of a message between nodes."""
    at = np.arange(per_node)
    cost = np.array([1.0, 1.0 - latency, 0.5 / per_node])  # little within nodes
    taken = np.zeros((per_node, 3), np.int64)
    for distance in range(1, per_node):
        across = at + distance >= per_node
        gone = np.roll(taken + np.where(across[:, None], (1, 0, 0), (0, 0, 1)), distance, axis=0)
        stayed = taken + np.where(across[:, None], (0, 1, 0), (0, 0, 0))
        taken = np.where((gone @ cost >= stayed @ cost)[:, None], gone, stayed)
    return _Way(*map(int, taken[np.argmax(taken @ cost)]))


def exchange(case: Case, messages: int, elements: float) -> Stage:
    """Return the paths through `messages` times the rounds at distance 1, 2, ..., n-1."""
    n, width = case.ranks, case.per_node
    inner = case.hop(Reach.INNER, elements, width)
    if case.one_node:
        return (messages * (n - 1) * inner,)
    far = case.step(Reach.ACROSS, elements, width)
    edge = case.step(Reach.ACROSS, elements, -(-width // 2))
    both = min(width - 1, (n - 1) // 2)  # distances to the left, and to the right, below L
    all_cross = max(n - 1 - 2 * both, 0)
    following = [
        messages
        * (
            all_cross * far.hop
            + 2 * (way.crossing * edge.hop + way.held * edge.port + way.near * inner)
        )
        for way in _ways(width)
    ]
    staying = far.hop + max(all_cross - 1, 0) * far.port + 2 * both * edge.port
    return (*following, (messages - 1) * (staying + edge.port) + staying)


def _phase(case: Case, blocks: Pieces, local: Path) -> Stage:
    """Return the paths through a phase of pairwise exchange, with `local` steps for all pieces."""
    own = exchange(case, blocks.pieces, blocks.piece)
    if blocks.channels == 1:
        return after(local, own)
    n, width = case.ranks, case.per_node
    crossing = 0 if case.one_node else n - width
    start = case.hop(case.far, blocks.piece, width)
    link = case.inject(case.far, blocks.mean, width)
    times = blocks.all_pieces * (crossing or n - 1)
    share = blocks.elements / blocks.total
    return (*after(share * local, own), start + times * link, start + local)


def reduce_scatter(case: Case) -> list[Stage]:
    """Each block of a rank goes to its owner, who folds."""
    blocks = deal(max(case.call.counts), case.tuning.segment, case.tuning.channels)
    return [_phase(case, blocks, (case.ranks - 1) * fold(blocks.total))]


def all_gather(case: Case) -> list[Stage]:
    """Each rank's block goes to all others."""
    blocks = deal(max(case.call.counts), case.tuning.segment, case.tuning.channels)
    return [after(copy(blocks.total), _phase(case, blocks, Path()))]


def _blocks(case: Case) -> Pieces:
    """Return the blocks of an array's pieces."""
    block = -(-case.call.counts[0] // case.ranks)
    return deal(block, case.tuning.segment, case.tuning.channels)


def all_reduce(case: Case) -> list[Stage]:
    """Reduce-scatter, then all-gather."""
    blocks = _blocks(case)
    folded = (case.ranks - 1) * fold(blocks.total)
    if case.call.counts[0] < case.ranks:
        return [after(folded, _few(case)), _few(case)]
    return [_phase(case, blocks, folded), _phase(case, blocks, Path())]


def _few(case: Case) -> Stage:
    """Return the path through a phase in which few ranks have a block, of one element.

    Others have nothing to wait for, and send at once.
    """
    owners = case.call.counts[0]
    apart = case.ranks // owners
    near = case.per_node > 1 and apart <= case.per_node
    first = Reach.INNER if near else case.far
    step = case.step(case.far, 1)
    others = max(case.ranks - owners - (1 if case.one_node else case.per_node), 0)
    return (case.hop(first, 1) + (owners - 1) * step.hop + others * step.port,)


def reduce(case: Case) -> list[Stage]:
    """Reduce-scatter; then the root collects."""
    blocks = _blocks(case)
    folded = (case.ranks - 1) * fold(blocks.total)
    if case.call.counts[0] < case.ranks:
        return [after(folded, _few(case)), (case.hop(case.far, 1),)]
    # In the middle of nodes ranks are done a message earlier than at their ends.
    waits = 0 if case.one_node or case.per_node == 1 else -1
    early = waits * case.inject(Reach.ACROSS, blocks.mean, both_ways=False)
    collected = after(copy(blocks.mean) + early, collecting(case, blocks.mean))
    return [_phase(case, blocks, folded), tuple(blocks.all_pieces * path for path in collected)]


def collecting(case: Case, elements: float) -> Stage:
    """Return the paths of a message of each rank to the root, or from it, all at once."""
    inner = case.step(Reach.INNER, elements, both_ways=False)
    others = case.per_node - 1
    paths = [inner.hop + (others - 1) * inner.port] if others else []
    if not case.one_node:
        across = case.step(Reach.ACROSS, elements, both_ways=False)
        paths.append(across.hop + (case.ranks - case.per_node - 1) * across.port)
    return tuple(paths)


def all_to_all(case: Case) -> list[Stage]:
    """A block to the ranks at distance 1 on both sides, at distance 2, ..."""
    n, width = case.ranks, case.per_node
    block = max(max(case.call.counts), 1)
    segment = min(case.tuning.segment, block)
    pieces = -(-block // segment)
    channels = min(case.tuning.channels, pieces * (n // 2 + 1)) if case.call.uniform else 1
    each = block / pieces
    inner, across = case.step(Reach.INNER, each, width), case.step(Reach.ACROSS, each, width)
    rounds = n // 2
    alone = int(n % 2 == 0)  # in the last round both sides are one rank where n is even
    if case.one_node:
        own = [rounds * inner.hop + (rounds - alone) * inner.port]
        busy = inner.hop + (pieces * (n - 1) - 1) * inner.port
    else:
        short = min(width - 1, rounds)
        # Above half of a node's ranks there are some that send across to both sides, below some
        # that send to both sides within.
        twice = short - min(width // 2, short)
        far = rounds - short
        both = (far + twice) * across.hop + (far + twice - min(alone, far)) * across.port
        edge = case.step(Reach.ACROSS, each, -(-width // 2))
        own = [
            both + (short - twice) * edge.hop,
            both + (short - twice) * inner.hop + (width - 1) // 2 * inner.port,
        ]
        busy = across.hop + (pieces * (n - width) - 1) * across.port
    before = copy(block)
    return [(*(before + pieces / channels * path for path in own), before + busy)]


def scan(case: Case) -> list[Stage]:
    """From each rank to those 1, 2, 4, ... further on, which fold."""
    pieces = deal(case.call.counts[0], case.tuning.segment, case.tuning.channels)
    bits = (case.ranks - 1).bit_length()
    folds = 2 if case.call.exclusive else 1  # what is handed on, and the result

    def one(elements: float) -> Stage:
        kept = Path() if case.call.exclusive else copy(elements)
        return _up_to_the_end(case, [elements] * bits, folds * fold(elements), kept)

    own = tuple(pieces.pieces * path for path in one(pieces.piece))
    if pieces.channels == 1:
        return [own]
    port = case.inject(case.far, pieces.mean, case.per_node)
    busy = pieces.all_pieces * bits * port
    return [(*own, busy, pieces.all_pieces * bits * folds * fold(pieces.mean))]


def _up_to_the_end(case: Case, elements: Sequence[float], local: Path, kept: Path) -> Stage:
    """Return the paths through rounds at distance 1, 2, 4, ..., not round the end.

    All distances lead from rank 0 to the last one of a power of two; else one must be left out.
    `local` follows each of them; `kept` is what rank 0 does after the first.
    """
    near, edge, far = _doubling(case, elements, local)
    everywhere = (1 << len(elements)) - 1
    left_out = [bit for bit in range(len(elements)) if everywhere - (1 << bit) < case.ranks]
    # From rank 0: over a node's ranks only if they are no power of two.
    often = 0 if case.one_node or not near else ((1 << len(near)) - 1) // case.per_node
    steps = [*near[: len(near) - often], *edge[len(near) - often :], *far]
    ways = [steps]
    if case.ranks <= everywhere:
        # It sends there, or folds what comes, or both if it has come from far enough.
        ways = [
            [*steps[:bit], held, *steps[bit + 1 :]]
            for bit in left_out
            for held in (
                local_step(steps[bit].port + (Path() if bit else kept)),
                local_step(local),
            )
        ]
        # Without the longest one there is room to begin where the others cross.
        if far and near and case.per_node + everywhere // 2 <= case.ranks:
            ways += [
                [*steps, *far[:-1], local_step(local)] for steps in _crossings_of(case, near, edge)
            ]
    if not case.one_node and edge:
        held = [step.stay for step in far[-1:]] if case.ranks <= everywhere else far[-1:]
        ways.append([*(step.stay for step in edge), *far[:-1], *held])
    return tuple(chained(steps) for steps in ways)


def exchanged_scan(case: Case) -> list[Stage]:
    """Blocks to their owners, who fold one after the other, and prefixes back."""
    blocks = _blocks(case)
    folded = (case.ranks - 1) * fold(blocks.total)
    if case.call.counts[0] < case.ranks:
        return [after(folded, _few(case)), _few(case)]
    local = folded + 2 * copy(blocks.total)
    return [_phase(case, blocks, local), _phase(case, blocks, Path())]
