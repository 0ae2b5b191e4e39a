"""A simulation: every table, line by line, and the comparison of its algorithms.

`hpccomm.cli.simulate` calls it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import facts
from hpccomm.bench.perf.lines import MeasuredRow
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.tables import PerfTable
from hpccomm.bench.progress import Progress
from hpccomm.bench.simulated.tables import (
    COST,
    EVENTS,
    SimulatedCall,
    SimulationRequest,
    calls,
    tables,
)
from hpccomm.comparison.crossovers import crossovers, fastest
from hpccomm.results.repetitions import timing
from hpccomm.results.schema import SIMULATED_BACKEND, RankInfo, Row, RunInfo
from hpccomm.results.table import figure
from hpccomm.schedules.algorithms import KNOWN
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.cost.terms import estimate
from hpccomm.schedules.schedule import Schedule, world
from hpccomm.units import rounded_size


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one algorithm at one size.

    Attributes
    ----------
    nbytes : int
        The size.
    seconds : float
        Until the last rank is done.
    first : float
        Until the first rank is done; not a number where that is not known.
    busbw : float
        Bus bandwidth in 1e9 B/s.
    bottleneck : str
        What was taken for longest; empty where that is not known.
    busy : float
        Seconds that it was taken for.
    """

    nbytes: int
    seconds: float
    first: float
    busbw: float
    bottleneck: str
    busy: float


Curves = Mapping[str, Sequence[Cost]]
"""For each algorithm its points, by size, the same sizes for all."""


def run(
    request: SimulationRequest, out: TextIO, err: TextIO, terminal: TextIO | None = None
) -> Mapping[str, Curves]:
    """Simulate the calls of all tables, and report them as perf does.

    Parameters
    ----------
    request : SimulationRequest
        What to simulate.
    out, err : text stream
        For the tables, and for errors.
    terminal : text stream, optional
        Shows the progress.

    Returns
    -------
    mapping of str to Curves
        The points of each algorithm, by the title of a table.

    Raises
    ------
    UsageError
        As of `tables`.
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
            for call in calls(table, request):
                name = table.collective.name
                report.progress.show(f"{table.algorithm} {name} {call.layout.nbytes} B")
                row, samples, point = timed(request, table, call)
                none = np.empty((0, len(info.ranks), 2))
                report.add([MeasuredRow(row, timing(samples, 0, none), samples, none)], ())
                title = f"{call.case} on {request.network.name}, {request.network.ranks} ranks"
                curves.setdefault(title, {}).setdefault(table.algorithm, []).append(point)
            report.finish()
    return curves


def timed(
    request: SimulationRequest, table: PerfTable, call: SimulatedCall
) -> tuple[Row, NDArray[np.float64], Cost]:
    """Simulate one call.

    Returns
    -------
    Row, ndarray, Point
        The line of the table; its samples, float64 (1, ranks): seconds from the first rank's start
        to each rank's end, or (0, ranks) where the model has one time for all; and the same for the
        comparison.
    """
    network, signature, layout = request.network, call.signatures[0], call.layout
    algorithm = table.algorithm
    tuning = request.tuning(signature.dtype)
    first, samples, bottleneck, busy = math.nan, np.empty((0, network.ranks)), "", 0.0
    if request.model == EVENTS:
        schedule = _schedule(request, algorithm, call)
        outcome = simulate(schedule, network, signature.dtype.itemsize, request.starts)
        seconds, first, samples = outcome.seconds, outcome.ends.min(), outcome.ends[np.newaxis]
        bottleneck, busy = outcome.bottleneck, outcome.busy
    elif request.model == COST:
        seconds = price(network, signature, algorithm, tuning)
    else:
        seconds = estimate(
            network, signature.collective, signature.nbytes, algorithm, request.segment
        )
    row = call.case.row(table.names, network.ranks, seconds)
    return row, samples, Cost(layout.nbytes, seconds, float(first), row.busbw, bottleneck, busy)


def _schedule(request: SimulationRequest, algorithm: str, call: SimulatedCall) -> Schedule:
    signatures, ranks = call.signatures, request.network.ranks
    build = KNOWN[signatures[0].collective][algorithm].build
    tuning = request.tuning(signatures[0].dtype)
    if len(signatures) == 1:
        return build(world(ranks), signatures[0], tuning)
    own = enumerate(signatures)
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
    """Return lines of comment: times side by side, where one algorithm overtakes another, and what bounds each.

    Parameters
    ----------
    title : str
        What was simulated.
    curves : mapping of str to sequence of Cost
        By algorithm.
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
    """Return a line on what bounds an algorithm at its largest size."""
    if not point.bottleneck or point.seconds <= 0:
        return ""
    part = point.busy / point.seconds
    limit = f"; alone it would allow busbw {point.busbw / part:.2f}" if point.busbw else ""
    taken = f"{point.bottleneck}, taken {100 * part:.1f}% of the time"
    return f"# Bottleneck: {name} at {rounded_size(point.nbytes)}: {taken}{limit}"
