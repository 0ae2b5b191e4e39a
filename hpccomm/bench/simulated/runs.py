"""What ``hpccomm simulate`` simulates: which tables, which calls, and what comes of them."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.bench.perf import facts, memory_use
from hpccomm.bench.perf.collectives import COLLECTIVES, Benchmark, benchmark
from hpccomm.bench.perf.layouts import Layout, Member
from hpccomm.bench.perf.names import NO_OP, NO_TYPE, OPS, TYPES
from hpccomm.bench.perf.options import Options, meaningless, pairs
from hpccomm.bench.perf.readers import ALL
from hpccomm.bench.simulated.comparison import Point, in_words
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.policy import BY_BYTES
from hpccomm.errors import UsageError
from hpccomm.results.schema import (
    UNCHECKED,
    RankInfo,
    Row,
    RunInfo,
    recorded_environment,
    recorded_slurm,
)
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import dump
from hpccomm.schedules.cost.terms import estimate, has_terms, rounds_of
from hpccomm.schedules.schedule import Schedule, Tuning, world
from hpccomm.schedules.simulate import simulate
from hpccomm.schedules.simulate.merged import merged
from hpccomm.topology import Topology

EVENTS = "events"
COST = "cost"
TERMS = "terms"
MODELS = (EVENTS, COST, TERMS)

BACKEND = "simulated"
"""Backend of the rows."""

MOST_UNEVEN_RANKS = 512
"""Of a call that has counts of its own for each pair of ranks; so many take seconds."""

MOST_STEPS = 1 << 30
"""Rounds times ranks that are priced one by one; so many take minutes."""

MESSAGE_BYTES = 256
"""Memory for one message of a round, its ways and queues included; measured."""

SIMULATED: dict[str, Benchmark] = {
    name: collective
    for name, collective in COLLECTIVES.items()
    if collective.algorithms or name in ALGORITHMS
} | {"scan": benchmark("scan")}
"""Every collective that can be simulated, in the order of ``all``."""


@dataclass(frozen=True)
class SimulationRequest:
    """What a simulation was asked for.

    Attributes
    ----------
    options : Options
        As of perf; `algorithms` None is those that ``auto`` takes.
    network : Network
        With the ranks that were asked for.
    model : str
        One of `MODELS`.
    segment : int
        Bytes that are moved at a time.
    channels : int
        Rounds that may be under way at the same time.
    skew : float
        Seconds within which ranks enter a call.
    seed : int
        By which their times are drawn.
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
        drawn = np.random.default_rng(self.seed).random(self.network.ranks)
        times: NDArray[np.float64] = drawn * self.skew
        return times

    @property
    def facts(self) -> dict[str, str]:
        """What a results file says of the simulation."""
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

    def tuning(self, dtype: dtypes.DType) -> Tuning:
        """Return what algorithms are told."""
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
    collective : Benchmark
        Which.
    type_name, op_name : str
        As they are printed.
    layout : Layout
        Of rank 0.
    calls : tuple of Signature
        One for all ranks, or one for each where they differ.
    """

    collective: Benchmark
    type_name: str
    op_name: str
    layout: Layout
    calls: tuple[Signature, ...]


@dataclass(frozen=True, slots=True)
class SimulatedTable:
    """One table: a collective and an algorithm.

    Attributes
    ----------
    collective : Benchmark
        Which.
    algorithm : str
        By name.
    segments : tuple of (str, str, int)
        Type, reduction and root of its lines, each with all sizes.
    """

    collective: Benchmark
    algorithm: str
    segments: tuple[tuple[str, str, int], ...]

    def cases(self, asked: SimulationRequest) -> Iterator[SimulatedCall]:
        """Yield its lines' calls."""
        for type_name, op_name, root in self.segments:
            if not self.collective.moves:
                yield case(self.collective, type_name, op_name, root, 0, asked.network.ranks)
                continue
            for size in asked.options.sizes.measured(TYPES[type_name].itemsize):
                yield case(self.collective, type_name, op_name, root, size, asked.network.ranks)

    def lines(self, asked: SimulationRequest) -> int:
        """Return how many lines it has."""
        if not self.collective.moves:
            return len(self.segments)
        sizes = asked.options.sizes
        return sum(sizes.number(TYPES[type_name].itemsize) for type_name, _, _ in self.segments)


