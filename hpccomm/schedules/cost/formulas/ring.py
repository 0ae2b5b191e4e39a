"""Ring: n-1 messages to the right neighbour, one after the other, in each phase.

All-reduce of S bytes on one level: 2(n-1) (α + S/(n β)) + (n-1) S/(n γ); see P. Patarasuk, X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. Where nodes have L
ranks, one message in L is between nodes. What is handed on passes such a link in one step of L; the
rank before the link sends over it in every step. The longer of the two counts.
"""

import numpy as np

from hpccomm.schedules.cost.case import Case
from hpccomm.schedules.cost.formulas.binomial import root_ports, subtrees
from hpccomm.schedules.cost.path import Path, Reach, Stage, after, copy, fold
from hpccomm.schedules.cost.pieces import Pieces, deal


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


def _phases(case: Case, blocks: Pieces, folding: int, others: int, local: Path) -> list[Stage]:
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
    """A broadcast: scatter along a binomial tree, then hand the blocks on, from the root.

    The root waits for nobody: once its messages of the scattering have left, it begins to hand on.
    """
    n, count = case.ranks, case.call.counts[0]
    blocks = deal(-(-count // n), case.tuning.segment, case.tuning.channels)
    dealt = root_ports(case, subtrees(case, blocks.mean))
    # The ring is open: nothing comes back to the root.
    aligned = case.one_node or case.call.root % case.per_node == 0
    crossings = case.network.nodes - 1 if aligned else case.network.nodes
    steps = n - 1
    if count < n:
        # The root's own block is empty; the last one goes to all but its owner, the first owner's
        # from there to the end.
        steps = max(n - 2, n + 1 + -n // count)
    first = case.inject(Reach.INNER if case.per_node > 1 else case.far, blocks.mean, case.per_node)
    earlier = (blocks.all_pieces - 1) * steps * first
    paths = [earlier + path for path in passing(case, steps, blocks.mean, min(crossings, steps))]
    messages = steps * blocks.all_pieces
    if case.per_node > 1:
        inner = case.step(Reach.INNER, blocks.mean, case.per_node)
        paths.append(inner.hop + (messages - 1) * inner.port)
    if not case.one_node and count >= n:
        paths += _from_later_nodes(case, messages, blocks.mean)
    return [after(blocks.all_pieces * dealt, tuple(paths))]


def _from_later_nodes(case: Case, messages: int, elements: float) -> list[Path]:
    """Return the paths that wait at the end of a node for its port, and then go on to the last one.

    The rank there has got its block by as many messages between nodes as the node's number has bits,
    and by as many within as its place there has.
    """
    last = case.network.nodes - 1
    far = case.step(Reach.ACROSS, elements)
    inner = case.hop(Reach.INNER, elements, case.per_node)
    paths = []
    for node in {0, *(1 << k for k in range(last.bit_length())), max(last - 1, 0)}:
        links = last - node
        near = (links - 1) * (case.per_node - 1)
        if links > 0 and links + near <= messages:
            waiting = (messages - links - near) * far.port
            got = Path((case.per_node - 1).bit_count(), across_latencies=node.bit_count())
            paths.append(got + waiting + links * far.hop + near * inner)
    return paths
