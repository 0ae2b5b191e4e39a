"""One measurement on one rank: lay out arrays, fill them, time a block, compare results.

Repetitions walk over the arrays as nccl-tests' do: a case smaller than the largest size uses
another part of them each time, so that small sizes do not only measure the cache. Verified
repetitions have arrays of their own, which nothing else writes after they were prepared: the
compared data are the output of these timed repetitions.

`hpccomm.tools.perf.sweep` calls it for each case.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpccomm.communicator import Communicator
from hpccomm.tools.perf import verification
from hpccomm.tools.perf.collectives import Call, Layout, Member, Operands, Segments, bind
from hpccomm.tools.perf.isolated import IsolatedTimer, RankTimes, repetitions
from hpccomm.tools.perf.memory import Array, MemoryKind
from hpccomm.tools.perf.options import Options
from hpccomm.tools.perf.patterns import DEVICE
from hpccomm.tools.perf.tables import PerfCase
from hpccomm.tools.perf.verification import CheckedData, Mismatch

Tile = tuple[int, int]
"""A part of the arrays as large as the case: number of the slot, and of the part in it."""

Places = tuple[Tile, Tile]
"""Where input and output of an operation lie. If that is one tile, the operation is in place."""


@dataclass(frozen=True, slots=True)
class _Check:
    """An operation that is verified: what array must hold what, and when it was run."""

    array: Array
    expected: Segments
    repetition: int | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A case on this rank, with the layout of its arrays and the data that fill them."""

    case: PerfCase
    layout: Layout
    data: CheckedData


