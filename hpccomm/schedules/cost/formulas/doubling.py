"""Recursive doubling, and recursive halving: exchanges at distances 1, 2, 4, ..., n/2.

With k = log2 n, on one level:

- recursive doubling, all-reduce of S bytes: k (α + S/β + S/γ);
- halving and doubling, all-reduce: 2 k α + 2 (n-1)/n S/β + (n-1)/n S/γ.

See R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", 2005, and R. Rabenseifner, "Optimization of collective reduction operations", 2004.

Ranks exchange between nodes where twice the distance does not divide the ranks of a node. Where n is
no power of two, 2^k is the largest one below, and neighbours of those that are left over begin late
and end late. Who begins late makes others late from exchange to exchange, but for the higher bits no
way leads from one who begins late to one who ends late: there it is only waited for ports.
"""

from collections.abc import Callable
from dataclasses import replace

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.path import Path, Reach, Stage, copy, fold
from hpccomm.schedules.cost.pieces import Pieces, deal
from hpccomm.schedules.cost.step import Step, Steps, chained, in_turn, local_step


class _Core:
    """The ranks that speak, a power of two, and the exchanges between them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.size = 1 << (case.ranks.bit_length() - 1)
        self.extra = case.ranks - self.size
        self.bits = self.size.bit_length() - 1

    def spoken_for(self, number: int) -> int:
        """Return how many ranks `number` ranks speak for, at most."""
        return number + min(number, self.extra)

    def collected(self, block: float) -> list[Step]:
        """Return the messages along a binomial tree, at distance 1, 2, 4, ..., to the first."""
        case, found = self._case, []
        for step, bit in zip(self.exchanges(lambda d: d * block), range(self.bits), strict=True):
            reach = Reach(step.hop.across_messages > 0)
            flows = max(case.per_node >> bit + 1, 1)
            found.append(case.step(reach, block * (1 << bit), flows, both_ways=False))
        return found

    def exchanges(
        self, elements: Callable[[int], float], local: Callable[[float], Path] | None = None
    ) -> list[Step]:
        """Return those at distance 1, 2, 4, ..., of ``elements(distance)``."""
        found = []
        for bit in range(self.bits):
            many = elements(1 << bit)
            # Among ranks of which some do not speak, who speak are up to twice as far apart.
            far = 1 << bit + bool(self.extra)
            found.append(self._case.swap(far, many, Path() if local is None else local(many)))
        return found

    def aside(self, elements: float, local: Path, *, both_ways: bool = False) -> list[Step]:
        """Return the message between a rank that speaks and its neighbour, if there are any."""
        case = self._case
        if not self.extra:
            return []
        crosses = not case.one_node and case.network.ranks_per_node % 2 != 0
        flows = 1 if crosses else min(max(case.per_node // 2, 1), self.extra)
        return [case.step(Reach(crosses), elements, flows, local, both_ways=both_ways)]

    def ways(self, before: Steps, exchanges: Steps, after: Steps) -> list[Steps]:
        """Return the ways through one exchange for each bit, the lowest first, and what is around.

        Reversed, they are those of the opposite order.
        """
        if not self.extra:
            return [exchanges]
        joined = (self.extra - 1).bit_length()
        held = [step if bit < joined else step.stay for bit, step in enumerate(exchanges)]
        return [[*before, *held, *after], [*before, *exchanges], [*exchanges, *after]]


def all_reduce(case: Case) -> list[Stage]:
    """Exchange all that there is, and fold."""
    core = _Core(case)

    def ways(elements: float) -> list[Steps]:
        return core.ways(
            core.aside(elements, fold(elements)),
            core.exchanges(lambda _: elements, fold),
            core.aside(elements, Path()),
        )

    return in_turn(deal(case.call.counts[0], case.tuning.segment, case.tuning.channels), ways)


def all_gather(case: Case) -> list[Stage]:
    """Exchange all blocks that there are."""
    core = _Core(case)
    own, total = max(case.call.counts), sum(case.call.counts)
    ways = core.ways(
        core.aside(own, Path()),
        core.exchanges(lambda distance: core.spoken_for(distance) * own),
        core.aside(total, Path()),
    )
    return [(copy(own),), tuple(chained(steps) for steps in ways)]


def halving_all_reduce(case: Case) -> list[Stage]:
    """Halve, then double: who begins late comes back to where he ends late."""
    return in_turn(_pieces(case), lambda elements: [halving_doubling_steps(case, elements)])


def halving_doubling_steps(case: Case, elements: float) -> list[Step]:
    """Return the steps of an all-reduce."""
    core = _Core(case)
    block = max(elements / core.size, 1)
    doubling = core.exchanges(lambda distance: distance * block)
    after = core.aside(elements, Path())
    return [*_begun(core, elements), *_halving(core, block), *doubling, *after]


def halving_reduce(case: Case) -> list[Stage]:
    """Halve, then collect the blocks along a binomial tree."""
    return in_turn(_pieces(case), lambda elements: halving_reduce_ways(case, elements))


def halving_reduce_ways(case: Case, elements: float) -> list[Steps]:
    """Return the ways through a reduction."""
    core = _Core(case)
    block = max(elements / core.size, 1)
    folded = [*_begun(core, elements), *_halving(core, block)]
    first, *collected = core.collected(block)
    # While the first one comes in, the root moves its own.
    return [[*folded, first, *collected], [*folded, local_step(copy(block)), *collected]]


def halving_reduce_scatter(case: Case) -> list[Stage]:
    """Halve; then those who do not speak get their block, while the others move their own."""
    core = _Core(case)
    own, total = max(case.call.counts), sum(case.call.counts)
    halving = core.exchanges(lambda distance: core.spoken_for(distance) * own, fold)
    copied = local_step(copy(own))
    if not core.extra:
        return [(chained([*halving, copied]),)]
    # Neighbours fold the lower half and the upper one; the one that folds the latter hands it over.
    lower = core.spoken_for(core.size // 2) * own
    upper = total - lower
    top = case.swap(core.size // 2, upper)
    # What comes to one that speaks for two: the last it folds.
    incoming = [replace(step.stay, local=Path()) for step in reversed(halving)]
    incoming[-1] = replace(incoming[-1], local=halving[0].local)
    halving[-1] = replace(halving[-1], port=top.port)
    handed = core.aside(own, Path())
    kept = [*(step.stay for step in handed), copied]
    taken = core.aside(lower, Path(), both_ways=True)
    given = core.aside(upper, fold(upper), both_ways=True)
    begun: list[Steps] = [
        core.aside(lower, fold(lower), both_ways=True),
        [*given, *core.aside(upper, Path())],
        [*(step.stay for step in taken), local_step(fold(upper)), *core.aside(upper, Path())],
    ]
    paths = []
    for before in begun:
        # From the last to the first, as exchanges go by the highest bit first.
        last, late, early = core.ways(handed, halving, before[::-1])
        through, from_start = last[len(handed) :][::-1], late[len(handed) :][::-1]
        for steps in (through, from_start, [*before, *incoming]):
            paths += [chained([*steps, *handed]), chained([*steps, *kept])]
        paths.append(chained([*early[::-1], copied]))
    return [tuple(paths)]


def _halving(core: _Core, block: float) -> Steps:
    return core.exchanges(lambda distance: distance * block, fold)[::-1]


def _begun(core: _Core, elements: float) -> Steps:
    """Return the steps in which neighbours fold a half each, and one hands over its own."""
    half = elements / 2
    return [*core.aside(half, fold(half), both_ways=True), *core.aside(half, Path())]


def _pieces(case: Case) -> Pieces:
    # Half of a piece, its longest message, is a segment.
    return deal(case.call.counts[0], 2 * case.tuning.segment, case.tuning.channels)
