"""Binomial tree: on the longest path a rank is reached by a message for each bit of its number.

With k = ⌈log2 n⌉, on one level a broadcast or reduction of S bytes takes k (α + S/β), and S/γ for
each fold; scatter and gather of S bytes in all k α + (n-1)/n S/β. See R. Thakur, R. Rabenseifner,
W. Gropp, "Optimization of collective communication operations in MPICH", 2005.

Numbers count from the root. Where n is no power of two, no number below n has all bits: the longest
path goes by the bits of n-1 down to one at which it stays with the parent (who sends to that child
first), and then by all lower ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.path import Path, Reach, Stage, after, copy, fold
from hpccomm.schedules.cost.pieces import Pieces, deal
from hpccomm.schedules.cost.step import Step, Steps, chained, in_turn, local_step

Elements = Callable[[int, int], float]
"""``elements(number, bit)``: what the child at distance `bit` of `number` is sent, or sends."""


def _crosses(case: Case, bit: int) -> bool:
    """Whether some ranks at this distance in the tree are on different nodes."""
    if case.one_node:
        return False
    width, root = case.network.ranks_per_node, max(case.call.root, 0)
    return width % (2 * bit) != 0 or root % min(2 * bit, width) != 0


def ways(
    case: Case,
    elements: Elements,
    local: Callable[[float], Path] | None,
    own: Path = Path(),  # noqa: B008 - it is frozen
) -> list[Steps]:
    """Return the ways from the root to a leaf: those with most messages first.

    Up the tree, backwards, `local` is what a parent folds of what comes in, and `own` what it does
    after the first message. A path that stays with a parent waits for that or for the parent's port,
    not for both: other messages come early.
    """
    bits = [1 << k for k in reversed(range((case.ranks - 1).bit_length()))]
    # Below a node's ranks all distances together cross nodes once, if any of them does.
    once = next((bit for bit in bits if bit < case.per_node and _crosses(case, bit)), 0)
    last = case.ranks - 1
    found: list[Steps] = []
    for stay in [bit for bit in bits if last & bit and bit > 1] + [0]:
        number = 0
        steps: list[Step] = []
        stays: list[Step] = []
        for bit in bits:
            if stay <= bit and not last & bit:
                continue  # there is no such child
            many = elements(number, bit)
            across = not case.one_node and (bit >= case.per_node or bit == once)
            flows = max(1, case.per_node // (2 * bit))
            folded = Path() if local is None else local(many)
            step = case.step(Reach(across), many, flows, folded, both_ways=False)
            if bit != stay:
                number += bit
                steps.append(step)
            else:
                stays = [replace(step.stay, local=Path())]
                if local is not None:
                    stays.append(local_step(folded))
        if not stays:
            found.append([*steps, local_step(own)])
        for stayed in stays:
            after_it = Path() if stayed.port != Path() else own
            found.append([stayed, *steps, local_step(after_it)])
    if once:
        found.append(_at_the_end(case, bits, elements, local))
    return sorted(found, key=len, reverse=True)


def _at_the_end(
    case: Case, bits: Sequence[int], elements: Elements, local: Callable[[float], Path] | None
) -> Steps:
    """Return the way that stays with a rank at the root's place of its node, which may be its end."""
    steps = []
    number = 0
    place = max(case.call.root, 0) % case.per_node
    for bit in bits:
        many = elements(number, bit)
        folded = Path() if local is None else local(many)
        step = case.step(Reach(place + bit >= case.per_node), many, 1, folded, both_ways=False)
        if bit >= case.per_node and number + bit < case.ranks:
            number += bit
        elif bit > 1:
            step = step.stay
        steps.append(step)
    return [*steps, local_step(Path())]


def _all(elements: float) -> Elements:
    return lambda _number, _bit: elements


def broadcast(case: Case) -> list[Stage]:
    """Down the tree. The root sends the next piece once all of its children have this one."""
    pieces = deal(case.call.counts[0], case.tuning.segment, case.tuning.channels)
    longest = tuple(chained(steps) for steps in ways(case, _all(pieces.mean), None))
    return [_one_by_one(pieces, longest, _ports(case, pieces.mean))]


def root_ports(case: Case, elements: Elements) -> Path:
    """Return for how long the root's messages to all of its children take its ports."""
    ports = Path()
    for bit in (1 << k for k in range((case.ranks - 1).bit_length())):
        reach = Reach(bit >= case.per_node)
        ports = ports + case.inject(reach, elements(0, bit), both_ways=False)
    return ports


def _ports(case: Case, elements: float) -> tuple[Path, Path]:
    """Return for how long a piece takes the root's ports, within its node and to others."""
    far = (case.network.nodes - 1).bit_length()
    near = (case.ranks - 1).bit_length() - far
    inner = case.inject(Reach.INNER, elements, both_ways=False)
    return near * inner, far * case.inject(Reach.ACROSS, elements, both_ways=False)


def _one_by_one(pieces: Pieces, longest: Stage, busy: Sequence[Path]) -> Stage:
    """Return the paths of all pieces but one through what is `busy`, and of one to the end.

    A channel does one of these after the other, others meanwhile.
    """
    waits = [(pieces.all_pieces - 1) * each for each in busy]
    waits.append((pieces.pieces - 1) * sum(busy, Path()))
    return tuple(path + wait for path in longest for wait in waits)


def reduce(case: Case) -> list[Stage]:
    """Up the tree."""
    pieces = deal(case.call.counts[0], case.tuning.segment, case.tuning.channels)
    longest = tuple(chained(steps) for steps in ways(case, _all(pieces.mean), fold))
    bits = (case.ranks - 1).bit_length()
    inner, across = _ports(case, pieces.mean)
    # The root takes what comes in and folds it; its children fold one less, and send.
    passing = case.inject(case.far, pieces.mean, both_ways=False) + (bits - 1) * fold(pieces.mean)
    return [
        (
            *_one_by_one(pieces, longest, [inner]),
            *_one_by_one(pieces, longest, [across]),
            *_one_by_one(pieces, longest, [bits * fold(pieces.mean)]),
            *after((pieces.pieces - 1) * passing, longest),
        )
    ]


def all_reduce(case: Case) -> list[Stage]:
    """Up the tree and down again: a piece begins where the last one ended."""
    pieces = deal(case.call.counts[0], case.tuning.segment, case.tuning.channels)
    return [
        *in_turn(pieces, lambda elements: ways(case, _all(elements), fold)),
        *in_turn(pieces, lambda elements: ways(case, _all(elements), None)),
    ]


def subtrees(case: Case, block: float) -> Elements:
    """Return the elements of the subtrees of ranks with `block` each."""
    return lambda number, bit: min(bit, case.ranks - number - bit) * block


def gather(case: Case) -> list[Stage]:
    """Up the tree, the blocks of a subtree in one message; first a parent moves its own."""
    block = max(case.call.counts)
    found = ways(case, subtrees(case, block), lambda _: Path(), copy(block))
    return [tuple(chained(steps) for steps in found)]


def scatter(case: Case) -> list[Stage]:
    """Down the tree, the blocks of a subtree in one message; in the end a parent moves its own."""
    block = max(case.call.counts)
    paths = []
    for steps in ways(case, subtrees(case, block), None):
        parent = [*steps[:-2], steps[-2].stay, local_step(copy(block))]
        paths += [chained(steps), chained(parent)]
    return [tuple(paths)]


def barrier(case: Case) -> list[Stage]:
    """Up the tree and down again, without data."""
    up = ways(case, _all(0.0), lambda _: Path())
    down = ways(case, _all(0.0), None)
    return [tuple(chained(steps) for steps in found) for found in (up, down)]
