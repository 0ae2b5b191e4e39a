"""A run of perf: every table, every line, from the first check to the last footer.

Variants (``--interleave``) are open at the same time, and measured in turns. A run without them has
a single variant. Its backends are opened one after another, since NCCL and MPI must not use a
device at the same time. Each backend is opened twice: to find out what it can do, and to measure.

The other work of a machine changes within seconds, and two launches may differ by more than two
variants. So each size is measured by both variants, one right after the other, in random order;
then the next size; and all of it again in several passes. A pass is the unit of the comparison,
which is printed at once.

A case is measured on each rank by `CaseRunner`: it lays out arrays, fills them, times a block and compares results.
Repetitions walk over the arrays as those of nccl-tests do: a case smaller than the largest size
uses another part of them each time, so that small sizes do not measure only the cache. Verified
repetitions have their own arrays, which nothing else writes after they were prepared: the
compared data are the output of these timed repetitions.

`hpccomm.tools.perf.perf` calls `run` on every rank.
"""

import itertools
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TextIO

import numpy as np

from hpccomm.communicator import Communicator
from hpccomm.errors import UsageError
from hpccomm.results import timings
from hpccomm.results.schema import UNCHECKED
from hpccomm.runtime.service import Status
from hpccomm.tools.output import Progress
from hpccomm.tools.perf import arrays, facts, patterns
from hpccomm.tools.perf.arrays import Array, DeviceMemory, HostMemory, MemoryKind
from hpccomm.tools.perf.collectives import Call, Member, Operands, Segments, bind
from hpccomm.tools.perf.facts import on_root
from hpccomm.tools.perf.isolated import NOT_ISOLATED, Budget, IsolatedTimer, RankTimes, repetitions
from hpccomm.tools.perf.options import ONLY, Options, Variant, own_group
from hpccomm.tools.perf.patterns import AUTO, DEVICE, HOST, NCCL, CheckedData, Mismatch
from hpccomm.tools.perf.report import InterleavedReport, Report
from hpccomm.tools.perf.tables import (
    MeasuredRow,
    PerfCase,
    PerfTable,
    TablePlan,
    over_ranks,
    side_by_side,
    wrong_results,
)

Tile = tuple[int, int]
"""A part of the arrays that is as large as the case: number of the slot, and number of the part in it."""

Places = tuple[Tile, Tile]
"""The tiles of an operation's input and output. If they are the same tile, the operation is in place."""


class _Side(NamedTuple):
    """An open variant, and its ranks.

    Attributes
    ----------
    variant : Variant
        The variant.
    world, comm : Communicator
        The communicator of all ranks, and that of this rank's group.
    memory : MemoryKind
        The arrays.
    color : int
        Color of this rank's group.
    least : int
        Number of ranks of the smallest group.
    """

    variant: Variant
    world: Communicator
    comm: Communicator
    memory: MemoryKind
    color: int
    least: int


_Check = tuple[Array, Segments, int | None]
"""An array, its expected contents, and the number of the repetition that writes it; None if untimed."""


