"""A run of perf: every table, every line, from the first check to the last footer."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

import numpy as np

from hpccomm.bench.perf import facts, lines, memory
from hpccomm.bench.perf.blocks import Block, Plan, SweepSegment
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.perf.measure import Bench, Measured
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.root import on_root
from hpccomm.bench.perf.side import AUTO, HOST, MemoryKind
from hpccomm.bench.perf.sources import Source, kind_of_arrays, side_of
from hpccomm.errors import UsageError
from hpccomm.results.schema import Config, RunInfo

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


def run(
    sources: Sequence[Source],
    options: Options,
    arguments: tuple[str, ...],
    launcher: str,
    out: TextIO,
    err: TextIO,
    terminal: TextIO | None = None,
) -> int:
    """Measure everything that was asked for. Collective; blocks.

    Parameters
    ----------
    sources : sequence of Source
        Where the communicator of each backend that was asked for comes from, all of the same ranks.
    options : Options
        What was asked for; the same on all ranks.
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
        Elements that were wrong, on every rank.

    Raises
    ------
    UsageError
        On every rank, before anything is measured: no such root, an algorithm that does not apply,
        not enough memory, a flag that host arrays cannot follow.
    BackendUnavailable
        On every rank, likewise: a backend has no way for device arrays.
    ResultsError
        On every rank, if rank 0 cannot write a file, before anything is measured or later.
    """
    kind = kind_of_arrays(sources, options.arrays)
    if options.arrays == AUTO and not any(COLLECTIVES[name].moves for name in options.collectives):
        kind = HOST  # a barrier is the host's, wherever arrays lie
    if kind == HOST:
        _refuse_device_flags(options)
    plan = Plan(options)
    for number, source in enumerate(sources):
        with source.opened() as comm:
            side = side_of(kind, comm, options)
            with side.entered():
                plan.add(number, comm, side)
    tables, skipped = plan.made()
    written = _Written(options, out, err, terminal)
    written.expected_rows = sum(block.expected_rows(options, plan.ranks) for block in tables)
    with written:
        for number, source in enumerate(sources):
            with source.opened() as comm:
                side = side_of(kind, comm, options)
                with side.entered():
                    written.usage.note("Initialization", side.in_use())
                    _allocate(comm, side, options)
                    written.usage.note("User-Allocated", side.in_use())
                    if number == 0:
                        config, lacking = _found(comm, side, options)
                        info = facts.run_info(
                            comm,
                            config,
                            (*skipped, *lacking),
                            arguments,
                            launcher,
                            told=side.told(),
                            versions=plan.versions,
                        )
                        written.open(comm, info)
                    for block in tables:
                        if block.source == number:
                            _measure_block(comm, side, block, options, written)
                    written.usage.note("Collective", side.in_use())
                    side.release()
                    if number == len(sources) - 1:
                        return written.end(comm, side)
    raise AssertionError  # there is at least one source


class _Written:
    """The report of a run, which rank 0 alone has, and what is counted on the way.

    A context manager: leaving it ends the report.

    Attributes
    ----------
    usage : Usage
        The memory in use.
    serials : iterator of int
        Numbers of the measurements.
    expected_rows : int
        As far as is known.
    """

    def __init__(self, options: Options, out: TextIO, err: TextIO, terminal: TextIO | None) -> None:
        self.usage = memory.Usage()
        self.serials = itertools.count(1)
        self.expected_rows = 0
        self._options = options
        self._streams = out, err, terminal
        self._report: Report | None = None
        self._stack = ExitStack()

    def open(self, comm: "Communicator", info: RunInfo) -> None:
        """Open the report. Collective."""

        def make() -> Report:
            report = Report(info, self._options, self.expected_rows, *self._streams)
            return self._stack.enter_context(report)

        self._report = on_root(comm, make)

    def write(self, comm: "Communicator", action: Callable[[Report], None]) -> None:
        """Write something down. Collective."""
        report = self._report
        on_root(comm, lambda: None if report is None else action(report))

    def progress(self, doing: str) -> None:
        """Say what is measured, on a terminal."""
        if self._report is not None:
            self._report.progress(doing)

    def end(self, comm: "Communicator", side: MemoryKind) -> int:
        """End the report; returns the elements that were wrong, on every rank. Collective."""
        if self._options.memory:
            usages = comm.gather_object(self.usage) or []
            self.write(comm, lambda to: to.show(memory.report(usages, side.usage)))
        report = self._report
        wrong = int(comm.broadcast_object(None if report is None else report.wrong))
        # Closed here, so that a file that cannot be completed is an error on every rank.
        on_root(comm, self._stack.close)
        return wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)


def _refuse_device_flags(options: Options) -> None:
    """Raise if a flag is given that only device arrays can follow."""
    for flag in options.device_flags():
        raise UsageError(
            f"{flag}, and the arrays are in host memory; leave it out, or give --arrays device where "
            "there are GPUs"
        )


def _allocate(comm: "Communicator", side: MemoryKind, options: Options) -> None:
    """Make the arrays, where all ranks find the memory for them. Collective."""
    largest = options.sizes.largest
    batched = options.config.aggregated_iterations if side.at_once else 1
    where, available = side.room()
    needed = memory.needed(batched * largest, options.config.unalign)
    need = memory.Need(comm.node, where, needed, available)
    memory.require(comm.all_gather_object(need), largest, batched)
    side.allocate(batched * largest)


def _found(
    comm: "Communicator", side: MemoryKind, options: Options
) -> tuple[Config, tuple[str, ...]]:
    """Return the settings as they could be followed, and what could not. Collective."""
    config = options.config
    if not config.local_register or side.name == HOST:
        return config, ()
    some = side.view(0, 0, 1, np.dtype(np.uint8))
    registered = comm.explain("all_reduce", some).registered
    if all(comm.all_gather_object(registered)):
        return config, ()
    # `Communicator.empty` gives ordinary arrays where there are no others.
    return replace(config, local_register=0), ("registered memory (-R)",)


def _measure_block(
    comm: "Communicator",
    side: MemoryKind,
    block: Block,
    options: Options,
    written: _Written,
) -> None:
    """Measure one table, from header to footer."""
    collective = block.collective
    bench = Bench(comm, side, options.config, block.algorithm, samples=options.samples)
    written.write(comm, lambda to: to.begin(*block.names))
    for stretch in block.stretches(options, comm.size):
        for size in stretch.sizes.warmups(stretch.dtype.itemsize):
            bench.warm_up(stretch.case(collective, size))
        for _ in _cycles(options.config.run_cycles):
            for size in stretch.sizes.measured(stretch.dtype.itemsize):
                _measure_line(comm, block, options, stretch, size, bench, written)
    written.write(comm, lambda to: to.finish(collective.name))


def _cycles(number: int) -> Iterator[int]:
    """Count to `number`; for ever if it is 0."""
    return iter(range(number)) if number else itertools.count()


def _measure_line(
    comm: "Communicator",
    block: Block,
    options: Options,
    stretch: SweepSegment,
    size: int,
    bench: Bench,
    written: _Written,
) -> None:
    """Measure one line of a table, and write it down."""
    case = stretch.case(block.collective, size)
    halves: list[list[Measured] | None] = []
    for in_place in (False, True) if block.collective.in_place else (False,):
        place = "in place" if in_place else "out of place"
        written.progress(
            f"{case.collective.name} {stretch.type_name} {stretch.op_name} {size} B {place}"
        )
        measured = bench.measure(case, in_place=in_place, serial=next(written.serials))
        halves.append(comm.gather_object(measured))

    def add(to: Report) -> None:
        line = lines.Line(
            *block.names, stretch.type_name, stretch.op_name, options.config, case, comm.size
        )
        rows, wrong = [], []
        for in_place, measured in enumerate(halves):
            assert measured is not None
            rows.append(line.row(measured, in_place=bool(in_place)))
            wrong += line.wrong(measured, in_place=bool(in_place))
        to.add(rows, wrong)

    written.write(comm, add)
