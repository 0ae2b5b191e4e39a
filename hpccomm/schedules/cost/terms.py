"""Estimates the time of each algorithm from its latency, bandwidth and reduction terms.

The line of an algorithm has the number of messages that follow each other, the bytes that pass a rank's port and the
bytes that a rank reduces: ``rounds * alpha + sent * beta + reduced * gamma``. It needs no schedule, so
that an estimate takes microseconds for any number of ranks. Pieces of an array that an algorithm
moves one after the other overlap, so that their latencies count once. The latencies of segments that follow each
other along a pipeline all count. A line leaves out copies, roots, uneven nodes, queues, and
the overlap of pieces; `hpccomm.schedules.cost.rounds` prices these exactly.

The lines are from R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
operations in MPICH", 2005, and E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective
communication: theory, practice, and experience", 2007; for the pipelines from J. Watts, R. van de Geijn,
"A pipelined broadcast for multidimensional meshes", 1995; for the double tree from P. Sanders, J. Speck,
J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; for
``bruck`` from J. Bruck and others, "Efficient algorithms for all-to-all communications in multiport
message-passing systems", 1997; for ``shm`` from J. M. Hashmi and others, "Designing efficient shared
address space reduction collectives for multi-/many-cores", 2018. The form is that of R. W. Hockney,
"The communication challenge for MPP", 1994.

The policy of ``auto`` compares algorithms by these estimates, ``hpccomm simulate --model terms`` prints them,
``hpccomm tune`` orders its candidates by them, and ``hpccomm advise --what-if`` uses them for other networks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.schedules.cost.network import Level, Network


class CostTerms(NamedTuple):
    """The terms of phases that follow each other.

    Attributes
    ----------
    rounds : float
        Number of messages that wait for each other.
    sent : float
        Bytes that pass the busiest port.
    reduced : float
        Bytes that a rank folds into others.
    at_once : float
        Number of further messages of a port. No rank waits for their latency.
    """

    rounds: float
    sent: float = 0.0
    reduced: float = 0.0
    at_once: float = 0.0


@dataclass(frozen=True, slots=True)
class CallSize:
    """The size of a call.

    Attributes
    ----------
    n : int
        Number of ranks, at least 2.
    m : float
        Bytes of the larger array of a rank.
    segment : float
        Bytes that are moved at a time.
    """

    n: int
    m: float
    segment: float

    @property
    def log(self) -> int:
        """The logarithm of the ranks to the base 2, rounded up."""
        return (self.n - 1).bit_length()

    @property
    def depth(self) -> int:
        """Most messages on a path from the root of a binomial tree to a leaf."""
        return self.n.bit_length() - 1

    @property
    def odd(self) -> bool:
        """Whether some ranks are idle in exchanges, since the number of ranks is not a power of two."""
        return self.n & (self.n - 1) != 0

    @property
    def others(self) -> float:
        """Bytes of the blocks of all other ranks."""
        return self.m * (self.n - 1) / self.n

    def pieces(self, nbytes: float) -> int:
        """Return the number of segments for a number of bytes."""
        return max(1, -int(-nbytes // self.segment))

    def doubled(self, phases: int, sent: float, reduced: float) -> CostTerms:
        """Return the terms of exchanges at distances 1, 2, 4, ..., with two more rounds for idle ranks."""
        rounds = phases * (self.log - self.odd) + 2 * self.odd
        aside = self.m if self.odd else 0.0
        return CostTerms(rounds, sent + aside, reduced + aside / 2 * bool(reduced))

    def tree(self, ways: int, reducing: int) -> CostTerms:
        """Return the terms of a binomial tree; `ways` is 1 for up or down, and 2 for both."""
        return CostTerms(ways * self.depth, ways * self.log * self.m, reducing * self.log * self.m)

    def everyone(self, sent: float, reduced: float = 0.0) -> CostTerms:
        """Return the terms of a rank that sends to all others, or receives from all others, at once."""
        return CostTerms(1, sent, reduced, self.n - 2)

    def around(self, phases: int, reducing: int) -> CostTerms:
        """Return the terms of phases in which each rank's block visits all others in turn."""
        return CostTerms(phases * (self.n - 1), phases * self.others, reducing * self.others)

    def pipelined(self, hops: int, reducing: int = 0, *, following: int = 0) -> CostTerms:
        """Return the terms of segments that follow each other along `hops` ranks.

        `reducing` of the hops reduce. With `following`, the segments go there and back, and each has a latency.
        """
        count = self.pieces(self.m)
        each = self.m / count
        both = 2 if following else 1  # there and back
        later = both * (count - 1)
        reduced = (reducing + (count - 1) * bool(reducing)) * each
        return CostTerms(hops + following * (count - 1), (hops + later) * each, reduced)

    def two_trees(self, ways: int, reducing: int) -> CostTerms:
        """Return the terms of a double binary tree, in which a rank hands each segment to two other ranks."""
        count = self.pieces(self.m / 2)
        each = self.m / 2 / count
        height = self.log
        rounds = ways * height + count - 1
        turns = ways * (height + count - 1)
        reduced = reducing * 2 * (height + count - 1) * each
        return CostTerms(rounds, 2 * turns * each, reduced, ways * height)

    def shared(self, sent: float, reduced: float = 0.0) -> CostTerms:
        """Return the terms of ranks that reach each other's memory between two barriers.

        Bytes are copied once, while a message between processes is copied in and out: so they take half the time.
        """
        return CostTerms(SHARING + 2 * self.log, sent / 2, reduced)


