"""Ring: n-1 messages to the right neighbour, one after the other, in each phase.

All-reduce of S bytes on one level: 2(n-1) (α + S/(n β)) + (n-1) S/(n γ); see P. Patarasuk, X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. Where nodes have L
ranks, one message in L is between nodes. What is handed on passes such a link in one step of L; the
rank before the link sends over it in every step. The longer of the two counts.
"""

import numpy as np

from hpccomm.cost.case import Case
from hpccomm.cost.dealt import Dealt, deal
from hpccomm.cost.formulas.binomial import subtrees, ways
from hpccomm.cost.path import Path, Reach, Stage, after, copy, fold
from hpccomm.cost.step import chained


def passing(case: Case, steps: int, elements: float, across: int | None = None) -> Stage:
    """Return the paths of `steps` messages of `elements` to the right neighbour.

    `across` is how many of them are between nodes, where that is not as many as can be.
    """
    inner = case.hop(Reach.INNER, elements, case.per_node)
    if case.one_node:
        return (steps * inner,)
    far = case.hop(Reach.ACROSS, elements)
    if across is not None:
        return (across * far + (steps - across) * inner,)
    waiting = case.inject(Reach.ACROSS, elements)
    laps, rest = divmod(steps - 1, case.per_node)
    lap = far + (case.per_node - 1) * inner
    return (
        laps * lap + far + rest * inner,
        laps * lap + far + rest * waiting,
        far + (steps - 1) * waiting,
    )


def _phases(case: Case, blocks: Dealt, folding: int, others: int, local: Path) -> list[Stage]:
    """Return the stages of phases that fold, and of others, with `local` steps for all pieces."""
    steps = case.ranks - 1
    share = blocks.elements / max(blocks.total, 1)
    own = passing(case, steps * blocks.pieces, blocks.piece)
    if blocks.channels == 1:
        # All pieces in one go: a path need not pass the slow link in each of them.
        own = passing(case, steps * (folding + others) * blocks.pieces, blocks.piece)
        return [after(local + steps * folding * fold(blocks.total), own)]
    start = case.hop(case.far, blocks.piece)
    flows = case.per_node if case.one_node else 1
    link = start + steps * blocks.all_pieces * case.inject(case.far, blocks.mean, flows)
    stages = []
    if folding:
        folded = local + steps * fold(blocks.total)
        stages.append((*after(share * folded, own), link, start + folded))
    if others:
        stages.append((*after(share * local, own), link, start + local))
    return stages


def all_reduce(case: Case) -> list[Stage]:
    """Reduce-scatter, then all-gather."""
    n, count = case.ranks, case.call.counts[0]
    if count < n:
        across = 0 if case.one_node else _across(case, count)
        return [after((n - 1) * fold(1), passing(case, 2 * (n - 1), 1, across))]
    blocks = deal(-(-count // n), case.tuning.segment, case.tuning.channels)
    return _phases(case, blocks, 1, 1, Path())


def _across(case: Case, count: int) -> int:
    """Return how often a block crosses nodes where most are empty: some pass a link less often."""
    n, width = case.ranks, case.network.ranks_per_node
    owners = -(-np.arange(1, count + 1) * n // count) - 1
    links = 2 * case.network.nodes
    # It goes twice round, but for the two links beside its owner.
    beside = (owners // width != (owners - 1) % n // width).astype(int)
    beside += owners // width != (owners + 1) % n // width
    return int(links - beside.min())


def reduce_scatter(case: Case) -> list[Stage]:
    """Each block goes once round the ring and is folded at each rank."""
    blocks = deal(max(case.call.counts), case.tuning.segment, case.tuning.channels)
    return _phases(case, blocks, 1, 0, Path())


def all_gather(case: Case) -> list[Stage]:
    """Each block goes once round the ring."""
    blocks = deal(max(case.call.counts), case.tuning.segment, case.tuning.channels)
    return _phases(case, blocks, 0, 1, copy(blocks.total))


def scatter_all_gather(case: Case) -> list[Stage]:
    """A broadcast: scatter along a binomial tree, then hand round.

    Whoever gets his block last is the left neighbour of the root; from there it goes round.
    """
    n, count = case.ranks, case.call.counts[0]
    blocks = deal(-(-count // n), case.tuning.segment, case.tuning.channels)
    several = blocks.channels > 1

    def scattered(elements: float) -> Stage:
        return tuple(chained(steps) for steps in ways(case, subtrees(case, elements), None))

    if not several:
        first = tuple(blocks.pieces * path for path in scattered(blocks.piece))
        hops = (n - 1) * blocks.pieces
        return [first, passing(case, hops, blocks.piece)]
    first = tuple(blocks.all_pieces * path for path in scattered(blocks.mean))
    return [first, *_phases(case, blocks, 0, 1, Path())]
