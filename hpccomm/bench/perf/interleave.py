"""Two variants measured in one launch, in turns, and compared at once (``--interleave``).

What a machine does beside a measurement changes within seconds, and what two launches differ by is larger than
many an effect. So each size is measured by both variants, one right after the other, in an order that is drawn
each time; then the next size; and all of it again in several passes. A pass is the unit of the comparison.
"""

import random
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from hpccomm.bench.perf import facts
from hpccomm.bench.perf.blocks import PerfTable, TablePlan
from hpccomm.bench.perf.isolated import Budget, IsolatedTimer
from hpccomm.bench.perf.lines import Line, MeasuredRow
from hpccomm.bench.perf.measure import CaseRunner
from hpccomm.bench.perf.memory_kind import DEVICE, NCCL
from hpccomm.bench.perf.options import Options
from hpccomm.bench.perf.preparing import allocate, found_settings
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.shared_report import SharedReport, measure_line
from hpccomm.bench.perf.sources import CommSource, MemoryKind, arrays_of_run, memory_of
from hpccomm.bench.perf.variants import Variant
from hpccomm.comparison import text
from hpccomm.comparison.launches import LaunchRow
from hpccomm.comparison.matching import matched_passes
from hpccomm.comparison.verdict import compare_passes
from hpccomm.errors import UsageError
from hpccomm.results import table

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


@dataclass(frozen=True, slots=True)
class _Opened:
    """A variant, ready to be measured.

    Attributes
    ----------
    variant : Variant
        Which it is.
    options : Options
        Those of the run, with what it sets.
    comm : Communicator
        Its ranks.
    memory : MemoryKind
        Its arrays.
    """

    variant: Variant
    options: Options
    comm: "Communicator"
    memory: MemoryKind


def run(
    sources: Sequence[CommSource],
    options: Options,
    arguments: tuple[str, ...],
    launcher: str,
    out: TextIO,
    err: TextIO,
    terminal: TextIO | None = None,
) -> int:
    """Measure the two variants of the options, and compare them. Collective; blocks.

    Parameters
    ----------
    sources : sequence of CommSource
        Where the communicator of each variant comes from.
    options, arguments, launcher, out, err, terminal
        As of `hpccomm.bench.perf.sweep.run`.

    Returns
    -------
    int
        Elements that were wrong, on every rank.

    Raises
    ------
    UsageError
        On every rank, before anything is measured: also if one launch cannot have both variants.
    BackendUnavailable, ResultsError
        As there.
    """
    with ExitStack() as stack:
        kind = arrays_of_run(sources, options)
        both = _opened(stack, sources, options, kind)
        _refuse_two_libraries(both)
        tables, skipped, versions = _planned(both)
        first = both[0]
        report = SharedReport(options, out, err, terminal)
        report.expected_rows = sum(
            each.expected_rows(side.options, side.comm.size)
            for pair in tables
            for each, side in zip(pair, both, strict=True)
        )
        report.budget = Budget(options.budget, report.expected_rows)
        with report.opened:
            _make_arrays(both)
            config, lacking = found_settings(first.comm, first.memory, options)
            info = facts.run_info(
                first.comm,
                config,
                (*skipped, *lacking),
                arguments,
                launcher,
                device=first.memory.description(),
                versions=versions,
                series={
                    "base": both[0].variant.name,
                    "new": both[1].variant.name,
                    **options.series,
                },
            )
            report.open(first.comm, info)
            # All ranks draw the same orders.
            draw = random.Random(int(first.comm.broadcast_object(secrets.randbits(64))))
            for pair in tables:
                _measure_pair(both, pair, report, draw)
            for side in both:
                side.memory.release()
            return report.end(first.comm, first.memory)


def _opened(
    stack: ExitStack, sources: Sequence[CommSource], options: Options, kind: str
) -> tuple[_Opened, _Opened]:
    """Open both variants, which share a communicator where they can. Collective."""
    assert options.variants is not None
    found: list[_Opened] = []
    for variant, source in zip(options.variants, sources, strict=True):
        own = options.of_variant(variant)
        if found and variant.same_communicator(found[0].variant):
            comm, memory = found[0].comm, found[0].memory
        else:
            with variant.entered():
                comm = stack.enter_context(source.opened())
                memory = memory_of(kind, comm, own)
        found.append(_Opened(variant, own, comm, memory))
    return found[0], found[1]


def _refuse_two_libraries(both: Sequence[_Opened]) -> None:
    """Refuse NCCL beside another library on device arrays, which may wait for each other for ever."""
    names = {side.memory.backend() for side in both}
    if both[0].memory.name == DEVICE and NCCL in names and len(names) > 1:
        raise UsageError(
            f"--interleave of {' and '.join(sorted(names))} on device arrays: one launch cannot use both on a "
            "device; add --launches 10, which alternates whole launches"
        )


