"""Compute the time of a collective on a cluster that need not exist.

The description of a network gives the cost of a message, and the links that messages share. The
schedule of an algorithm gives the messages.

The model `events` runs the schedule in virtual time: every rank has its clock, and messages queue in
front of the ports and links that they share. The model `cost` follows the rounds of the schedule: it
agrees with `events`, and says less. The model `terms` adds up an algorithm's latency, bandwidth and
reduction: an estimate, at once for any number of ranks. One table is printed for each collective and
algorithm, as perf prints it. Then come the algorithms side by side, the sizes at which one overtakes
another, and the bottleneck of each at the largest size.

With --like, the network is fitted to the times of a stored run: its latencies and bandwidths, the speeds of
reducing and copying, and the overhead of each call. They are printed with their errors. Only rows of
hpccomm's own algorithms are used, since their prices are known. --cluster then gives the ports, and the
parameters that the run does not determine.

With --trace, a program that hpccomm record has recorded is predicted there. Its computation takes as long as
it did, and its calls have the prices of the network. It has its ranks or more, each with as much to do. The
flags for it are those of the network, --ranks and one --algorithm.

Examples
--------
  hpccomm simulate all_reduce --cluster ib400x32 --algorithm ring,tree -b 8 -e 1G -f 4
  hpccomm simulate all_reduce --cluster ib400x32 --ranks 4096 --algorithm ring -b 1G -e 1G
  hpccomm simulate broadcast,all_gather --cluster mine.toml -b 1K -e 64M -f 4 --model cost
  hpccomm simulate all_to_all --cluster lab1g --algorithm all -b 1M -e 1M --skew 1e-3 --output s.h5
  hpccomm simulate all_reduce --like runs.h5 --ranks 4096 -b 8 -e 1G -f 4
  hpccomm simulate --trace t.h5 --cluster ib400x32 --ranks 256
"""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.results.comparison import require_scipy
from hpccomm.results.schema import SIMULATED_BACKEND, Config, RankInfo, Row, RunInfo
from hpccomm.results.timings import crossovers, fastest, timing
from hpccomm.schedules.algorithms import ALGORITHMS, KNOWN
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.cost.network import Network, dump, load, ready
from hpccomm.schedules.cost.rounds import price, simulate
from hpccomm.schedules.cost.terms import estimate, has_terms, ranked, rounds_of
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Schedule, Tuning, world
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.tools import flags as readers
from hpccomm.tools import output
from hpccomm.tools.flags import ALL, Flag, FlagGroup
from hpccomm.tools.output import Progress
from hpccomm.tools.perf import arrays, facts, flags
from hpccomm.tools.perf.collectives import COLLECTIVES, Benchmark, benchmark
from hpccomm.tools.perf.options import Options
from hpccomm.tools.perf.report import Report
from hpccomm.tools.perf.tables import MAXIMUM, MeasuredRow, PerfCase, PerfTable
from hpccomm.topology import Topology
from hpccomm.units import figure, rounded_size

# The request of a simulation, its tables line by line, and the comparison of its algorithms.

EVENTS, COST, TERMS = "events", "cost", "terms"
"""The models that can time a call."""

MOST_UNEVEN_RANKS = 512
"""Most ranks of a call that has a count for each pair of ranks; more ranks take long."""

MOST_STEPS = 1 << 30
"""Most steps, rounds times ranks, that are priced one by one; more take minutes."""

MESSAGE_BYTES = 256
"""Bytes of memory for one message of a round, with its ways and queues; measured."""

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
        The options of perf; `algorithms` is None for the choices of ``auto``.
    network : Network
        The network of all simulated ranks.
    model : str
        `EVENTS`, `COST` or `TERMS`.
    segment : int
        Bytes of a segment.
    channels : int
        Rounds that may be under way at the same time.
    skew : float
        Seconds within which ranks enter a call.
    seed : int
        Seed of the random entry times.
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
        """The time in seconds at which each rank enters a call: the same for all calls, to make them comparable."""
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


Signatures = tuple[Signature, ...]
"""A call on all ranks: one signature for all ranks, or a signature for each if they differ."""


def signatures_of(case: PerfCase, ranks: int) -> Signatures:
    """Return the call of a case, as perf makes it."""
    layout, what = case.arrange(0, ranks), case.collective.what
    if not (layout.send_counts or what.peers):
        counts = (layout.count,) * (ranks if what.blockwise else 1)
        received = counts if what.individual else ()
        return (Signature(what.name, case.dtype, counts, received, op=case.op, root=case.root),)
    count: int | list[list[int]] = layout.count
    if layout.send_counts:  # what a rank sends depends only on the distance
        count = [np.roll(layout.send_counts, rank).tolist() for rank in range(ranks)]
    return signatures(what.name, ranks, count, dtype=case.dtype)


