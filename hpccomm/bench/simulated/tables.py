"""The request of a simulation, its tables, and the calls that it simulates for each line.

`hpccomm.cli.simulate` makes the request from the flags, and `runs` times the calls.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import memory_use
from hpccomm.bench.perf.collectives import COLLECTIVES, Benchmark, benchmark
from hpccomm.bench.perf.layouts import Layout
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.readers import ALL
from hpccomm.bench.perf.tables import PerfCase, PerfTable
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.results.schema import SIMULATED_BACKEND
from hpccomm.schedules.algorithms import ALGORITHMS, KNOWN
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import dump
from hpccomm.schedules.cost.terms import has_terms, ranked, rounds_of
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Tuning
from hpccomm.topology import Topology
from hpccomm.units import rounded_size

EVENTS = "events"
COST = "cost"
TERMS = "terms"
MODELS = (EVENTS, COST, TERMS)
"""The models that can time a call."""

MOST_UNEVEN_RANKS = 512
"""Of a call that has counts of its own for each pair of ranks; more take long."""

MOST_STEPS = 1 << 30
"""Rounds times ranks that are priced one by one; more take minutes."""

MESSAGE_BYTES = 256
"""Memory for one message of a round, its ways and queues included; measured."""

SIMULATED: dict[str, Benchmark] = {
    name: collective for name, collective in COLLECTIVES.items() if collective.algorithms
} | {"scan": benchmark(DESCRIPTIONS["scan"])}
"""Every collective that can be simulated, in the order of ``all``."""


@dataclass(frozen=True)
class SimulationRequest:
    """The request of a simulation.

    Attributes
    ----------
    options : Options
        As of perf; `algorithms` is None for the choices of ``auto``.
    network : Network
        Of all simulated ranks.
    model : str
        One of `MODELS`.
    segment : int
        Bytes of a segment.
    channels : int
        Rounds that may be under way at the same time.
    skew : float
        Seconds within which ranks enter a call.
    seed : int
        Of the random entry times.
    """

    options: Options
    network: Network
    model: str
    segment: int
    channels: int
    skew: float
    seed: int

    @cached_property
    def starts(self) -> NDArray[np.float64]:
        """When each rank enters a call: the same for every call, so that they compare."""
        return np.random.default_rng(self.seed).random(self.network.ranks) * self.skew

    @property
    def facts(self) -> dict[str, str]:
        """The simulation, as a results file describes it."""
        network = self.network
        return {
            "cluster": f"{network.name}: {network.ranks} ranks, {network.ranks_per_node} a node, "
            f"{network.nodes} nodes",
            "model": self.model,
            "network": dump(network),
            "channels": str(self.channels),
            "segment": f"{self.segment} B",
            "skew": f"{self.skew:g} s, seed {self.seed}",
        }

    def tuning(self, dtype: DType) -> Tuning:
        """Return the parameters of an algorithm."""
        elements = max(1, self.segment // dtype.itemsize)
        return Tuning(elements, self.channels, self._topology)

    @cached_property
    def _topology(self) -> Topology:
        return self.network.topology()


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One call on all ranks.

    Attributes
    ----------
    case : PerfCase
        The line of the table.
    layout : Layout
        Of rank 0.
    signatures : tuple of Signature
        One for all ranks, or one for each where they differ.
    """

    case: PerfCase
    layout: Layout
    signatures: tuple[Signature, ...]


def call(case: PerfCase, ranks: int) -> SimulatedCall:
    """Return the call of a case, as perf makes it."""
    layout, what = case.arrange(0, ranks), case.collective.what
    if not (layout.send_counts or what.peers):
        counts = (layout.count,) * (ranks if what.blockwise else 1)
        received = counts if what.individual else ()
        one = Signature(what.name, case.dtype, counts, received, op=case.op, root=layout.root)
        return SimulatedCall(case, layout, (one,))
    count: int | list[list[int]] = layout.count
    if layout.send_counts:  # what a rank sends depends only on the distance
        count = [np.roll(layout.send_counts, rank).tolist() for rank in range(ranks)]
    return SimulatedCall(case, layout, signatures(what.name, ranks, count, dtype=case.dtype))


def calls(table: PerfTable, request: SimulationRequest) -> Iterator[SimulatedCall]:
    """Yield the calls of a table's lines."""
    for segment in table.segments(request.options, request.network.ranks):
        for case in segment.cases():
            yield call(case, request.network.ranks)


