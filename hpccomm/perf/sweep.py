"""A run of perf: every table, every line, from the first check to the last footer."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.perf import facts, lines, memory
from hpccomm.perf.blocks import Block, Stretch, blocks
from hpccomm.perf.measure import Bench, Measured
from hpccomm.perf.options import Options
from hpccomm.perf.report import Report
from hpccomm.perf.root import on_root

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


def run(
    comms: Sequence["Communicator"],
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
    comms : sequence of Communicator
        One for each backend that was asked for, all of the same ranks.
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
        not enough memory.
    ResultsError
        On every rank, if rank 0 cannot write a file, before anything is measured or later.
    """
    comm = comms[0]
    usage = memory.Usage()
    usage.note("Initialization")
    tables, skipped = blocks(comms, options)
    expected_rows = sum(block.expected_rows(options) for block in tables)
    slots = _slots(comm, options)
    usage.note("User-Allocated")
    info = facts.run_info(comm, options.config, skipped, arguments, launcher)
    with ExitStack() as stack:

        def open_report() -> Report:
            return stack.enter_context(Report(info, options, expected_rows, out, err, terminal))

        report = on_root(comm, open_report)
        serials = itertools.count(1)
        for block in tables:
            _measure_block(block, options, slots, report, serials)
        usage.note("Collective")
        if options.memory:
            usages = comm.gather_object(usage) or []
            _write(comm, report, lambda to: to.show(memory.report(usages)))
        wrong = int(comm.broadcast_object(None if report is None else report.wrong))
        # Closed here, so that a file that cannot be completed is an error on every rank.
        on_root(comm, stack.close)
        return wrong


def _write(comm: "Communicator", report: Report | None, action: Callable[[Report], None]) -> None:
    """Write something down on rank 0, which alone has a report."""
    on_root(comm, lambda: None if report is None else action(report))


def _slots(comm: "Communicator", options: Options) -> tuple[NDArray[np.uint8], ...]:
    largest, unalign = options.sizes.largest, options.config.unalign
    need = memory.Need(comm.node, facts.host(), memory.needed(largest, unalign), memory.available())
    memory.require(comm.all_gather_object(need), largest)
    empty = comm.empty if options.config.local_register else np.empty
    return memory.allocate(largest, unalign, empty)


def _measure_block(
    block: Block,
    options: Options,
    slots: Sequence[NDArray[np.uint8]],
    report: Report | None,
    serials: Iterator[int],
) -> None:
    """Measure one table, from header to footer."""
    comm, collective = block.comm, block.collective
    bench = Bench(comm, slots, options.config, block.algorithm)
    _write(comm, report, lambda to: to.begin(*block.names))
    for stretch in block.stretches(options):
        for size in stretch.sizes.warmups(stretch.dtype.itemsize):
            bench.warm_up(stretch.case(collective, size))
        for _ in _cycles(options.config.run_cycles):
            for size in stretch.sizes.measured(stretch.dtype.itemsize):
                _measure_line(block, options, stretch, size, bench, report, serials)
    _write(comm, report, lambda to: to.finish(collective.name))


def _cycles(number: int) -> Iterator[int]:
    """Count to `number`; for ever if it is 0."""
    return iter(range(number)) if number else itertools.count()


def _measure_line(
    block: Block,
    options: Options,
    stretch: Stretch,
    size: int,
    bench: Bench,
    report: Report | None,
    serials: Iterator[int],
) -> None:
    """Measure one line of a table, and write it down."""
    comm = block.comm
    case = stretch.case(block.collective, size)
    halves: list[list[Measured] | None] = []
    for in_place in (False, True) if block.collective.in_place else (False,):
        if report is not None:
            place = "in place" if in_place else "out of place"
            report.progress(
                f"{case.collective.name} {stretch.type_name} {stretch.op_name} {size} B {place}"
            )
        measured = bench.measure(case, in_place=in_place, serial=next(serials))
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

    _write(comm, report, add)
