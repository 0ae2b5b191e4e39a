"""A run of perf: every table, every line, from the first check to the last footer."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from hpccomm.bench.perf import facts, lines
from hpccomm.bench.perf.blocks import PerfTable, TablePlan
from hpccomm.bench.perf.isolated import Budget, IsolatedTimer
from hpccomm.bench.perf.measure import CaseRunner
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.preparing import allocate, found_settings
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.shared_report import SharedReport, measure_line
from hpccomm.bench.perf.sources import CommSource, MemoryKind, arrays_of_run, memory_of
from hpccomm.bench.perf.split import grouped
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


def run(
    sources: Sequence[CommSource],
    options: Options,
    arguments: tuple[str, ...],
    launcher: str,
    out: TextIO,
    err: TextIO,
    terminal: TextIO | None = None,
) -> int:
    """Measure all tables. Collective; blocks.

    Parameters
    ----------
    sources : sequence of Source
        Where the communicator of each backend comes from, all of the same ranks.
    options : Options
        The options; the same on all ranks.
    arguments : tuple of str
        The command line, for the record.
    launcher : str
        What started the ranks, for the record.
    out, err : text stream
        Rank 0 writes the tables to `out`, wrong results to `err`.
    terminal : text stream, optional
        Rank 0 shows there what it measures.

    Returns
    -------
    int
        Elements that were wrong, and tables that were too slow, on every rank.

    Raises
    ------
    UsageError
        On every rank, before anything is measured: no such root, an algorithm that does not apply,
        not enough memory, a flag that host arrays cannot follow.
    BackendUnavailable
        On every rank, before anything is measured: a backend cannot move device arrays.
    ResultsError
        On every rank, if rank 0 cannot write a file, before anything is measured or later.
    """
    kind = arrays_of_run(sources, options)
    plan = TablePlan(options)
    for number, source in enumerate(sources):
        with _opened(source, kind, options) as at:
            plan.add(number, at.comm, at.memory)
            _refuse_unequal(at, plan)
    tables, skipped = plan.made()
    report = SharedReport(options, out, err, terminal)
    report.expected_rows = sum(block.expected_rows(options, at.least) for block in tables)
    report.budget = Budget(options.budget, report.expected_rows)
    with report.opened:
        for number, source in enumerate(sources):
            with _opened(source, kind, options) as at:
                world, comm, memory = at.world, at.comm, at.memory
                report.usage.note("Initialization", memory.in_use())
                allocate(world, memory, options)
                report.usage.note("User-Allocated", memory.in_use())
                isolated = (
                    None
                    if not options.sync
                    else IsolatedTimer(comm, memory.settle, options.isolated, report.budget)
                )
                if number == 0:
                    config, lacking = found_settings(comm, memory, options)
                    info = facts.run_info(
                        world,
                        config,
                        (*skipped, *lacking),
                        arguments,
                        launcher,
                        device=memory.description(),
                        versions=plan.versions,
                        series=options.series,
                        group=at.colour,
                    )
                    report.open(world, info)
                for block in tables:
                    if block.source == number:
                        bench = CaseRunner(
                            comm,
                            memory,
                            options.config,
                            block.algorithm,
                            samples=options.samples,
                            isolated=isolated,
                        )
                        _measure_block(at, bench, block, options, report)
                report.usage.note("Collective", memory.in_use())
                memory.release()
                if number == len(sources) - 1:
                    return report.end(world, memory)
    raise AssertionError  # there is at least one source


class _Ranks(NamedTuple):
    """Who measures.

    Attributes
    ----------
    world, comm : Communicator
        Of all ranks, and of those that this rank measures with.
    memory : MemoryKind
        The arrays.
    colour : int
        Of this rank's group.
    least : int
        Number of ranks of the smallest group.
    """

    world: "Communicator"
    comm: "Communicator"
    memory: MemoryKind
    colour: int
    least: int


@contextmanager
def _opened(source: CommSource, kind: str, options: Options) -> Iterator[_Ranks]:
    """Open a source, with the memory of its arrays current. Collective."""
    with source.opened() as world, grouped(world, options.split) as (comm, colour, least):
        memory = memory_of(kind, comm, options)
        memory.barrier = world.barrier
        with memory.entered():
            yield _Ranks(world, comm, memory, colour, least)


def _refuse_unequal(at: _Ranks, plan: TablePlan) -> None:
    """Raise on every rank unless groups of different sizes have the same tables. Collective."""
    if at.comm.size == at.world.size:
        return
    planned = at.world.all_gather_object((at.comm.size, plan.names))
    for size, names in planned:
        if names != planned[0][1]:
            raise UsageError(
                f"--split gives groups of {planned[0][0]} and {size} ranks, which do not have the same tables; "
                "name collectives and algorithms that both have, or split into equal groups"
            )


def _measure_block(
    at: _Ranks,
    bench: CaseRunner,
    block: PerfTable,
    options: Options,
    report: SharedReport,
) -> None:
    """Measure one table, from header to footer."""
    collective = block.collective
    report.write(at.world, lambda to: to.begin(*block.names))
    for segment in block.segments(options, at.least):
        for case in segment.warmups():
            bench.warm_up(case)
        for _ in _cycles(options.config.run_cycles):
            for case in segment.cases():
                line = lines.Line(block.names, case, options.config, at.comm.size, options.sync)
                measure_line(at.world, line, bench, report, Report.add)
    report.write(at.world, lambda to: to.finish(collective.name))


def _cycles(number: int) -> Iterator[int]:
    """Count to `number`; for ever if it is 0."""
    return iter(range(number)) if number else itertools.count()