def tables(request: SimulationRequest) -> tuple[tuple[PerfTable, ...], tuple[str, ...]]:
    """Return the tables of a run, and the skipped cases that do not exist.

    Raises
    ------
    UsageError
        If an algorithm applies to none of the calls, or the root is not a rank.
    """
    options = request.options
    named = options.algorithms is not None and ALL not in options.algorithms
    result: list[PerfTable] = []
    refused: dict[str, str] = {}
    skipped: dict[str, None] = dict.fromkeys(options.skipped())
    for collective in options.collectives:
        pairs = options.pairs(collective)
        options.roots(collective, request.network.ranks)  # raises if the root is not a rank
        for algorithm in _algorithms(collective, request):
            why = _refusal(collective, algorithm, request)
            if not why:
                result.append(PerfTable(0, SIMULATED_BACKEND, collective, algorithm, pairs))
                continue
            refused.setdefault(algorithm, why)
            if named:
                skipped[f"{algorithm} on {collective.name}"] = None
    used = {table.algorithm for table in result}
    for algorithm, why in refused.items():
        if algorithm not in used and (named or not result):
            raise UsageError(f"--algorithm {algorithm}: {why}")
    for table in result:
        _check_size(table, request)
    return tuple(result), tuple(skipped)


def _check_size(table: PerfTable, request: SimulationRequest) -> None:
    """Refuse what takes the square of the ranks, where that is too much memory or time."""
    what = table.collective.what
    everybody = not (what.rooted or what.peers or what.prefix)
    ranks, left = request.network.ranks, memory_use.available()
    if table.collective.name == "all_to_all_v" and ranks > MOST_UNEVEN_RANKS:
        raise UsageError(
            f"all_to_all_v of {ranks} ranks has {ranks}² counts, which take long to simulate; give at "
            f"most {MOST_UNEVEN_RANKS} --ranks, or all_to_all, which has blocks of one size"
        )
    if request.model == TERMS:
        return
    everyone = everybody and table.algorithm == "linear"
    blocks = table.algorithm == "bruck" and table.collective.name == "all_to_all"
    if (everyone or blocks) and (need := MESSAGE_BYTES * ranks**2) > left:
        kind = "messages" if everyone else "blocks"
        raise UsageError(
            f"{table.algorithm} {table.collective.name} sends {ranks}² {kind} at once, which take about "
            f"{rounded_size(need)} here, and {rounded_size(left)} are available; give fewer --ranks, another "
            f"--algorithm, or --model {TERMS}"
        )
    if request.model == COST and has_terms(table.collective.name, table.algorithm):
        for each in calls(table, request):
            call = each.signatures[0]
            rounds = rounds_of(
                request.network, call.collective, call.nbytes, table.algorithm, request.segment
            )
            if rounds * ranks > MOST_STEPS:
                raise UsageError(
                    f"{call.name} by {table.algorithm} of {rounded_size(call.nbytes)} has about "
                    f"{rounds:.0f} rounds of {ranks} ranks, which take many minutes to walk through; "
                    f"give fewer --ranks, another --algorithm, or --model {TERMS}, which estimates"
                )


def _algorithms(collective: Benchmark, request: SimulationRequest) -> tuple[str, ...]:
    """Return the algorithms to simulate; some may not apply."""
    name = collective.what.name
    named = request.options.algorithms
    if named is None:
        return _estimated(collective, request)
    if ALL in named:
        return tuple(KNOWN[name])
    return named


def _estimated(collective: Benchmark, request: SimulationRequest) -> tuple[str, ...]:
    """Return the algorithms that are estimated to be the fastest for small arrays and for large ones."""
    name, sizes = collective.what.name, request.options.sizes
    fits = [each for each in ALGORITHMS[name] if not _refusal(collective, each, request)]
    own = fits or list(ALGORITHMS[name])
    small, large = (
        ranked(request.network, name, nbytes, own, request.segment)[0].algorithm
        for nbytes in (sizes.smallest, sizes.largest)
    )
    return tuple(dict.fromkeys((small, large)))


def _refusal(collective: Benchmark, algorithm: str, request: SimulationRequest) -> str:
    """Return why an algorithm cannot be simulated; empty if it can."""
    name = collective.what.name
    own = KNOWN[name]
    if algorithm not in own:
        return f"{collective.name} has no such algorithm; give {ALL} or some of {', '.join(own)}"
    if own[algorithm].shared and request.network.nodes > 1:
        return (
            f"its ranks reach each other's memory, and these are on {request.network.nodes} nodes; "
            f"give --ranks {request.network.ranks_per_node} or fewer"
        )
    if own[algorithm].uniform and collective.name != name:
        return f"it takes blocks of one size, which {collective.name} does not have"
    if request.model != EVENTS and (collective.name != name or collective.what.peers):
        return f"{collective.name} differs from rank to rank; only --model {EVENTS} does that"
    if request.model == TERMS and not has_terms(name, algorithm):
        return f"it has no terms for {name}; give --model {COST}, which takes its schedule"
    return ""