class CaseRunner:
    """A case on this rank, with the layout of its arrays and the data that fill them.

    Parameters
    ----------
    side : _Side
        The measured communicator, and its arrays. Every rank makes a runner, and makes the same calls on it.
    options : Options
        The options.
    table : PerfTable
        The table of the case. Its algorithm is passed to the calls that take one.
    case : PerfCase
        The case to measure.
    serial : int, optional
        Number of this measurement, the same on all ranks. Another number gives other data.
    """

    def __init__(
        self, side: _Side, options: Options, table: PerfTable, case: PerfCase, serial: int = 0
    ) -> None:
        config, comm, memory = options.config, side.comm, side.memory
        self._comm, self._memory, self._variant = comm, memory, side.variant.name
        self._table, self._case = table, case
        self._config, self._samples, self._sync = config, options.samples, options.sync
        self._layout = layout = case.arrange(comm.rank, comm.size)
        self._data = CheckedData(case.dtype, case.op, comm.size, serial, memory.multiplies)
        # Always passed, to override HPCCOMM_ALGORITHM: the table names the algorithm that runs.
        self._named = {"algorithm": table.algorithm} if case.collective.algorithms else {}
        self._offset = config.unalign * case.dtype.itemsize
        self._verifies = config.validation > 0 and case.collective.what.moves
        self._operations = config.iterations * config.aggregated_iterations
        # The parts of the arrays that the repetitions walk over.
        extent = config.maximum_bytes * (config.aggregated_iterations if memory.at_once else 1)
        parts = extent // layout.nbytes if layout.nbytes else 1
        self._tiles = max(1, min(parts, self._operations))

    def warm_up(self) -> None:
        """Run the case out of place, ``-w`` times, on zeros."""
        self._clear(0, 1)
        operation = self._operation(((0, 0), (1, 0)))
        for _ in range(self._config.warmup_iters):
            operation()
        self._memory.settle()

    def measure(self, isolated: IsolatedTimer | None, *, in_place: bool) -> RankTimes:
        """Measure the case and verify it. Collective; blocks.

        Out of place, slot 0 is the input, slot 1 the output, and slot 2 the output of the last repetition.
        In place, slot 0 is for the first repetition, slot 1 for a random one, and slot 2 for all others.

        Parameters
        ----------
        isolated : IsolatedTimer or None
            Times further repetitions, one by one; None for none.
        in_place : bool
            Whether input and output are one array.
        """
        if in_place:
            # Zeros stay zeros under every reduction, so that repetitions on the output of the previous
            # one do not overflow, and all do the same work.
            self._clear(2, self._tiles)
        else:
            self._fill_tiles(self._tiles)
        first, second = (2, 2) if in_place else (0, 1)
        calls = [self._operation(((first, tile), (second, tile))) for tile in range(self._tiles)]
        operations = [calls[turn % self._tiles] for turn in range(self._operations)]
        verified = self._verified(in_place=in_place)
        checks: list[_Check] = []
        for turn, places in verified.items():
            checks += self._prepare(places, turn)
            operations[turn] = self._operation(places)
        batched, batch = self._config.aggregated_iterations, self._comm.batch
        block = repetitions(operations, batched, batch, self._memory.after)
        calls[0]()  # before the block, since the first use does more work
        self._memory.settle()
        if launches := self._config.graph:
            assert isinstance(self._memory, DeviceMemory)  # else -G was refused
            batched *= len(block)
            block = [self._memory.recorded(block)] * launches
        self._memory.barrier()
        times = self._memory.time(block, self._samples)
        if in_place and launches > 1:
            # The replayed operations have worked on their own results: run them once from known data.
            for turn, places in verified.items():
                self._prepare(places, turn)
            block[0]()
            self._memory.settle()
        wrong = self._compare(checks)
        data = self._data
        for further in range(1, self._config.validation if self._verifies else 0):
            self._data = replace(data, seed=data.seed + (further << 32))
            if not in_place:
                self._fill_tiles(1)
            places = ((0, 0), (0, 0) if in_place else (2, 0))
            checks = self._prepare(places, None)
            self._operation(places)()
            self._memory.settle()
            wrong += self._compare(checks)
        self._data = data
        alone = NOT_ISOLATED if isolated is None else isolated.measure(calls)
        each = times.seconds / batched, times.issued / batched, times.samples / batched
        return RankTimes(*each, tuple(wrong), alone)

    def row(self, times: Sequence[RankTimes], *, in_place: bool) -> MeasuredRow:
        """Return the row of a measurement, from the times of all ranks."""
        config = self._config
        seconds = over_ranks(np.array([rank.seconds for rank in times]), config.average)
        issued = over_ranks(np.array([rank.issued for rank in times]), config.average)
        wrong = sum(each.wrong for rank in times for each in rank.wrong)
        row = self._case.row(
            self._table.names,
            self._comm.size,  # in a split run, rank 0's group: nccl-tests prints its bandwidths
            seconds,
            in_place=in_place,
            # As in nccl-tests, the time until calls return is printed in place of the time of the
            # work, from which bandwidths are still computed.
            printed=issued if config.report_cputime else seconds,
            wrong=wrong if self._verifies else UNCHECKED,
            iterations=config.iterations * max(1, config.graph),
        )
        samples = np.stack([each.samples for each in times], axis=1)
        stamps = np.stack([each.isolated.stamps for each in times], axis=1)
        timing = timings.timing(
            samples,
            config.per_iter_skip,
            stamps,
            sync=self._sync,
            late=times[0].isolated.late,
            # The clocks of two ranks can be wrong in opposite directions.
            clock_error=sum(sorted(each.isolated.clock_error for each in times)[-2:]),
            variant=self._variant,
        )
        return MeasuredRow(row, timing, samples, stamps)

    def _verified(self, *, in_place: bool) -> dict[int, Places]:
        """Return the places of the arrays of each timed operation that is verified, by its number."""
        if not self._verifies:
            return {}
        last = self._operations - 1
        if not in_place:
            return {last: ((0, last % self._tiles), (2, 0))}
        turns = [0]
        if last > 0:
            turns.append(random.Random(self._data.seed).randrange(1, self._operations))
        return {turn: ((slot, 0), (slot, 0)) for slot, turn in enumerate(turns)}

    def _clear(self, slot: int, tiles: int) -> None:
        """Put zeros into the first tiles of a slot."""
        self._memory.clear(slot, self._offset + tiles * self._layout.nbytes)

    def _fill_tiles(self, tiles: int) -> None:
        """Fill the inputs of operations out of place."""
        layout = self._layout
        if not self._verifies:
            self._clear(0, tiles)
        elif layout.inputs is not None:
            x = self._view((0, 0), 0, layout.input_size)
            patterns.fill(x, self._data, layout.inputs, self._memory.put)
            self._memory.spread(0, self._offset, layout.nbytes, tiles)

    def _prepare(self, places: Places, turn: int | None) -> list[_Check]:
        """Poison an operation's output and, in place, fill its input; return the checks of the result."""
        x, out = self._arrays(places)
        inputs = self._layout.inputs if places[0] == places[1] else None
        outputs = self._layout.outputs
        if outputs is not None and out is not x:
            patterns.poison(out, self._data, outputs, self._memory.put)
        if inputs is not None:
            patterns.fill(x, self._data, inputs, self._memory.put)
        if outputs is not None:
            return [(out, outputs, turn)]
        # In place, a rank without a result keeps its input.
        return [] if inputs is None else [(x, inputs, turn)]

    def _compare(self, checks: Sequence[_Check]) -> list[Mismatch]:
        return [
            replace(mismatch, repetition=turn)
            for array, expected, turn in checks
            if (mismatch := patterns.compare(array, self._data, expected, self._memory.read))
        ]

    def _arrays(self, places: Places) -> tuple[Array, Array]:
        """Return the arrays of input and output, None where there is none; in place, one array if they are equal."""
        layout, (x_at, out_at) = self._layout, places
        in_place = x_at == out_at
        x = out = None
        if layout.inputs is not None:
            x = self._view(x_at, layout.input_at if in_place else 0, layout.input_size)
        if layout.outputs is not None:
            out = self._view(out_at, layout.output_at if in_place else 0, layout.output_size)
        same = layout.input_at == layout.output_at and layout.input_size == layout.output_size
        return (x, x) if in_place and x is not None and out is not None and same else (x, out)

    def _operation(self, places: Places) -> Call:
        case, comm, memory = self._case, self._comm, self._memory
        member = Member(comm.rank, comm.size, case.root)
        arrays, in_place = self._arrays(places), places[0] == places[1]
        operands = Operands(*arrays, case.op, self._layout, member, in_place)
        # Over NCCL, only plans use registered memory.
        planned = memory.name == DEVICE and self._config.local_register > 0
        return bind(comm, case.collective, operands, self._named, memory.copy, planned=planned)

    def _view(self, at: Tile, first: int, count: int) -> Array:
        """Return `count` elements of a tile, from its element `first` on."""
        (slot, tile), dtype = at, self._case.dtype
        start = self._offset + tile * self._layout.nbytes + first * dtype.itemsize
        view: Array = self._memory.slots[slot][start : start + count * dtype.itemsize].view(dtype)
        return view