def _planned(
    both: Sequence[_Opened],
) -> tuple[list[tuple[PerfTable, PerfTable]], list[str], dict[str, str]]:
    """Return the tables of the two variants side by side, what is skipped, and versions."""
    found: list[dict[str, PerfTable]] = []
    skipped: dict[str, None] = {}
    versions: dict[str, str] = {}
    for side in both:
        plan = TablePlan(side.options)
        with side.variant.entered(), side.memory.entered():
            plan.add(0, side.comm, side.memory)
        tables, left_out = plan.made()
        skipped |= dict.fromkeys(left_out)
        versions |= plan.versions
        found.append({each.collective.name: each for each in tables})
    pairs = []
    for name, one in found[0].items():
        other = found[1].get(name)
        common = () if other is None else tuple(pair for pair in one.pairs if pair in other.pairs)
        if other is None or not common:
            skipped[f"{name} with both variants"] = None
            continue
        pairs.append((replace(one, pairs=common), replace(other, pairs=common)))
    if not pairs:
        raise UsageError(
            f"--interleave {both[0].variant.name!r} {both[1].variant.name!r}: no case has both; name collectives, "
            "types and reductions that both have"
        )
    return pairs, list(skipped), versions


def _make_arrays(both: Sequence[_Opened]) -> None:
    """Make the arrays, which the variants share where any communicator may use them. Collective."""
    one, other = both
    with one.memory.entered():
        allocate(one.comm, one.memory, one.options)
    if other.memory is one.memory:
        return
    with other.memory.entered():
        if one.memory.name == DEVICE and one.options.config.local_register:
            allocate(other.comm, other.memory, other.options)  # registered with one communicator
        else:
            other.memory.slots = one.memory.slots


def _measure_pair(
    both: tuple[_Opened, _Opened],
    tables: tuple[PerfTable, PerfTable],
    report: SharedReport,
    draw: random.Random,
) -> None:
    """Measure one collective by both variants, and print how they compare."""
    comm, options = both[0].comm, both[0].options
    measured: list[list[LaunchRow]] = [[], []]  # filled on rank 0
    runners = [
        CaseRunner(
            side.comm,
            side.memory,
            side.options.config,
            each.algorithm,
            samples=True,
            isolated=IsolatedTimer(side.comm, side.memory.settle, options.isolated, report.budget)
            if options.sync
            else None,
        )
        for side, each in zip(both, tables, strict=True)
    ]
    report.write(comm, lambda to: to.show(_heading(to, both, tables)))
    for segment in tables[0].segments(options, comm.size):
        for case in segment.warmups():
            for side, runner in zip(both, runners, strict=True):
                with side.memory.entered():
                    runner.warm_up(case)
        passes = options.config.run_cycles  # here those of --passes
        for number in range(passes):
            for case in segment.cases():
                for turn in draw.sample((0, 1), 2):
                    side = both[turn]
                    line = Line(
                        tables[turn].names,
                        case,
                        options.config,
                        comm.size,
                        options.sync,
                        side.variant.name,
                    )

                    def keep(
                        to: Report, rows: list[MeasuredRow], wrong: list[str], turn: int = turn
                    ) -> None:
                        to.keep(rows)
                        to.complain(wrong)
                        measured[turn] += [LaunchRow(half.row, half.timing) for half in rows]

                    with side.memory.entered():
                        measure_line(side.comm, line, runners[turn], report, keep)
            done = f"# Pass {number + 1} of {passes} done: {segment.empty}\n"
            report.write(comm, partial(Report.show, text=done))
    report.write(comm, lambda to: to.show(_verdicts(both, measured)))


def _heading(to: Report, both: Sequence[_Opened], tables: Sequence[PerfTable]) -> str:
    """Return what stands before the passes of a collective."""
    backends, algorithms = (
        " and ".join(dict.fromkeys(names))
        for names in zip(*((each.backend, each.algorithm) for each in tables), strict=True)
    )
    names = " and ".join(side.variant.name for side in both)
    return (
        table.run_header(to.info, tables[0].collective.name, backends, algorithms)
        + f"#\n# Interleaved, in random order: {names}\n"
    )


def _verdicts(both: Sequence[_Opened], measured: Sequence[Sequence[LaunchRow]]) -> str:
    """Return the comparison as text."""
    names = (both[0].variant.name, both[1].variant.name)
    found = compare_passes(matched_passes(*measured), names)
    return f"#\n{text.text(found)}\n"