def calls(table: PerfTable, request: SimulationRequest) -> Iterator[tuple[PerfCase, Signatures]]:
    """Yield the case and the call of each line of a table."""
    ranks = request.network.ranks
    for empty, sizes in table.segments(request.options, ranks):
        for size in sizes.measured(empty.dtype.itemsize):
            case = replace(empty, size=size)
            yield case, signatures_of(case, ranks)


def tables(request: SimulationRequest) -> tuple[tuple[PerfTable, ...], tuple[str, ...]]:
    """Return the tables of a run, and the cases that were asked for but do not exist.

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
    """Raise if a table would take too much memory or time."""
    what = table.collective.what
    everybody = not (what.rooted or what.peers or what.prefix)
    ranks, left = request.network.ranks, arrays.available()
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
        for _, (call, *_) in calls(table, request):
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
    """Return the algorithms to simulate; some may not apply to the collective."""
    name, sizes = collective.what.name, request.options.sizes
    named = request.options.algorithms
    if named is not None:
        return tuple(KNOWN[name]) if ALL in named else named
    # Those with the least estimated times for the smallest and for the largest arrays.
    own = [each for each in ALGORITHMS[name] if not _refusal(collective, each, request)]
    small, large = (
        ranked(request.network, name, nbytes, own or [*ALGORITHMS[name]], request.segment)
        for nbytes in (sizes.smallest, sizes.largest)
    )
    return tuple(dict.fromkeys((small[0].algorithm, large[0].algorithm)))


def _refusal(collective: Benchmark, algorithm: str, request: SimulationRequest) -> str:
    """Return why an algorithm cannot be simulated; empty if it can."""
    name = collective.what.name
    known = KNOWN[name]
    if algorithm not in known:
        return f"{collective.name} has no such algorithm; give {ALL} or some of {', '.join(known)}"
    if known[algorithm].shared and request.network.nodes > 1:
        return (
            f"its ranks reach each other's memory, and these are on {request.network.nodes} nodes; "
            f"give --ranks {request.network.ranks_per_node} or fewer"
        )
    if known[algorithm].uniform and collective.name != name:
        return f"it takes blocks of one size, which {collective.name} does not have"
    if request.model != EVENTS and (collective.name != name or collective.what.peers):
        return f"{collective.name} differs from rank to rank; only --model {EVENTS} does that"
    if request.model == TERMS and not has_terms(name, algorithm):
        return f"it has no terms for {name}; give --model {COST}, which takes its schedule"
    return ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one algorithm at one size.

    Attributes
    ----------
    nbytes : int
        The size.
    seconds : float
        Seconds until the last rank is done.
    first : float
        Seconds until the first rank is done; NaN if not known.
    busbw : float
        Bus bandwidth in 1e9 B/s.
    bottleneck : str
        The resource that was in use for longest; empty if not known.
    busy : float
        Seconds for which it was in use.
    """

    nbytes: int
    seconds: float
    first: float
    busbw: float
    bottleneck: str
    busy: float


Curves = Mapping[str, Sequence[Cost]]
"""The costs by size for each algorithm; all algorithms have the same sizes."""


def simulated_curves(
    request: SimulationRequest, out: TextIO, err: TextIO, terminal: TextIO | None = None
) -> Mapping[str, Curves]:
    """Simulate the calls of all tables, and report them as perf does.

    Parameters
    ----------
    request : SimulationRequest
        What to simulate.
    out, err : text stream
        Streams for the tables, and for errors.
    terminal : text stream, optional
        Stream that shows the progress.

    Returns
    -------
    mapping of str to Curves
        The costs of each algorithm, by the title of a comparison.

    Raises
    ------
    UsageError
        If the request does not fit, see `SimulationRequest`.
    """
    curves: dict[str, dict[str, list[Cost]]] = {}
    simulated, skipped = tables(request)
    info = run_info(request, skipped)
    lines = sum(table.lines(request.options, request.network.ranks) for table in simulated)
    with (
        closing(Progress(terminal, lines, ticking=True)) as progress,
        Report(info, request.options, lines, out, err, progress) as report,
    ):
        for table in simulated:
            report.begin([table.names])
            for case, of_ranks in calls(table, request):
                name, nbytes = table.collective.name, case.arrange(0, request.network.ranks).nbytes
                report.progress.show(f"{table.algorithm} {name} {nbytes} B")
                row, samples, point = timed(request, table, case, of_ranks)
                none = np.empty((0, len(info.ranks), 2))
                report.add([MeasuredRow(row, timing(samples, 0, none), samples, none)], ())
                title = f"{case} on {request.network.name}, {request.network.ranks} ranks"
                curves.setdefault(title, {}).setdefault(table.algorithm, []).append(point)
            report.finish()
    return curves