Opened = Callable[[Variant], AbstractContextManager[Communicator]]
"""``opened(variant)`` is the context of a communicator over a variant's backend. Collective; blocks."""


def run(
    opened: Opened,
    options: Options,
    out: TextIO,
    err: TextIO,
    terminal: TextIO | None = None,
) -> Status:
    """Measure all tables. Collective; blocks.

    Parameters
    ----------
    opened : callable
        ``opened(variant)`` is the context of a communicator over a variant's backend; each has the same ranks.
    options : Options
        The options; the same on all ranks.
    out, err : text stream
        Rank 0 writes the tables to `out`, wrong results to `err`.
    terminal : text stream, optional
        Where rank 0 shows its progress.

    Returns
    -------
    Status
        On every rank: `RAISED` if a result was wrong, or a table or row too slow; `UNDECIDED` if some were slow while
        other processes kept nodes busy.

    Raises
    ------
    UsageError
        On every rank, before anything is measured: no such root, an algorithm that does not apply,
        not enough memory, a flag that host arrays cannot follow, variants that one launch cannot have.
    BackendUnavailable
        On every rank, before anything is measured: a backend cannot move device arrays.
    ResultsError
        On every rank, if rank 0 cannot write a file, before anything is measured or later.
    """
    phases = options.phases
    with ExitStack() as stack:
        if len(phases) == 1:  # need not be opened again to be measured
            opened = _kept_open(stack, opened, phases[0])
        kind = kind_of_arrays(opened, options)
        plans = [TablePlan(options.of_variant(each)) for each in options.variants or (ONLY,)]
        versions: dict[str, str] = {}
        for phase, variants in enumerate(phases):
            with _sides(opened, variants, options, kind) as sides:
                _refuse_two_libraries(sides)
                for side, plan in zip(sides, plans, strict=True):
                    with side.variant.entered(), side.memory.entered():
                        plan.add(phase, side.comm, side.memory)
                        versions |= side.memory.versions()
                _refuse_unequal(sides[0], plans[0])
        tables, skipped = side_by_side(plans, options)
        lines = sum(
            (1 + each.collective.in_place) * each.lines(options, sides[0].least)
            for row in tables
            for each in row
        )
        sweep = _Sweep(options, lines, (out, err), terminal)
        with sweep.closing:
            for phase, variants in enumerate(phases):
                with _sides(opened, variants, options, kind) as sides:
                    sweep.allocate(sides)
                    if phase == 0:
                        sweep.open(sides[0], skipped, versions)
                    for row in tables:
                        if row[0].phase == phase:
                            sweep.measure(sides, row)
                    sweep.leave(sides)
                    if phase == len(phases) - 1:
                        status = sweep.conclude(sides[0])
        return status


