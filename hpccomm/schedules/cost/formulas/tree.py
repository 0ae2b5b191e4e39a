"""Double binary tree: two messages a level of the tree, and two or four in every round after that.

With h = ⌈log2 n⌉, s segments of b bytes in each half, on one level:

- broadcast: (s + h - 1) (α + 2 b/β), reduction 2 b/γ more in each round;
- all-reduce: h (α + 2 b/β + 2 b/γ) up and h (α + 2 b/β) down, and s - 1 rounds of both.

A rank's two children are served one after the other, and it is a child itself in the other tree; so
where segments follow each other, the latency counts in each round: P. Sanders, J. Speck, J. L. Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009, where n is a power of
two. Less is to do until the trees are full.
"""

from dataclasses import dataclass

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas.pipelines import shared_out
from hpccomm.schedules.cost.path import Path, Reach, Stage, fold


@dataclass(frozen=True, slots=True)
class _Load:
    """What a rank has to do for each segment of both trees, in a round in which they are full.

    Attributes
    ----------
    waited : int
        Messages on the longest way through a round: its latency, and this many times its port; 0
        where nobody waits for one whom he sends to.
    sent : int
        Messages over the busiest port.
    folded, most_folded : int
        Segments that are folded on that way, and by the busiest rank.
    """

    waited: int
    sent: int
    folded: int = 0
    most_folded: int = 0


def _through(case: Case, elements: float, local: Path, *, out: int, free: int = 0) -> Path:
    """Return the path of a segment through the height of a tree.

    Parameters
    ----------
    case : Case
        What is asked.
    elements : float
        Of the segment.
    local : Path
        What each rank above another one does with it, for each of two.
    out : int
        Edges below the first ranks of the nodes that lead to another node, one after the other.
    free : int
        Messages between nodes that need not wait for another one at their port.
    """
    if case.ranks < 4:
        # The root has one child in each tree; they have none, or one in one of the trees.
        reach = Reach.ACROSS if case.per_node < case.ranks else Reach.INNER
        step = case.step(reach, elements, case.per_node, both_ways=False)
        messages = case.ranks - 1
        return messages * step.hop + step.port + case.ranks * local
    height = (case.ranks - 1).bit_length()
    # Numbers of many zeros are on top: those of the first ranks of nodes.
    top = 0 if case.one_node else min((case.network.nodes - 1).bit_length(), height)
    out = 0 if case.one_node else min(out, height - top)
    inner = case.step(Reach.INNER, elements, case.per_node, both_ways=False)
    across = case.step(Reach.ACROSS, elements, both_ways=False)
    return (
        top * across.hop
        + (top - free) * across.port
        + out * across.hop
        + (height - top - out) * (inner.hop + inner.port)
        + 2 * height * local
    )


def _down(case: Case, elements: float) -> Stage:
    """Return the path of a segment from the root to the leaf that gets it last."""
    return (_through(case, elements, Path(), out=2),)


def _up(case: Case, elements: float) -> Stage:
    """Return the paths of a segment to the root, with a fold of two by each rank on it.

    The second tree leaves nodes once more than the first. Then its segment comes to the root alone.
    """
    local = fold(elements)
    if case.one_node or case.ranks < 4 or case.per_node < 3:
        return (_through(case, elements, local, out=2),)
    return (
        _through(case, elements, local, out=2, free=1),
        _through(case, elements, local, out=1),
    )


def _following(case: Case, few: tuple[_Load, _Load], many: _Load) -> Stage:
    """Return the paths of the segments that follow the first one.

    `few` is what is to do for two ranks, and for three, `many` for more.
    """
    shares = shared_out(case, 2)
    load = few[case.ranks - 2] if case.ranks < 4 else many
    later = shares.segments - 1
    total = shares.channels * shares.segments - 1
    each = (shares.share - 2 * shares.length) / (2 * max(later, 1))
    mean = (shares.count - 2 * shares.length) / (2 * max(total, 1))
    paths = [total * load.most_folded * fold(mean)]
    for reach in case.reaches:
        sent, waited = load.sent, load.waited
        if reach and case.per_node > 2:
            # No two messages between nodes wait for each other, one in each tree; and between two
            # nodes one less is on a port.
            sent = min(sent, 3) if case.network.nodes == 2 else sent
            waited = 0
        # In each tree a rank of a node has messages to other nodes.
        flows = 2 if reach else case.per_node
        step = case.step(reach, each, flows)
        turn = step.hop + (waited - 1) * step.port if waited else sent * step.port
        paths.append(later * (turn + load.folded * fold(each)))
        paths.append(total * sent * case.inject(reach, mean, flows))
    return tuple(paths)


def broadcast(case: Case) -> list[Stage]:
    """Down both trees."""
    first = _down(case, shared_out(case, 2).length)
    return [first, _following(case, (_Load(0, 2), _Load(1, 2)), _Load(2, 2))]


def reduce(case: Case) -> list[Stage]:
    """Up both trees."""
    first = _up(case, shared_out(case, 2).length)
    return [first, _following(case, (_Load(0, 2, 0, 2), _Load(2, 2, 1, 2)), _Load(2, 2, 2, 2))]


def all_reduce(case: Case) -> list[Stage]:
    """Up both trees and down again."""
    length = shared_out(case, 2).length
    later = _following(case, (_Load(2, 2, 2, 2), _Load(3, 3, 1, 2)), _Load(4, 4, 2, 2))
    return [_up(case, length), _down(case, length), later]
