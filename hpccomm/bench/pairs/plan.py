"""Rounds of pairs that share no link: pure functions.

Between nodes, a round is one of a round-robin tournament of the nodes (the circle method, T.
Kirkman, 1850), in which each node meets one other; one rank of each of the two nodes takes part.
Inside nodes, each node has one pair at work. The first rounds cover all nodes, and the next ones
all ranks: a run that stops early has a fair sample.

`hpccomm.bench.pairs.measuring` measures the rounds in this order.
"""

from collections.abc import Iterator, Sequence

Pair = tuple[int, int]
"""Two ranks, the lower one first."""

Round = tuple[Pair, ...]
"""Pairs that are measured at once; no rank is in two of them."""


def tournament(players: Sequence[int]) -> Iterator[list[Pair]]:
    """Yield rounds in which every player meets one other, until all pairs have met once.

    With an odd number of players one of them rests in each round.
    """
    circle: list[int | None] = list(players)
    if len(circle) % 2:
        circle.append(None)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(one, other) for one, other in met if one is not None and other is not None]
        circle.insert(1, circle.pop())


def between(one: Sequence[int], other: Sequence[int]) -> Iterator[Pair]:
    """Yield all pairs of a rank of one node and one of another; the first of them cover all ranks."""
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    for shift in range(len(shorter)):
        for number, rank in enumerate(longer):
            partner = shorter[(number + shift) % len(shorter)]
            yield min(rank, partner), max(rank, partner)


def rounds(nodes: Sequence[int]) -> list[Round]:
    """Return rounds that measure every pair of ranks once.

    Parameters
    ----------
    nodes : sequence of int
        The node of each rank.
    """
    members: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        members.setdefault(node, []).append(rank)
    meetings = [
        [list(between(members[one], members[other])) for one, other in met]
        for met in tournament(list(members))
    ]
    outside: list[Round] = []
    for turn in range(max((len(each) for met in meetings for each in met), default=0)):
        outside += [tuple(each[turn] for each in met if turn < len(each)) for met in meetings]
    own = [[pair for met in tournament(each) for pair in met] for each in members.values()]
    inside: list[Round] = [
        tuple((min(each[turn]), max(each[turn])) for each in own if turn < len(each))
        for turn in range(max(map(len, own), default=0))
    ]
    # In step with each other, so that a part of all rounds has its part of both.
    share = len(inside) / max(1, len(outside))
    mixed: list[Round] = []
    for number, each in enumerate(outside):
        mixed.append(each)
        mixed += inside[int(number * share) : int((number + 1) * share)]
    mixed += inside[int(len(outside) * share) :]
    return [each for each in mixed if each]


def again(pairs: Sequence[Pair], nodes: Sequence[int]) -> list[Round]:
    """Return rounds of some pairs, which share no rank, and no node as far as they are of different nodes."""
    left, planned = list(pairs), []
    while left:
        busy: set[int] = set()
        taken, later = [], []
        for pair in left:
            ends = {nodes[pair[0]], nodes[pair[1]]}
            if busy & ends:
                later.append(pair)
            else:
                busy |= ends
                taken.append(pair)
        planned.append(tuple(taken))
        left = later
    return planned