def kind_of_arrays(opened: Opened, options: Options) -> str:
    """Return the memory of a run's arrays: `HOST` or `DEVICE`. Collective; blocks.

    With ``auto`` it is the device's if a backend is named NCCL, or is ``auto`` and has found NCCL.

    Raises
    ------
    UsageError
        If it is the host's, and a flag is for device arrays.
    """

    def nccl(variant: Variant) -> bool:
        if variant.backend != AUTO:
            return variant.backend == NCCL
        with opened(variant) as comm:
            return comm.backends["cuda"] == NCCL

    kind = options.arrays
    if kind == AUTO:
        # A barrier runs on the host, whatever the memory of arrays.
        moves = any(each.what.moves for each in options.collectives)
        variants = [each for phase in options.phases for each in phase]
        variants.sort(key=lambda each: each.backend == AUTO)  # a name opens nothing
        kind = DEVICE if moves and any(map(nccl, variants)) else HOST
    if kind == HOST:
        options.refuse_device_flags(
            "the arrays are in host memory; leave it out, or give --arrays device where there are GPUs"
        )
    return kind


def _kept_open(stack: ExitStack, opened: Opened, variants: Sequence[Variant]) -> Opened:
    """Open variants until `stack` is closed, with one communicator for those that can share it. Collective."""
    worlds: dict[object, Communicator] = {}
    for variant in variants:
        if variant.place not in worlds:
            worlds[variant.place] = stack.enter_context(opened(variant))
    return lambda variant: nullcontext(worlds[variant.place])