class CaseRunner:
    """A communicator with the arrays that cases are measured on.

    Parameters
    ----------
    comm : Communicator
        Whose collectives are measured. Every rank makes a runner and calls the same on it.
    memory : MemoryKind
        The arrays, allocated.
    options : Options
        The options.
    algorithm : str
        Passed to the calls that take one.
    isolated : IsolatedTimer, optional
        Times further repetitions, one by one.
    """

    def __init__(
        self,
        comm: Communicator,
        memory: MemoryKind,
        options: Options,
        algorithm: str,
        isolated: IsolatedTimer | None = None,
    ) -> None:
        self._comm, self._memory, self._isolated = comm, memory, isolated
        self._config, self._samples = options.config, options.samples
        # Always passed, since it overrides HPCCOMM_ALGORITHM: the table names what runs.
        self._how = {"algorithm": algorithm}
        self._operations = self._config.iterations * self._config.aggregated_iterations

    def warm_up(self, case: PerfCase) -> None:
        """Run a case out of place, ``-w`` times, on zeros."""
        trial = self._trial(case, 0)
        self._memory.clear(0, self._offset(case) + trial.layout.nbytes)
        operation = self._operation(trial, ((0, 0), (1, 0)))
        for _ in range(self._config.warmup_iters):
            operation()
        self._memory.settle()

    def measure(self, case: PerfCase, *, in_place: bool, serial: int) -> RankTimes:
        """Measure a case and verify it. Collective; blocks.

        Out of place, slot 0 is input, slot 1 output, and slot 2 output of the last repetition. In
        place, slot 0 is for the first repetition, slot 1 for a random one, and slot 2 for all others.

        Parameters
        ----------
        case : PerfCase
            What to measure.
        in_place : bool
            Whether input and output are one array.
        serial : int
            Number of this measurement, the same on all ranks. Another number gives other data.
        """
        trial = self._trial(case, serial)
        tiles = self._tiles(trial.layout)
        if in_place:
            # Zeros stay zeros under every reduction, so that repetitions on the output of the last
            # one do not overflow, and do not differ.
            self._memory.clear(2, self._offset(case) + tiles * trial.layout.nbytes)
        else:
            self._fill_tiles(trial, tiles)
        first, second = (2, 2) if in_place else (0, 1)
        calls = [self._operation(trial, ((first, tile), (second, tile))) for tile in range(tiles)]
        operations = [calls[turn % tiles] for turn in range(self._operations)]
        verified = self._verified(trial, tiles, in_place=in_place)
        checks: list[_Check] = []
        for turn, places in verified.items():
            checks += self._prepare(trial, places, turn)
            operations[turn] = self._operation(trial, places)
        batched, batch = self._config.aggregated_iterations, self._comm.batch
        block = repetitions(operations, batched, batch, self._memory.after)
        calls[0]()  # before the block, this does the work of a first use
        self._memory.settle()
        self._memory.barrier()
        times, again = self._memory.time(block, self._samples)
        if again is not None and in_place and self._config.graph > 1:
            # What was replayed has worked on its own results: it starts from known data once more.
            for turn, places in verified.items():
                self._prepare(trial, places, turn)
            again()
            self._memory.settle()
        wrong = self._compare(trial, checks)
        for further in range(1, self._config.validation):
            if case.collective.what.moves:
                more = replace(trial.data, seed=trial.data.seed + (further << 32))
                wrong += self._check_once(replace(trial, data=more), in_place=in_place)
        isolated = None if self._isolated is None else self._isolated.measure(calls)
        return replace(times.of_each(batched), wrong=tuple(wrong), isolated=isolated)

    def _trial(self, case: PerfCase, serial: int) -> _Trial:
        layout = case.arrange(self._comm.rank, self._comm.size)
        data = CheckedData(case.dtype, case.op, self._comm.size, serial, self._memory.multiplies)
        return _Trial(case, layout, data)

    def _verified(self, trial: _Trial, tiles: int, *, in_place: bool) -> dict[int, Places]:
        """Return the timed operations that are verified, by number, and where their arrays lie."""
        if not self._verifies(trial.case):
            return {}
        last = self._operations - 1
        if not in_place:
            return {last: ((0, last % tiles), (2, 0))}
        turns = [0]
        if last > 0:
            turns.append(random.Random(trial.data.seed).randrange(1, self._operations))
        return {turn: ((slot, 0), (slot, 0)) for slot, turn in enumerate(turns)}

    def _fill_tiles(self, trial: _Trial, tiles: int) -> None:
        """Fill the inputs of operations out of place."""
        layout, offset = trial.layout, self._offset(trial.case)
        if layout.inputs is None:
            return
        if self._verifies(trial.case):
            x = self._view(trial, (0, 0), 0, layout.input_size)
            verification.fill(x, trial.data, layout.inputs, self._memory.put)
            self._memory.spread(0, offset, layout.nbytes, tiles)
        else:
            self._memory.clear(0, offset + tiles * layout.nbytes)

    def _prepare(self, trial: _Trial, places: Places, turn: int | None) -> list[_Check]:
        """Poison an operation's output and, in place, fill its input; return what must come out."""
        x, out = self._arrays(trial, places)
        inputs = trial.layout.inputs if places[0] == places[1] else None
        outputs = trial.layout.outputs
        if outputs is not None and out is not x:
            verification.poison(out, trial.data, outputs, self._memory.put)
        if inputs is not None:
            verification.fill(x, trial.data, inputs, self._memory.put)
        if outputs is not None:
            return [_Check(out, outputs, turn)]
        # In place, a rank that gets no result keeps its input.
        return [] if inputs is None else [_Check(x, inputs, turn)]

    def _check_once(self, trial: _Trial, *, in_place: bool) -> list[Mismatch]:
        """Run and verify one more operation, untimed."""
        places = ((0, 0), (0, 0) if in_place else (2, 0))
        if not in_place:
            self._fill_tiles(trial, 1)
        checks = self._prepare(trial, places, None)
        self._operation(trial, places)()
        self._memory.settle()
        return self._compare(trial, checks)

    def _compare(self, trial: _Trial, checks: Sequence[_Check]) -> list[Mismatch]:
        read = self._memory.read
        return [
            replace(mismatch, repetition=check.repetition)
            for check in checks
            if (mismatch := verification.compare(check.array, trial.data, check.expected, read))
        ]

    def _arrays(self, trial: _Trial, places: Places) -> tuple[Array, Array]:
        """Return input and output, or None; in place, as one array if equal."""
        layout, (x_at, out_at) = trial.layout, places
        in_place = x_at == out_at
        x = out = None
        if layout.inputs is not None:
            first = layout.input_at if in_place else 0
            x = self._view(trial, x_at, first, layout.input_size)
        if layout.outputs is not None:
            first = layout.output_at if in_place else 0
            out = self._view(trial, out_at, first, layout.output_size)
        same = layout.input_at == layout.output_at and layout.input_size == layout.output_size
        return (x, x) if in_place and x is not None and out is not None and same else (x, out)

    def _operation(self, trial: _Trial, places: Places) -> Call:
        case = trial.case
        member = Member(self._comm.rank, self._comm.size, case.root)
        how = self._how if case.collective.algorithms else {}
        arrays, in_place = self._arrays(trial, places), places[0] == places[1]
        operands = Operands(*arrays, case.op, trial.layout, member, in_place)
        # Over NCCL it is plans that use registered memory.
        planned = self._memory.name == DEVICE and self._config.local_register > 0
        return bind(self._comm, case.collective, operands, how, self._memory.copy, planned=planned)

    def _verifies(self, case: PerfCase) -> bool:
        return self._config.validation > 0 and case.collective.what.moves

    def _tiles(self, layout: Layout) -> int:
        """Return how many parts of the arrays the repetitions walk over."""
        if layout.nbytes == 0:
            return 1
        extent = self._config.maximum_bytes
        if self._memory.at_once:
            extent *= self._config.aggregated_iterations
        return max(1, min(extent // layout.nbytes, self._operations))

    def _offset(self, case: PerfCase) -> int:
        return self._config.unalign * case.dtype.itemsize

    def _view(self, trial: _Trial, at: Tile, first: int, count: int) -> Array:
        """Return `count` elements of a tile, from its element `first` on."""
        (slot, tile), dtype = at, trial.case.dtype
        start = self._offset(trial.case) + tile * trial.layout.nbytes + first * dtype.itemsize
        view: Array = self._memory.slots[slot][start : start + count * dtype.itemsize].view(dtype)
        return view