SHARING = 12
"""Number of messages that take as long as the ranks' agreement about the places of their arrays."""


class Crossing(NamedTuple):
    """The part of an algorithm's terms that falls between nodes, for several ranks on each node.

    Attributes
    ----------
    rounds, sent : callable
        ``part(n, per_node)`` returns the fraction of that term.
    flows : int
        Number of a node's ranks that send to other nodes at the same time; 0 for all.
    """

    rounds: Callable[[int, int], float]
    sent: Callable[[int, int], float]
    flows: int


def _links(_n: int, per_node: int) -> float:
    return 1 / per_node


def _all(_n: int, _per_node: int) -> float:
    return 1.0


def _doublings(n: int, per_node: int) -> float:
    """Return the fraction of the distances 1, 2, 4, ... that lead to another node."""
    across = (-(-n // per_node) - 1).bit_length()
    return across / (across + (per_node - 1).bit_length())


def _ranks(n: int, per_node: int) -> float:
    """Return the fraction of the other ranks that are on other nodes."""
    return (n - per_node) / (n - 1)


NEIGHBORS = Crossing(_links, _all, flows=1)
"""Messages from rank to the next rank: the slowest link holds all others up."""
LEADERS = Crossing(_doublings, _doublings, flows=1)
"""Messages along a tree in which one rank of a node communicates with other nodes."""
TREES = Crossing(_doublings, _all, flows=2)
"""Messages along two trees at once, segment by segment: the slowest link holds all others up."""
EXCHANGES = Crossing(_doublings, _doublings, flows=0)
"""Exchanges between pairs at doubled distances, of the whole array each time."""
HALVES = Crossing(_doublings, _ranks, flows=0)
"""Exchanges between pairs at doubled distances, with more bytes over longer distances."""
SUBTREES = Crossing(_doublings, _ranks, flows=1)
"""Messages along a tree from or to one rank, with the blocks of whole subtrees."""
PAIRS = Crossing(_ranks, _ranks, flows=0)
"""Messages from each rank to every other rank."""
ROOT = Crossing(_ranks, _ranks, flows=1)
"""Messages from or to one rank."""

TermsLine = tuple[Callable[[CallSize], CostTerms], Crossing]

LINES: Mapping[tuple[str, str], TermsLine] = MappingProxyType(
    {
        ("all_reduce", "ring"): (lambda e: e.around(2, 1), NEIGHBORS),
        ("all_reduce", "recursive_doubling"): (
            lambda e: e.doubled(1, (e.log - e.odd) * e.m, (e.log - e.odd) * e.m),
            EXCHANGES,
        ),
        ("all_reduce", "halving_doubling"): (
            lambda e: e.doubled(2, 2 * e.others, e.others),
            HALVES,
        ),
        ("all_reduce", "linear"): (
            lambda e: e.everyone((e.n - 1) * e.m, (e.n - 1) * e.m),
            PAIRS,
        ),
        ("all_reduce", "tree"): (lambda e: e.two_trees(2, 1), TREES),
        ("all_reduce", "binomial"): (lambda e: e.tree(2, 1), LEADERS),
        ("all_reduce", "chain"): (
            lambda e: e.pipelined(2 * (e.n - 1), e.n - 1, following=1),
            NEIGHBORS,
        ),
        ("all_reduce", "shm"): (lambda e: e.shared(2 * e.others, e.others), NEIGHBORS),
        ("broadcast", "tree"): (lambda e: e.two_trees(1, 0), TREES),
        ("broadcast", "binomial"): (lambda e: e.tree(1, 0), LEADERS),
        ("broadcast", "chain"): (lambda e: e.pipelined(e.n - 1), NEIGHBORS),
        ("broadcast", "scatter_all_gather"): (
            lambda e: CostTerms(e.n - 1, 2 * e.others),
            NEIGHBORS,
        ),
        ("broadcast", "shm"): (lambda e: e.shared(e.m), NEIGHBORS),
        ("reduce", "tree"): (lambda e: e.two_trees(1, 1), TREES),
        ("reduce", "binomial"): (lambda e: e.tree(1, 1), LEADERS),
        ("reduce", "chain"): (lambda e: e.pipelined(e.n - 1, e.n - 1), NEIGHBORS),
        ("reduce", "halving_doubling"): (lambda e: e.doubled(2, 2 * e.others, e.others), HALVES),
        ("reduce", "pairwise"): (
            lambda e: CostTerms(e.n, 2 * e.others, e.others),
            PAIRS,
        ),
        ("reduce", "shm"): (lambda e: e.shared(2 * e.others, e.others), NEIGHBORS),
        ("all_gather", "ring"): (lambda e: e.around(1, 0), NEIGHBORS),
        ("all_gather", "bruck"): (lambda e: CostTerms(e.log, e.others), HALVES),
        ("all_gather", "recursive_doubling"): (
            lambda e: CostTerms(e.log + e.odd, e.others + e.odd * e.m),
            HALVES,
        ),
        ("all_gather", "linear"): (lambda e: e.everyone(e.others), PAIRS),
        ("all_gather", "shm"): (lambda e: e.shared(e.others), NEIGHBORS),
        ("reduce_scatter", "ring"): (lambda e: e.around(1, 1), NEIGHBORS),
        ("reduce_scatter", "halving_doubling"): (
            lambda e: CostTerms(
                e.log + 2 * e.odd, e.others + e.odd * e.m, e.others + e.odd * e.m / 2
            ),
            HALVES,
        ),
        ("reduce_scatter", "shm"): (lambda e: e.shared(e.others, e.others), NEIGHBORS),
        ("all_to_all", "pairwise"): (lambda e: CostTerms(e.n // 2, e.others), PAIRS),
        ("all_to_all", "bruck"): (lambda e: CostTerms(e.log, e.log * e.m / 2), HALVES),
        ("all_to_all", "linear"): (lambda e: e.everyone(e.others), PAIRS),
        ("all_to_all", "hierarchical"): (lambda e: CostTerms(e.n // 2, e.others), PAIRS),
        ("all_to_all", "shm"): (lambda e: e.shared(e.others), NEIGHBORS),
        ("gather", "linear"): (lambda e: e.everyone(e.others), ROOT),
        ("gather", "binomial"): (lambda e: CostTerms(e.depth, e.others), SUBTREES),
        ("gather", "shm"): (lambda e: e.shared(e.others), NEIGHBORS),
        ("scatter", "linear"): (lambda e: e.everyone(e.others), ROOT),
        ("scatter", "binomial"): (lambda e: CostTerms(e.depth, e.others), SUBTREES),
        ("scatter", "shm"): (lambda e: e.shared(e.others), NEIGHBORS),
        ("scan", "linear"): (lambda e: e.pipelined(e.n - 1, e.n - 1), NEIGHBORS),
        ("scan", "binomial"): (lambda e: e.tree(1, 1), EXCHANGES),
        ("scan", "pairwise"): (lambda e: e.around(2, 1), PAIRS),
        ("scan", "shm"): (lambda e: e.shared(5 * e.others, e.others), NEIGHBORS),
        ("barrier", "dissemination"): (lambda e: CostTerms(e.log), EXCHANGES),
    }
)
"""The line of each collective and algorithm: a function that returns the terms if all links are alike, and the part
that crosses nodes."""

Composed = tuple[tuple[tuple[str, str], ...], tuple[str, str]]

COMPOSED: Mapping[tuple[str, str], Composed] = MappingProxyType(
    {
        ("all_reduce", "hierarchical"): (
            (("reduce_scatter", "ring"), ("all_gather", "ring")),
            ("all_reduce", "halving_doubling"),
        ),
        ("broadcast", "hierarchical"): ((("broadcast", "chain"),), ("broadcast", "tree")),
        ("reduce", "hierarchical"): (
            (("reduce_scatter", "ring"), ("gather", "linear")),
            ("reduce", "tree"),
        ),
        ("all_gather", "hierarchical"): ((("all_gather", "ring"),), ("all_gather", "ring")),
        ("reduce_scatter", "hierarchical"): (
            (("reduce_scatter", "ring"),),
            ("reduce_scatter", "ring"),
        ),
        ("barrier", "hierarchical"): (
            (("gather", "linear"), ("scatter", "linear")),
            ("barrier", "dissemination"),
        ),
    }
)
"""The lines of ``hierarchical``: those of the phases within a node, on the whole array, and the line of the phase
across the nodes, where each of a node's ranks has its share (A. R. Mamidala and others, "MPI collectives on
modern multicore clusters: performance optimizations and communication characteristics", 2008)."""


def has_terms(collective: str, algorithm: str) -> bool:
    """Return whether an algorithm can be estimated."""
    return (collective, algorithm) in LINES or (collective, algorithm) in COMPOSED


def estimate(network: Network, collective: str, nbytes: int, algorithm: str, segment: int) -> float:
    """Return the estimated seconds of a call. Local; takes microseconds.

    Parameters
    ----------
    network : Network
        The network of the ranks.
    collective : str
        Name of the collective.
    nbytes : int
        Bytes of the larger array of a rank.
    algorithm : str
        Name of one of hpccomm's algorithms for the collective.
    segment : int
        Bytes that the algorithm moves at a time.

    Raises
    ------
    KeyError
        If the algorithm has no terms.
    """
    parts = _parts(network, collective, nbytes, algorithm, segment)
    return network.overhead + sum(_seconds(*part) for part in parts)


class Estimated(NamedTuple):
    """The name of an algorithm, and its estimated seconds; infinite if it has no terms."""

    algorithm: str
    seconds: float


def ranked(
    network: Network, collective: str, nbytes: int, names: Sequence[str], segment: int
) -> list[Estimated]:
    """Return algorithms by their estimated times, the shortest first.

    Algorithms with equal times keep the order of `names`. Algorithms without terms come last. The other parameters
    are those of `estimate`.
    """
    estimates = [
        Estimated(name, estimate(network, collective, nbytes, name, segment))
        for name in names
        if has_terms(collective, name)
    ]
    unknown = [Estimated(name, math.inf) for name in names if not has_terms(collective, name)]
    # Rounded, since equal times that were summed in another order differ in their last digits.
    return [*sorted(estimates, key=lambda each: float(f"{each.seconds:.6g}")), *unknown]


def rounds_of(
    network: Network, collective: str, nbytes: int, algorithm: str, segment: int
) -> float:
    """Return the estimated number of messages that follow each other in a call. The parameters are `estimate`'s."""
    parts = _parts(network, collective, nbytes, algorithm, segment)
    return sum(build(extent).rounds for _, (build, _), extent in parts)


def _parts(
    network: Network, collective: str, nbytes: int, algorithm: str, segment: int
) -> list[tuple[Network, TermsLine, CallSize]]:
    """Return the phases of an algorithm: the network of each phase, its line, and its size."""
    n, per_node = network.ranks, min(network.ranks_per_node, network.ranks)
    if n == 1 or (not nbytes and DESCRIPTIONS[collective].sends != "nothing"):
        return []  # messages without data are not sent
    key, m = (collective, algorithm), float(nbytes)
    if key in LINES:
        return [(network, LINES[key], CallSize(n, m, segment))]
    within, across = COMPOSED[key]
    phases = []
    if per_node > 1:
        node, extent = replace(network, ranks=per_node), CallSize(per_node, m, segment)
        phases = [(node, LINES[each], extent) for each in within]
    level = network.across
    if level is not None and network.nodes > 1:
        shared = 1 / _byte(level, per_node, network.nodes)
        between = replace(
            network,
            ranks=network.nodes,
            ranks_per_node=1,
            across=Level(level.latency, shared, 1, gap=level.gap),
        )
        phases.append((between, LINES[across], CallSize(network.nodes, m / per_node, segment)))
    return phases


def _seconds(network: Network, line: TermsLine, extent: CallSize) -> float:
    """Return the seconds of a line, without the call's overhead."""
    build, crossing = line
    terms = build(extent)
    n, per_node = network.ranks, min(network.ranks_per_node, network.ranks)
    if network.nodes == 1:
        rounds, sent = 0.0, 0.0
    elif per_node == 1:
        rounds, sent = 1.0, 1.0
    else:
        rounds, sent = crossing.rounds(n, per_node), crossing.sent(n, per_node)
    seconds = terms.reduced / network.reduce
    for level, messages, part, flows in (
        (network.inner, 1 - rounds, 1 - sent, per_node),
        (network.across, rounds, sent, min(crossing.flows or per_node, per_node)),
    ):
        if level is not None and (messages or part):
            seconds += messages * terms.rounds * (level.latency + level.gap)
            crowd = -(-flows // level.ports)
            seconds += messages * terms.at_once * level.gap * crowd
            seconds += part * terms.sent * _byte(level, flows, network.nodes)
    return seconds


def _byte(level: Level, flows: int, nodes: int) -> float:
    """Return the seconds per byte of a rank, if `flows` ranks of every node send at the same time."""
    times = 2 if level.duplex == "half" else 1
    return max(
        times * -(-flows // level.ports) / level.bandwidth,
        times * flows / level.node_bandwidth,
        nodes * flows / level.total_bandwidth,
    )