def timed(
    request: SimulationRequest, table: PerfTable, case: PerfCase, of_ranks: Signatures
) -> tuple[Row, NDArray[np.float64], Cost]:
    """Simulate one call.

    Returns
    -------
    Row
        The line of the table.
    ndarray of float64, shape (1, ranks) or (0, ranks)
        The seconds from the first rank's start to each rank's end; no row if the model has one time for all ranks.
    Cost
        The point of the comparison.
    """
    network, signature, algorithm = request.network, of_ranks[0], table.algorithm
    tuning = request.tuning(signature.dtype)
    first, samples, bottleneck, busy = math.nan, np.empty((0, network.ranks)), "", 0.0
    if request.model == EVENTS:
        schedule = _schedule(request, algorithm, of_ranks)
        outcome = simulate(schedule, network, signature.dtype.itemsize, request.starts)
        seconds, first, samples = outcome.seconds, outcome.ends.min(), outcome.ends[np.newaxis]
        bottleneck, busy = outcome.bottleneck, outcome.busy
    elif request.model == COST:
        seconds = price(network, signature, algorithm, tuning)
    else:
        seconds = estimate(
            network, signature.collective, signature.nbytes, algorithm, request.segment
        )
    row = case.row(table.names, network.ranks, seconds)
    return row, samples, Cost(row.bytes, seconds, float(first), row.busbw, bottleneck, busy)


def _schedule(request: SimulationRequest, algorithm: str, of_ranks: Signatures) -> Schedule:
    ranks = request.network.ranks
    build = KNOWN[of_ranks[0].collective][algorithm].build
    tuning = request.tuning(of_ranks[0].dtype)
    if len(of_ranks) == 1:
        return build(world(ranks), of_ranks[0], tuning)
    own = enumerate(of_ranks)
    return merged([build(world(ranks, np.array([rank])), each, tuning) for rank, each in own])


def run_info(request: SimulationRequest, skipped: tuple[str, ...]) -> RunInfo:
    """Return the facts of a run."""
    nodes = request.network.node(np.arange(request.network.ranks, dtype=np.int64)).tolist()
    ranks = tuple(
        RankInfo(rank, 0, f"node{node}", node, device_info=SIMULATED_BACKEND)
        for rank, node in enumerate(nodes)
    )
    config, simulation = request.options.config, request.facts
    return facts.local_run_info(config, skipped, ranks, simulation=simulation, launcher="none")


def comparison(title: str, curves: Curves) -> str:
    """Return lines of comment: times side by side, the sizes at which algorithms change places, and bottlenecks.

    Parameters
    ----------
    title : str
        The simulated case.
    curves : mapping of str to sequence of Cost
        Costs by algorithm.
    """
    first = any(not math.isnan(point.first) for points in curves.values() for point in points)
    lines = [f"# {title}: time of the last rank{' (and of the first one done)' * first} in us"]
    width = max(20, *(len(name) + 2 for name in curves))
    lines.append("# " + f"{'size (B)':>12s}" + "".join(f"{name:>{width}s}" for name in curves))
    for row in zip(*curves.values(), strict=True):
        cells = (f"{_times(point):>{width}s}" for point in row)
        seconds = {name: each.seconds for name, each in zip(curves, row, strict=True)}
        best = f"  {' = '.join(fastest(seconds))}" if len(curves) > 1 else ""
        lines.append("# " + f"{row[0].nbytes:12d}" + "".join(cells) + best)
    if len(curves) > 1:
        times = {name: {each.nbytes: each.seconds for each in its} for name, its in curves.items()}
        lines += [
            f"# Crossover: {each.before} up to {rounded_size(each.lower)}, {each.after} from "
            f"{rounded_size(each.upper)} on; about {rounded_size(each.size, 2)}"
            for each in crossovers(times)
        ] or ["# Crossover: none between these sizes"]
    lines += [line for name, points in curves.items() if (line := _limit(name, points[-1]))]
    return "".join(f"{line}\n" for line in [*lines, "#"])


def _times(point: Cost) -> str:
    first = "" if math.isnan(point.first) else f" ({figure(point.first * 1e6, 7).strip()})"
    return figure(point.seconds * 1e6, 7).strip() + first