def case(
    collective: Benchmark, type_name: str, op_name: str, root: int, size: int, ranks: int
) -> SimulatedCall:
    """Return the call of one size, as perf makes it."""
    dtype = TYPES.get(type_name, dtypes.BOOL)
    layout = collective.arrange(size, dtype.itemsize, Member(0, ranks, root))
    name = collective.name.removesuffix("_v")
    op = OPS[op_name] if collective.reduces else None
    calls: tuple[Signature, ...]
    if collective.name == "all_to_all_v":
        # What a rank sends depends on the distance alone.
        sent = np.array(layout.send_counts)
        back = sent[-np.arange(ranks)]
        calls = tuple(
            Signature(
                name,
                dtype,
                tuple(np.roll(sent, rank).tolist()),
                tuple(np.roll(back, rank).tolist()),
                uniform=False,
            )
            for rank in range(ranks)
        )
    elif name == "all_to_all":
        calls = (Signature(name, dtype, (layout.count,) * ranks, (layout.count,) * ranks),)
    else:
        blocks = name in ("all_gather", "reduce_scatter", "gather", "scatter")
        counts = (layout.count,) * (ranks if blocks else 1)
        calls = (Signature(name, dtype, counts, op=op, root=layout.root),)
    return SimulatedCall(collective, type_name, op_name, layout, calls)


def tables(asked: SimulationRequest) -> tuple[tuple[SimulatedTable, ...], tuple[str, ...]]:
    """Return the tables of a run, and what is skipped because it does not exist.

    Raises
    ------
    UsageError
        If an algorithm applies to nothing that was asked for, or there is no such root.
    """
    options = asked.options
    named = options.algorithms is not None and ALL not in options.algorithms
    found: list[SimulatedTable] = []
    refused: dict[str, str] = {}
    skipped: dict[str, None] = {}
    if any(SIMULATED[name].reduces for name in options.collectives):
        skipped |= dict.fromkeys(meaningless(options.types, options.ops))
    for name in options.collectives:
        collective = SIMULATED[name]
        segments = tuple(_segments(collective, asked))
        for algorithm in _algorithms(collective, asked):
            why = _refusal(collective, algorithm, asked)
            if not why:
                found.append(SimulatedTable(collective, algorithm, segments))
                continue
            refused.setdefault(algorithm, why)
            if named:
                skipped[f"{algorithm} on {name}"] = None
    used = {table.algorithm for table in found}
    for algorithm, why in refused.items():
        if algorithm not in used and (named or not found):
            raise UsageError(f"--algorithm {algorithm}: {why}")
    for table in found:
        _check_size(table, asked)
    return tuple(found), tuple(skipped)


def _check_size(table: SimulatedTable, asked: SimulationRequest) -> None:
    """Refuse what takes the square of the ranks, where that is too much memory or time."""
    everybody = ("all_reduce", "all_gather", "all_to_all")
    ranks, left = asked.network.ranks, memory_use.available()
    if table.collective.name == "all_to_all_v" and ranks > MOST_UNEVEN_RANKS:
        raise UsageError(
            f"all_to_all_v of {ranks} ranks has {ranks}² counts, which take long to simulate; give at "
            f"most {MOST_UNEVEN_RANKS} --ranks, or all_to_all, which has blocks of one size"
        )
    if asked.model == TERMS:
        return
    linear = table.algorithm == "linear" and table.collective.name in everybody
    if linear and (need := MESSAGE_BYTES * ranks**2) > left:
        raise UsageError(
            f"linear {table.collective.name} sends {ranks}² messages at once, which take about "
            f"{in_words(need)} here, and {in_words(left)} are available; give fewer --ranks, another "
            f"--algorithm, or --model {TERMS}"
        )
    if asked.model == COST and has_terms(table.collective.name, table.algorithm):
        for case in table.cases(asked):
            call = case.calls[0]
            rounds = rounds_of(asked.network, call, table.algorithm, asked.segment)
            if rounds * ranks > MOST_STEPS:
                raise UsageError(
                    f"{call.name} by {table.algorithm} of {in_words(case.layout.nbytes)} has about "
                    f"{rounds:.0f} rounds of {ranks} ranks, which take many minutes to walk through; "
                    f"give fewer --ranks, another --algorithm, or --model {TERMS}, which estimates"
                )


def _algorithms(collective: Benchmark, asked: SimulationRequest) -> tuple[str, ...]:
    """Return the algorithms that were asked for; some may not apply."""
    name = collective.name.removesuffix("_v")
    named = asked.options.algorithms
    if named is None:
        return tuple(dict.fromkeys(BY_BYTES[name]))
    if ALL in named:
        return tuple(ALGORITHMS[name])
    return named