@contextmanager
def _sides(
    opened: Opened, variants: Sequence[Variant], options: Options, kind: str
) -> Iterator[list[_Side]]:
    """Open variants, and enter the memory of the first one's arrays. Collective."""
    made = DeviceMemory if kind == DEVICE else HostMemory
    with ExitStack() as stack:
        sides: list[_Side] = []
        for variant in variants:
            world = stack.enter_context(opened(variant))
            comm, color, least = stack.enter_context(own_group(world, options.split))
            if sides and comm is sides[0].comm:
                memory = sides[0].memory
            else:
                with variant.entered():
                    memory = made(comm, options)
                memory.barrier = world.barrier
            sides.append(_Side(variant, world, comm, memory, color, least))
        with sides[0].memory.entered():
            yield sides


def _refuse_two_libraries(sides: Sequence[_Side]) -> None:
    """Refuse NCCL beside another library on device arrays, which may wait for each other for ever."""
    names = {side.memory.backend for side in sides}
    if sides[0].memory.name == DEVICE and NCCL in names and len(names) > 1:
        raise UsageError(
            f"--interleave of {' and '.join(sorted(names))} on device arrays: one launch cannot use both on a "
            "device; add --launches 10, which alternates whole launches"
        )


def _refuse_unequal(side: _Side, plan: TablePlan) -> None:
    """Raise on every rank unless groups of different sizes have the same tables. Collective."""
    if side.comm.size == side.world.size:
        return
    planned = side.world.all_gather_object((side.comm.size, plan.names))
    for size, names in planned:
        if names != planned[0][1]:
            raise UsageError(
                f"--split gives groups of {planned[0][0]} and {size} ranks, which do not have the same tables; "
                "name collectives and algorithms that both have, or split into equal groups"
            )


