"""A run of perf: every table, every line, from the first check to the last footer."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hpccomm.bench.perf import facts, lines
from hpccomm.bench.perf.alone import AloneTimer, Budget
from hpccomm.bench.perf.blocks import PerfTable, TablePlan
from hpccomm.bench.perf.measure import CaseRunner
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.preparing import allocate, found_settings
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.shared_report import SharedReport, measure_line
from hpccomm.bench.perf.sources import CommSource, MemoryKind, arrays_of_run, memory_of

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
        with _opened(source, kind, options) as (comm, memory):
            plan.add(number, comm, memory)
    tables, skipped = plan.made()
    report = SharedReport(options, out, err, terminal)
    report.expected_rows = sum(block.expected_rows(options, plan.ranks) for block in tables)
    report.budget = Budget(options.budget, report.expected_rows)
    with report.opened:
        for number, source in enumerate(sources):
            with _opened(source, kind, options) as (comm, memory):
                report.usage.note("Initialization", memory.in_use())
                allocate(comm, memory, options)
                report.usage.note("User-Allocated", memory.in_use())
                alone = (
                    None
                    if not options.sync
                    else AloneTimer(comm, memory.settle, options.alone, report.budget)
                )
                if number == 0:
                    config, lacking = found_settings(comm, memory, options)
                    info = facts.run_info(
                        comm,
                        config,
                        (*skipped, *lacking),
                        arguments,
                        launcher,
                        device=memory.description(),
                        versions=plan.versions,
                        series=options.series,
                    )
                    report.open(comm, info)
                for block in tables:
                    if block.source == number:
                        bench = CaseRunner(
                            comm,
                            memory,
                            options.config,
                            block.algorithm,
                            samples=options.samples,
                            alone=alone,
                        )
                        _measure_block(comm, bench, block, options, report)
                report.usage.note("Collective", memory.in_use())
                memory.release()
                if number == len(sources) - 1:
                    return report.end(comm, memory)
    raise AssertionError  # there is at least one source


@contextmanager
def _opened(
    source: CommSource, kind: str, options: Options
) -> Iterator[tuple["Communicator", MemoryKind]]:
    """Open a source, with the memory of its arrays current. Collective."""
    with source.opened() as comm:
        memory = memory_of(kind, comm, options)
        with memory.entered():
            yield comm, memory


def _measure_block(
    comm: "Communicator",
    bench: CaseRunner,
    block: PerfTable,
    options: Options,
    report: SharedReport,
) -> None:
    """Measure one table, from header to footer."""
    collective = block.collective
    report.write(comm, lambda to: to.begin(*block.names))
    for segment in block.segments(options, comm.size):
        for case in segment.warmups():
            bench.warm_up(case)
        for _ in _cycles(options.config.run_cycles):
            for case in segment.cases():
                line = lines.Line(block.names, case, options.config, comm.size, options.sync)
                measure_line(comm, line, bench, report, Report.add)
    report.write(comm, lambda to: to.finish(collective.name))


def _cycles(number: int) -> Iterator[int]:
    """Count to `number`; for ever if it is 0."""
    return iter(range(number)) if number else itertools.count()
