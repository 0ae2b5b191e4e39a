"""A simulation: every table, line by line, and the comparison of its algorithms.

`hpccomm.cli.simulate` calls it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import facts
from hpccomm.bench.perf.lines import MeasuredRow
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.tables import PerfTable
from hpccomm.bench.progress import Progress
from hpccomm.bench.simulated.comparison import Cost, Curves
from hpccomm.bench.simulated.request import COST, EVENTS, SimulationRequest
from hpccomm.bench.simulated.tables import SimulatedCall, calls
from hpccomm.results.repetitions import timing
from hpccomm.results.schema import SIMULATED_BACKEND, RankInfo, Row, RunInfo
from hpccomm.schedules.algorithms import KNOWN
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.cost.terms import estimate
from hpccomm.schedules.schedule import Schedule, world


def run(
    request: SimulationRequest,
    tables: Sequence[PerfTable],
    skipped: tuple[str, ...],
    out: TextIO,
    err: TextIO,
    terminal: TextIO | None = None,
) -> Mapping[str, Curves]:
    """Simulate the calls of all tables, and report them as perf does.

    Parameters
    ----------
    request : SimulationRequest
        What to simulate.
    tables : sequence of PerfTable
    skipped : tuple of str
        Its tables, and the skipped cases, as `tables` returns them.
    out, err : text stream
        For the tables, and for errors.
    terminal : text stream, optional
        Shows the progress.

    Returns
    -------
    mapping of str to Curves
        The points of each algorithm, by the title of a table.
    """
    curves: dict[str, dict[str, list[Cost]]] = {}
    info = run_info(request, skipped)
    lines = sum(table.lines(request.options, request.network.ranks) for table in tables)
    with (
        closing(Progress(terminal, lines, ticking=True)) as progress,
        Report(info, request.options, lines, out, err, progress) as report,
    ):
        for table in tables:
            report.begin([table.names])
            for call in calls(table, request):
                name = table.collective.name
                report.progress(f"{table.algorithm} {name} {call.layout.nbytes} B")
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
