"""A run of perf: every table, every line, from the first check to the last footer."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

import numpy as np

from hpccomm.bench.perf import facts, lines, memory_use
from hpccomm.bench.perf.alone import AloneTimer, Budget
from hpccomm.bench.perf.blocks import PerfTable, TablePlan
from hpccomm.bench.perf.measure import CaseRunner, Measured
from hpccomm.bench.perf.memory_kind import AUTO, HOST
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.root import on_root
from hpccomm.bench.perf.sources import CommSource, MemoryKind, kind_of_arrays, memory_of
from hpccomm.bench.progress import Progress
from hpccomm.results.schema import Config, RunInfo

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
    kind = kind_of_arrays(sources, options.arrays)
    if options.arrays == AUTO and not any(each.moves for each in options.collectives):
        kind = HOST  # a barrier is the host's, wherever arrays lie
    if kind == HOST:
        options.refuse_device_flags(
            "the arrays are in host memory; leave it out, or give --arrays device where there are GPUs"
        )
    plan = TablePlan(options)
    for number, source in enumerate(sources):
        with _opened(source, kind, options) as (comm, memory):
            plan.add(number, comm, memory)
    tables, skipped = plan.made()
    report = _SharedReport(options, out, err, terminal)
    report.expected_rows = sum(block.expected_rows(options, plan.ranks) for block in tables)
    report.budget = Budget(options.budget, report.expected_rows)
    with report.opened:
        for number, source in enumerate(sources):
            with _opened(source, kind, options) as (comm, memory):
                report.usage.note("Initialization", memory.in_use())
                _allocate(comm, memory, options)
                report.usage.note("User-Allocated", memory.in_use())
                alone = (
                    None
                    if not options.sync
                    else AloneTimer(comm, memory.settle, options.alone, report.budget)
                )
                if number == 0:
                    config, lacking = _found(comm, memory, options)
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


class _SharedReport:
    """The report of a run, which only rank 0 has, and what is counted meanwhile.

    Attributes
    ----------
    usage : Usage
        The memory in use.
    serials : iterator of int
        Numbers of the measurements.
    expected_rows : int
        Rows that the run will have.
    budget : Budget
        Time for repetitions alone.
    opened : ExitStack
        A context; leaving it ends the report.
    """

    def __init__(self, options: Options, out: TextIO, err: TextIO, terminal: TextIO | None) -> None:
        self.usage = memory_use.Usage()
        self.serials = itertools.count(1)
        self.expected_rows = 0
        self.budget = Budget(math.inf, 1)
        self._options = options
        self._streams = out, err, terminal
        self._report: Report | None = None
        self.opened = ExitStack()

    def open(self, comm: "Communicator", info: RunInfo) -> None:
        """Open the report. Collective."""

        def make() -> Report:
            out, err, terminal = self._streams
            endless = self._options.config.run_cycles == 0
            progress = Progress(terminal, None if endless else self.expected_rows)
            report = Report(info, self._options, self.expected_rows, out, err, progress)
            return self.opened.enter_context(report)

        self._report = on_root(comm, make)

    def write(self, comm: "Communicator", action: Callable[[Report], None]) -> None:
        """Write something down. Collective."""
        report = self._report
        on_root(comm, lambda: None if report is None else action(report))

    def progress(self, doing: str) -> None:
        """Say what is measured, on a terminal."""
        if self._report is not None:
            self._report.progress(doing)

    def end(self, comm: "Communicator", memory: MemoryKind) -> int:
        """End the report; returns the failures, on every rank. Collective."""
        if self._options.memory:
            usages = comm.gather_object(self.usage) or []
            self.write(comm, lambda to: to.show(memory_use.report(usages, memory.usage)))
        report = self._report
        failures = int(
            comm.broadcast_object(None if report is None else report.wrong + report.slow)
        )
        # Closed here, so that a file that cannot be completed is an error on every rank.
        on_root(comm, self.opened.close)
        return failures


def _allocate(comm: "Communicator", memory: MemoryKind, options: Options) -> None:
    """Make the arrays, where all ranks find the memory for them. Collective."""
    largest = options.sizes.largest
    batched = options.config.aggregated_iterations if memory.at_once else 1
    where, available = memory.room()
    needed = memory_use.needed(batched * largest, options.config.unalign)
    need = memory_use.Need(comm.node, where, needed, available)
    memory_use.require(comm.all_gather_object(need), largest, batched)
    memory.allocate(batched * largest)


def _found(
    comm: "Communicator", memory: MemoryKind, options: Options
) -> tuple[Config, tuple[str, ...]]:
    """Return the settings as they could be followed, and what could not. Collective."""
    config = options.config
    if not config.local_register or memory.name == HOST:
        return config, ()
    some = memory.view(0, 0, 1, np.dtype(np.uint8))
    registered = comm.explain("all_reduce", some).registered
    if all(comm.all_gather_object(registered)):
        return config, ()
    # `Communicator.empty` gives ordinary arrays where there are no others.
    return replace(config, local_register=0), ("registered memory (-R)",)


def _measure_block(
    comm: "Communicator",
    bench: CaseRunner,
    block: PerfTable,
    options: Options,
    report: _SharedReport,
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
                _measure_line(comm, line, bench, report)
    report.write(comm, lambda to: to.finish(collective.name))


def _cycles(number: int) -> Iterator[int]:
    """Count to `number`; for ever if it is 0."""
    return iter(range(number)) if number else itertools.count()


def _measure_line(
    comm: "Communicator", line: lines.Line, bench: CaseRunner, report: _SharedReport
) -> None:
    """Measure one line of a table, and write it down."""
    case = line.case
    halves: list[list[Measured] | None] = []
    for in_place in (False, True) if case.collective.in_place else (False,):
        place = "in place" if in_place else "out of place"
        report.progress(
            f"{case.collective.name} {case.type_name} {case.op_name} {case.size} B {place}"
        )
        measured = bench.measure(case, in_place=in_place, serial=next(report.serials))
        halves.append(comm.gather_object(measured))

    def add(to: Report) -> None:
        rows, wrong = [], []
        for in_place, measured in enumerate(halves):
            assert measured is not None
            rows.append(line.row(measured, in_place=bool(in_place)))
            wrong += line.wrong(measured, in_place=bool(in_place))
        to.add(rows, wrong)

    report.write(comm, add)