def _refusal(collective: Benchmark, algorithm: str, asked: SimulationRequest) -> str:
    """Return why an algorithm cannot be simulated; empty if it can."""
    name = collective.name.removesuffix("_v")
    own = ALGORITHMS[name]
    if algorithm not in own:
        return f"{collective.name} has none of that name; give {ALL} or some of {', '.join(own)}"
    if own[algorithm].shared and asked.network.nodes > 1:
        return (
            f"its ranks reach each other's memory, and these are on {asked.network.nodes} nodes; "
            f"give --ranks {asked.network.ranks_per_node} or fewer"
        )
    if own[algorithm].uniform and collective.name != name:
        return f"it takes blocks of one size, which {collective.name} does not have"
    if asked.model != EVENTS and collective.name != name:
        return f"{collective.name} differs from rank to rank; only --model {EVENTS} does that"
    if asked.model == TERMS and not has_terms(name, algorithm):
        return f"it has no terms for {name}; give --model {COST}, which takes its schedule"
    return ""


def _segments(collective: Benchmark, asked: SimulationRequest) -> Iterator[tuple[str, str, int]]:
    options = asked.options
    if not collective.moves:
        yield NO_TYPE, NO_OP, -1
        return
    fit = pairs(collective, options.types, options.ops)
    if not fit:
        raise UsageError(
            f"-o/--op {options.ops[0]} means nothing on -d/--datatype {options.types[0]}; "
            f"give another of them, or {ALL}"
        )
    roots = options.roots(collective.name, asked.network.ranks) if collective.rooted else (-1,)
    for type_name, op_name in fit:
        for root in roots:
            yield type_name, op_name, root


def found(
    asked: SimulationRequest, table: SimulatedTable, simulated: SimulatedCall
) -> tuple[Row, NDArray[np.float64], Point]:
    """Simulate one call.

    Returns
    -------
    Row, ndarray, Point
        The line of the table; its samples, float64 (1, ranks): seconds from the first rank's start
        to each rank's end, or (0, ranks) where the model has one time for all; and the same for the
        comparison.
    """
    call = simulated.calls[0]
    tuning = asked.tuning(call.dtype)
    network = asked.network
    if asked.model != EVENTS:
        if asked.model == COST:
            seconds = price(network, call, table.algorithm, tuning)
        else:
            seconds = estimate(network, call, table.algorithm, asked.segment)
        first = math.nan
        samples = np.empty((0, network.ranks))
        bottleneck, busy = "", 0.0
    else:
        schedule = _schedule(simulated, table.algorithm, tuning, network)
        outcome = simulate(schedule, network, call.dtype.itemsize, asked.starts)
        seconds, first = outcome.seconds, float(outcome.ends.min())
        samples = outcome.ends[np.newaxis]
        bottleneck, busy = outcome.bottleneck, outcome.busy
    layout = simulated.layout
    # What takes no time has no bandwidth: an infinite one would be all of the average.
    algbw = layout.nbytes / 1e9 / seconds if seconds > 0 else 0.0
    busbw = algbw * simulated.collective.factor(network.ranks)
    row = Row(
        collective=simulated.collective.name,
        backend=BACKEND,
        algorithm=table.algorithm,
        dtype=simulated.type_name,
        op=simulated.op_name,
        root=layout.root,
        bytes=layout.nbytes,
        count=layout.count,
        in_place=False,
        time=seconds * 1e6,
        algbw=algbw,
        busbw=busbw,
        wrong=UNCHECKED,
        iterations=1,
        finished=time.time(),
    )
    return row, samples, Point(layout.nbytes, seconds, first, busbw, bottleneck, busy)


def _schedule(
    simulated: SimulatedCall, algorithm: str, tuning: Tuning, network: Network
) -> Schedule:
    build = ALGORITHMS[simulated.calls[0].collective][algorithm].build
    if len(simulated.calls) == 1:
        return build(world(network.ranks), simulated.calls[0], tuning)
    return merged(
        [
            build(world(network.ranks, np.array([rank])), call, tuning)
            for rank, call in enumerate(simulated.calls)
        ]
    )


def run_info(
    asked: SimulationRequest, skipped: tuple[str, ...], arguments: tuple[str, ...]
) -> RunInfo:
    """Return the facts of a run."""
    node = asked.network.node(np.arange(asked.network.ranks, dtype=np.int64)).tolist()
    return RunInfo(
        started=datetime.now().astimezone(),
        user=facts.user(),
        launcher="none",
        arguments=arguments,
        skipped=skipped,
        config=asked.options.config,
        ranks=tuple(
            RankInfo(
                rank=rank,
                group=0,
                host=f"node{node[rank]}",
                node=node[rank],
                pid=0,
                cores="",
                device=-1,
                device_hex="",
                device_info=BACKEND,
                driver="",
            )
            for rank in range(asked.network.ranks)
        ),
        versions=facts.versions(),
        environment=recorded_environment(os.environ),
        slurm=recorded_slurm(os.environ),
        simulation=asked.facts,
    )
