"""Pipelines: segments follow each other along a chain, or through the two trees.

On a chain of n ranks, s segments of b bytes take (n-1) (α + b/β) for the first one to arrive, and
(s-1) b/β for the others: J. Watts, R. van de Geijn, "A pipelined broadcast for multidimensional
meshes", 1995. In the double binary tree it is ⌈log2 n⌉ instead of n-1, with two messages of b a round:
P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", 2009.

Along a chain, nobody who sends waits for an arrival from the rank that he sends to, so that a latency
counts once for each rank. Where segments go both ways between two ranks, it counts in every round.
"""

from dataclasses import dataclass

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.path import Path, Reach, Stage, copy, fold


@dataclass(frozen=True, slots=True)
class Streams:
    """An array in shares, one for each channel, each in segments.

    Attributes
    ----------
    channels : int
        How many shares.
    segments : int
        Of the largest share.
    length : int
        Elements of a segment.
    count : int
        Elements of the array.
    share : int
        Elements of the largest share.
    """

    channels: int
    segments: int
    length: int
    count: int
    share: int


def shared_out(case: Case, parts: int = 1) -> Streams:
    """Return how an array is shared out; a pipeline moves `parts` segments at a time."""
    count, segment = case.call.counts[0], case.tuning.segment
    channels = max(1, min(case.tuning.channels, count // (parts * segment)))
    share = -(-count // channels)
    part = -(-share // parts)
    length = min(segment, part)
    return Streams(channels, -(-part // length), length, count, share)


def _along(case: Case, elements: float, start: int, local: Path) -> Path:
    """Return the path of a message along the chain that begins at rank `start`."""
    crossings = case.network.nodes - 1 + (not case.one_node and start % case.per_node != 0)
    across = case.hop(Reach.ACROSS, elements, both_ways=False)
    inner = case.hop(Reach.INNER, elements, case.per_node, both_ways=False)
    steps = case.ranks - 1
    return crossings * across + (steps - crossings) * inner + steps * local


def _followed(case: Case, shares: Streams, first: Path, local: Path) -> Stage:
    """Return the paths of the first segment and then, through one rank, of all others.

    `local` is what that rank does with each element.
    """
    paths = [first + (shares.count - shares.length) * local, *_sent(case, shares, first)]
    for reach in case.reaches:
        flows = 1 if reach else case.per_node
        if shares.segments > 1 and case.ranks > 2:  # some rank takes one and folds another
            each = (shares.share - shares.length) / (shares.segments - 1)
            port = case.inject(reach, each, flows)
            paths.append(first + (shares.segments - 1) * (port + each * local))
    return tuple(paths)


def _sent(case: Case, shares: Streams, first: Path) -> list[Path]:
    """Return the paths of the first segment, and of all others through a rank's port."""
    others = shares.channels * shares.segments - 1
    each = (shares.count - shares.length) / max(others, 1)
    return [
        first + others * case.inject(reach, each, 1 if reach else case.per_node)
        for reach in case.reaches
    ]


def _chain(case: Case, start: int, local: Path) -> list[Stage]:
    """Return the stages of a chain where each rank does `local` with each element."""
    shares = shared_out(case)
    first = _along(case, shares.length, start, shares.length * local)
    return [_followed(case, shares, first, local)]


def chain_broadcast(case: Case) -> list[Stage]:
    """Along the chain from the root."""
    return _chain(case, case.call.root, Path())


def chain_reduce(case: Case) -> list[Stage]:
    """Along the chain, which begins behind the root, to the root."""
    return _chain(case, (case.call.root + 1) % case.ranks, fold(1))


def scan(case: Case) -> list[Stage]:
    """Along the chain from rank 0; exclusive, a rank keeps what comes in and what it passes on."""
    if case.call.exclusive:
        return _chain(case, 0, fold(1) + copy(1))
    shares = shared_out(case)
    first = _along(case, shares.length, 0, fold(shares.length))
    # Rank 0 copies what it sends.
    reach = case.far if case.per_node == 1 else Reach.INNER
    start = case.inject(reach, shares.length, case.per_node) + copy(shares.length)
    others = shares.segments - 1
    return [
        (*_followed(case, shares, first, fold(1)), others * start + first, (others + 1) * start)
    ]


def chain_all_reduce(case: Case) -> list[Stage]:
    """Along the chain and back: while both ways are under way, neighbours wait for each other."""
    shares = shared_out(case)
    up = _along(case, shares.length, 0, fold(shares.length))
    down = _along(case, shares.length, 0, Path())
    own, total = shares.segments - 1, shares.channels * shares.segments - 1
    paths = [up + down + (shares.count - shares.length) * fold(1)]
    for reach in case.reaches:
        flows = 1 if reach else case.per_node
        # Ranks between two others send both ways over one port, if both are as far.
        ways = (
            2
            if case.ranks > 2 and (case.one_node or reach == Reach.INNER or case.per_node == 1)
            else 1
        )
        if not total:
            continue
        # Early in the chain all segments have gone by before the first one comes back.
        early = case.per_node if reach else 2
        together = min(max(shares.segments - 2 * (case.ranks - early), 0), own)
        if own:
            each = (shares.share - shares.length) / own
            port = case.inject(reach, each, flows)
            turn = case.hop(reach, each, flows) + (ways - 1) * port + fold(each)
            apart = 2 * port + fold(each)
            paths += [
                up + down + together * turn + (own - together) * apart,
                up + down + own * turn,
            ]
        mean = (shares.count - shares.length) / total
        share = together / max(own, 1)
        busy = total * (share * ways + (1 - share) * 2)
        paths.append(up + down + busy * case.inject(reach, mean, flows))
    return [tuple(paths)]