class _Sweep:
    """The measuring of a run's tables, with the report, which only rank 0 has.

    Leaving `closing` ends the report.
    """

    def __init__(
        self,
        options: Options,
        expected_rows: int,
        streams: tuple[TextIO, TextIO],
        terminal: TextIO | None,
    ) -> None:
        self._options, self._expected_rows = options, expected_rows
        self._streams, self._terminal = streams, terminal
        self._usage: dict[str, int] = {}  # bytes that each stage added
        self._in_use = 0
        self._serials = itertools.count(1)
        self._budget = Budget(options.budget, expected_rows)
        self._report: Report | None = None
        self._timers: list[IsolatedTimer | None] = []
        self._draw = random.Random()
        self.closing = ExitStack()

    def open(self, side: _Side, skipped: Sequence[str], versions: Mapping[str, str]) -> None:
        """Open the report. Collective."""
        options, lines = self._options, self._expected_rows
        config, lacking = arrays.settings_in_effect(side.comm, side.memory, options)
        info = facts.run_info(
            side.world,
            config,
            (*skipped, *lacking),
            device=side.memory.description(),
            versions=versions,
            series=options.series,
            group=side.color,
        )
        kind = InterleavedReport if options.variants else Report

        def opened() -> Report:
            progress = Progress(self._terminal, lines if options.config.run_cycles else None)
            return self.closing.enter_context(kind(info, options, lines, *self._streams, progress))

        self._report, self._rest = on_root(side.world, opened), facts.rested(side.world.barrier)
        # All ranks draw the same orders of variants.
        self._draw.seed(int(side.world.broadcast_object(secrets.randbits(64))))

    def allocate(self, sides: Sequence[_Side]) -> None:
        """Make the arrays. Variants share them, unless they belong to one communicator. Collective."""
        first = sides[0].memory
        registered = first.name == DEVICE and self._options.config.local_register
        self._note("Initialization", first)
        for side in sides:
            if side.memory.slots:
                continue
            with side.memory.entered():
                if side.memory is first or registered:
                    arrays.allocate(side.world, side.memory, self._options)
                else:
                    side.memory.slots = first.slots
        self._note("User-Allocated", first)
        self._timers = [None] * len(sides)
        if self._options.sync:
            self._timers = [
                IsolatedTimer(side.comm, side.memory.settle, self._options, self._budget)
                for side in sides
            ]

    def measure(self, sides: Sequence[_Side], tables: Sequence[PerfTable]) -> None:
        """Measure one table, or a table of each variant in turns. Collective; blocks."""
        options, world = self._options, sides[0].world
        turns = list(zip(sides, tables, self._timers, strict=True))
        self._write(world, lambda to: to.begin([table.names for table in tables]))
        passes = options.config.run_cycles
        for empty, sizes in tables[0].segments(options, sides[0].least):
            for size in sizes.warmups(empty.dtype.itemsize):
                for side, table, _ in turns:
                    with side.memory.entered():
                        case = replace(empty, size=size)
                        CaseRunner(side, options, table, case).warm_up()
            for number in range(passes) if passes else itertools.count():
                for size in sizes.measured(empty.dtype.itemsize):
                    case = replace(empty, size=size)
                    for side, table, timer in self._draw.sample(turns, len(turns)):
                        with side.memory.entered():
                            self._measure_line(side, table, timer, case)
                if options.variants:
                    done = f"# Pass {number + 1} of {passes} done: {empty}\n"
                    self._write(world, partial(Report.show, text=done))
        others = facts.others(world, self._rest)
        self._write(world, lambda to: to.finish(others))

    def leave(self, sides: Sequence[_Side]) -> None:
        """Release the arrays."""
        self._note("Collective", sides[0].memory)
        for side in sides:
            side.memory.slots = ()

    def _note(self, stage: str, memory: MemoryKind) -> None:
        """Note the bytes that a stage has added to the memory in use; if a stage comes again, the larger number."""
        before, self._in_use = self._in_use, memory.in_use()
        added = self._in_use - before
        self._usage[stage] = max(added, self._usage.get(stage, added))

    def conclude(self, side: _Side) -> Status:
        """Close the report; return the status of its checks, on every rank. Collective."""
        memory, comm = side.memory, side.world
        if self._options.memory:
            usages = comm.gather_object(self._usage) or []
            self._write(comm, lambda to: to.show(arrays.report(usages, memory.usage)))
        status = Status(comm.broadcast_object(self._write(comm, lambda to: to.conclude())))
        # Closed here, so that a file that cannot be completed is an error on every rank.
        on_root(comm, self.closing.close)
        return status

    def _measure_line(
        self, side: _Side, table: PerfTable, timer: IsolatedTimer | None, case: PerfCase
    ) -> None:
        """Measure one line of a table, and report it. Collective; blocks."""
        halves: list[tuple[CaseRunner, list[RankTimes] | None]] = []
        for in_place in (False, True)[: 1 + case.collective.in_place]:
            if self._report is not None:
                place = "in place" if in_place else "out of place"
                self._report.progress.show(f"{case} {case.size} B {place}")
            runner = CaseRunner(side, self._options, table, case, next(self._serials))
            times = runner.measure(timer, in_place=in_place)
            halves.append((runner, side.world.gather_object(times)))

        def write(to: Report) -> None:
            rows, wrong = list[MeasuredRow](), list[str]()
            for in_place, (runner, of_ranks) in enumerate(halves):
                assert of_ranks is not None
                rows.append(runner.row(of_ranks, in_place=bool(in_place)))
                wrong += wrong_results(case, rows[-1].row, of_ranks)
            to.add(rows, wrong)

        self._write(side.world, write)

    def _write(self, comm: Communicator, action: Callable[[Report], Any]) -> Any:
        """Call `action` with the report on rank 0; return its result there, and None elsewhere. Collective."""
        report = self._report
        return on_root(comm, lambda: None if report is None else action(report))
