"""The report of a run, as all of its ranks see it."""

import itertools
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from hpccomm.bench.perf import memory_use
from hpccomm.bench.perf.isolated import Budget
from hpccomm.bench.perf.lines import Line, MeasuredRow
from hpccomm.bench.perf.measure import CaseRunner, Measured
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.root import on_root
from hpccomm.bench.perf.sources import MemoryKind
from hpccomm.bench.progress import Progress
from hpccomm.results.schema import RunInfo

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class SharedReport:
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
        Time for isolated repetitions.
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
        concluded = on_root(comm, lambda: None if report is None else report.conclude())
        failures = int(comm.broadcast_object(concluded))
        # Closed here, so that a file that cannot be completed is an error on every rank.
        on_root(comm, self.opened.close)
        return failures


def measure_line(
    comm: "Communicator",
    line: Line,
    bench: CaseRunner,
    report: SharedReport,
    add: Callable[[Report, list[MeasuredRow], list[str]], None],
) -> None:
    """Measure one line of a table, and write it down. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        Of all ranks.
    line : Line
        What is measured.
    bench : CaseRunner
        Measures it.
    report : SharedReport
        Gets it.
    add : callable
        On rank 0, adds the rows to the report, and sentences on what was wrong.
    """
    case = line.case
    halves: list[list[Measured] | None] = []
    for in_place in (False, True) if case.collective.in_place else (False,):
        place = "in place" if in_place else "out of place"
        report.progress(
            f"{case.collective.name} {case.type_name} {case.op_name} {case.size} B {place}"
        )
        measured = bench.measure(case, in_place=in_place, serial=next(report.serials))
        halves.append(comm.gather_object(measured))

    def write(to: Report) -> None:
        rows, wrong = [], []
        for in_place, measured in enumerate(halves):
            assert measured is not None
            rows.append(line.row(measured, in_place=bool(in_place)))
            wrong += line.wrong(measured, in_place=bool(in_place))
        add(to, rows, wrong)

    report.write(comm, write)