def _limit(name: str, point: Cost) -> str:
    """Return a line on the bottleneck of an algorithm at its largest size; empty if not known."""
    if not point.bottleneck or point.seconds <= 0:
        return ""
    part = point.busy / point.seconds
    limit = f"; alone it would allow busbw {point.busbw / part:.2f}" if point.busbw else ""
    taken = f"{point.bottleneck}, taken {100 * part:.1f}% of the time"
    return f"# Bottleneck: {name} at {rounded_size(point.nbytes)}: {taken}{limit}"


MOST_RANKS = 1 << 20
"""Most simulated ranks: with any model, each takes memory and a line of the results file."""

_SIMULATION = readers.table(
    __package__,
    {
        "simulated": readers.algorithms(
            sorted({name for named in ALGORITHMS.values() for name in named}), "cannot be simulated"
        )
    },
    {"networks": ", ".join(ready()), "segment": f"{DEFAULT_SEGMENT >> 10}K"},
)

FLAGS = (
    Flag(
        "COLLECTIVE[,COLLECTIVE...]",
        readers.some_of(SIMULATED, "cannot be simulated"),
        f"{readers.ALL}, or some of {', '.join(SIMULATED)}",
        "collectives",
        values="?",
    ),
    *(FlagGroup(group, heading) for heading, group in _SIMULATION.items()),
    *(FlagGroup(flags.FLAGS[heading], heading) for heading in ("sizes", "operations")),
)


def run(args: argparse.Namespace) -> int:
    """Simulate; return the exit status."""
    if (args.trace is None) == (args.collectives is None):
        raise UsageError(
            "give collectives, such as all_reduce, or --trace FILE.h5 for the calls of a recorded program"
        )
    if args.trace is not None:
        return _predict(args)
    network, status = _network(args, args.ranks)
    request = _request(args, network)
    groups = simulated_curves(request, sys.stdout, sys.stderr, output.terminal())
    for title, curves in groups.items():
        output.write(comparison(title, curves))
    return status


def _predict(args: argparse.Namespace) -> int:
    from hpccomm.tools.programs.advice import predicted_on

    if len(args.algorithm or ()) > 1 or args.output or args.skew:
        raise UsageError("--trace takes one --algorithm, and no --output or --skew")
    recording, status = output.read_recording(args.trace)
    known = {name: 0 for each in recording.operations() for name in ALGORITHMS.get(each, ())}
    for name in set(args.algorithm or ()).difference(known):
        raise UsageError(f"no call has --algorithm {name}; give one of {', '.join(known)}, or none")
    network, unread = _network(args, args.ranks or recording.ranks)
    output.write(predicted_on(network, recording, *(args.algorithm or ())))
    return max(status, unread)


def _network(args: argparse.Namespace, ranks: int | None) -> tuple[Network, int]:
    """Return the network, with `ranks` ranks unless None, and the status of the files that were read for it."""
    if args.cluster is None and args.like is None:
        raise UsageError(
            f"give the network: --cluster with a file or one of {', '.join(ready())}; or --like RUNS.h5"
        )
    if args.run is not None and args.like is None:
        raise UsageError("--run chooses among the runs of --like RUNS.h5; give both, or neither")
    described, status = None if args.cluster is None else load(args.cluster), 0
    if args.like is None:
        assert described is not None
        network = described if ranks is None else described.resized(ranks)
    else:
        from hpccomm.results.reader import choose
        from hpccomm.tools.simulate.like import like

        require_scipy("--like")
        examined, status = output.read_file(args.like)
        with output.watched(f"fitting to {args.like.name}"):
            network, report, damage = like(choose(examined.runs, args.run), described, ranks)
        output.write(report)
        status = max(status, output.damaged(damage, args.like))
    if network.ranks > MOST_RANKS:
        raise UsageError(
            f"{network.name} has {network.ranks} ranks, and at most {MOST_RANKS} are simulated; give "
            "fewer --ranks"
        )
    return network, status


def _request(args: argparse.Namespace, network: Network) -> SimulationRequest:
    sizes = flags.sizes(args)
    if args.skew and args.model != EVENTS:
        raise UsageError(
            f"--skew {args.skew:g}: --model {args.model} has all ranks start at once; "
            f"leave it out, or give --model {EVENTS}"
        )
    swept = sizes.smallest, sizes.largest, sizes.factor, sizes.step
    config = Config(*swept, iterations=1, warmup_iters=0, validation=0, average=MAXIMUM)
    options = Options(
        collectives=args.collectives,
        backends=(SIMULATED_BACKEND,),
        algorithms=args.algorithm,
        types=args.types,
        ops=args.ops,
        root=args.root,
        config=config,
        output=args.output,
    )
    return SimulationRequest(
        options,
        network,
        args.model,
        args.segment or DEFAULT_SEGMENT,
        args.channels,
        args.skew,
        args.seed,
    )
