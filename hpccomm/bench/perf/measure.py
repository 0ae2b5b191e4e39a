"""One measurement on one rank: arrays laid out, filled, a block timed, results compared.

Repetitions walk over the arrays the way nccl-tests' do: a case smaller than the largest size uses
another part of them each time, so that small sizes do not only measure the cache. The repetitions
that are verified have arrays to themselves, which nothing else has written since they were prepared:
what is compared is what these timed repetitions left behind.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf import verification
from hpccomm.bench.perf.cases import PerfCase
from hpccomm.bench.perf.collectives import Call, Operands, bind
from hpccomm.bench.perf.layouts import Layout, Member, Segments
from hpccomm.bench.perf.memory_kind import Array, MemoryKind
from hpccomm.bench.perf.verification import CheckedData, Mismatch
from hpccomm.results.schema import Config

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


Tile = tuple[int, int]
"""A part of the arrays as large as the case: number of the slot, and of the part in it."""


@dataclass(frozen=True, slots=True)
class WrongResult:
    """A wrong result on one rank.

    Attributes
    ----------
    repetition : int or None
        The timed operation, from 0; None for one that was only checked.
    mismatch : Mismatch
        Where and what.
    """

    repetition: int | None
    mismatch: Mismatch


@dataclass(frozen=True, slots=True)
class Measured:
    """What one rank measured.

    Attributes
    ----------
    seconds, issued : float
        Of one operation: until it was done, and until its call returned.
    samples : ndarray of float64
        Seconds of one operation in each repetition; empty where they were not taken.
    wrong : tuple of Finding
        Wrong results.
    """

    seconds: float
    issued: float
    samples: NDArray[np.float64]
    wrong: tuple[WrongResult, ...]


@dataclass(frozen=True, slots=True)
class _Check:
    """An operation that is verified: what array must hold what, and when it was run."""

    array: Array
    expected: Segments
    repetition: int | None


class CaseRunner:
    """A communicator with the arrays that cases are measured on.

    Parameters
    ----------
    comm : Communicator
        Whose collectives are measured. Every rank makes a runner and calls the same on it.
    memory : MemoryKind
        The arrays, allocated.
    config : Config
        The flags.
    algorithm : str
        Passed to the calls that take one.
    samples : bool
        Whether to time every repetition.
    """

    def __init__(
        self,
        comm: "Communicator",
        memory: MemoryKind,
        config: Config,
        algorithm: str,
        *,
        samples: bool,
    ) -> None:
        self._comm = comm
        self._memory = memory
        self._samples = samples
        self._config = config
        # Always passed, since it overrides HPCCOMM_ALGORITHM: the table names what runs.
        self._how = {"algorithm": algorithm}
        self._operations = config.iterations * config.aggregated_iterations

    def warm_up(self, case: PerfCase) -> None:
        """Run a case out of place, ``-w`` times, on zeros."""
        layout = case.arrange(self._comm.rank, self._comm.size)
        self._memory.clear(0, self._offset(case) + layout.nbytes)
        operation = self._operation(case, layout, (0, 0), (1, 0))
        for _ in range(self._config.warmup_iters):
            operation()
        self._memory.settle()

    def measure(self, case: PerfCase, *, in_place: bool, serial: int) -> Measured:
        """Measure a case and verify it. Collective; blocks.

        Parameters
        ----------
        case : PerfCase
            What to measure.
        in_place : bool
            Whether input and output are one array.
        serial : int
            Number of this measurement, the same on all ranks. Another number gives other data.
        """
        layout = case.arrange(self._comm.rank, self._comm.size)
        data = CheckedData(case.dtype, case.op, self._comm.size, serial, self._memory.multiplies)
        checks: list[_Check] = []
        if in_place:
            operations = self._all_in_place(case, layout, data, checks)
        else:
            operations = self._all_apart(case, layout, data, checks)
        # One operation ahead of the block does what is needed on first use.
        ahead = (
            self._operation(case, layout, (2, 0), (2, 0))
            if in_place
            else self._operation(case, layout, (0, 0), (1, 0))
        )
        ahead()
        self._memory.settle()
        self._comm.barrier()
        timed = self._memory.time(operations, self._samples)
        if timed.again is not None and in_place and self._config.graph > 1:
            # What was replayed has worked on its own results: it starts from known data once more.
            for slot, check in enumerate(checks):
                self._prepare(case, layout, data, slot, check.repetition)
            timed.again()
            self._memory.settle()
        wrong = list(self._compare(checks, data))
        for further in range(1, self._config.validation):
            if case.collective.moves:
                more = replace(data, seed=data.seed + (further << 32))
                wrong += self._check_once(case, layout, more, in_place=in_place)
        each = self._config.aggregated_iterations
        return Measured(
            timed.seconds / each, timed.issued / each, timed.samples / each, tuple(wrong)
        )

    # --- out of place: slot 0 is input, slot 1 output, slot 2 output of the last repetition --------

    def _all_apart(
        self, case: PerfCase, layout: Layout, data: CheckedData, checks: list[_Check]
    ) -> list[Call]:
        tiles = self._tiles(layout)
        self._fill_tiles(case, layout, data, tiles)
        calls = [self._operation(case, layout, (0, tile), (1, tile)) for tile in range(tiles)]
        operations = [calls[turn % tiles] for turn in range(self._operations)]
        if self._verifies(case):
            last = self._operations - 1
            operations[last] = self._operation(case, layout, (0, last % tiles), (2, 0))
            checks += self._poisoned(case, layout, data, last)
        return operations

    def _poisoned(
        self, case: PerfCase, layout: Layout, data: CheckedData, turn: int | None
    ) -> list[_Check]:
        """Poison the output of slot 2 for one operation; returns what must come out."""
        if layout.outputs is None:
            return []
        out = self._view(case, layout, (2, 0), 0, layout.output_size)
        verification.poison(out, data, layout.outputs, self._memory.put)
        return [_Check(out, layout.outputs, turn)]

    def _fill_tiles(self, case: PerfCase, layout: Layout, data: CheckedData, tiles: int) -> None:
        if layout.inputs is None:
            return
        if self._verifies(case):
            x = self._view(case, layout, (0, 0), 0, layout.input_size)
            verification.fill(x, data, layout.inputs, self._memory.put)
            self._memory.spread(0, self._offset(case), layout.nbytes, tiles)
        else:
            self._memory.clear(0, self._offset(case) + tiles * layout.nbytes)

    # --- in place: slot 0 is for the first repetition, slot 1 for a random one, slot 2 for all others

    def _all_in_place(
        self, case: PerfCase, layout: Layout, data: CheckedData, checks: list[_Check]
    ) -> list[Call]:
        tiles = self._tiles(layout)
        # Zeros stay zeros under every reduction, so that repetitions on what the one before left
        # neither overflow nor differ from each other.
        self._memory.clear(2, self._offset(case) + tiles * layout.nbytes)
        calls = [self._operation(case, layout, (2, tile), (2, tile)) for tile in range(tiles)]
        operations = [calls[turn % tiles] for turn in range(self._operations)]
        if self._verifies(case):
            chosen = [0]
            if self._operations > 1:
                chosen.append(random.Random(data.seed).randrange(1, self._operations))
            for slot, turn in enumerate(chosen):
                check = self._prepare(case, layout, data, slot, turn)
                if check is not None:
                    checks.append(check)
                operations[turn] = self._operation(case, layout, (slot, 0), (slot, 0))
        return operations

    def _prepare(
        self, case: PerfCase, layout: Layout, data: CheckedData, slot: int, turn: int | None
    ) -> _Check | None:
        """Fill a slot for one operation in place; returns what must come out."""
        x, out = self._arrays(case, layout, (slot, 0), (slot, 0))
        if out is not None and layout.outputs is not None and out is not x:
            verification.poison(out, data, layout.outputs, self._memory.put)
        if x is not None and layout.inputs is not None:
            verification.fill(x, data, layout.inputs, self._memory.put)
        if out is not None and layout.outputs is not None:
            return _Check(out, layout.outputs, turn)
        if x is not None and layout.inputs is not None:
            # A rank that gets no result keeps its input.
            return _Check(x, layout.inputs, turn)
        return None

    # --- both -------------------------------------------------------------------------------------

    def _check_once(
        self, case: PerfCase, layout: Layout, data: CheckedData, *, in_place: bool
    ) -> list[WrongResult]:
        """Run and verify one more operation, untimed."""
        if in_place:
            check = self._prepare(case, layout, data, 0, None)
            self._operation(case, layout, (0, 0), (0, 0))()
            self._memory.settle()
            return self._compare([check] if check is not None else [], data)
        self._fill_tiles(case, layout, data, 1)
        checks = self._poisoned(case, layout, data, None)
        self._operation(case, layout, (0, 0), (2, 0))()
        self._memory.settle()
        return self._compare(checks, data)

    def _compare(self, checks: Sequence[_Check], data: CheckedData) -> list[WrongResult]:
        read = self._memory.read
        return [
            WrongResult(check.repetition, mismatch)
            for check in checks
            if (mismatch := verification.compare(check.array, data, check.expected, read))
        ]

    def _arrays(
        self, case: PerfCase, layout: Layout, x_at: Tile, out_at: Tile
    ) -> tuple[Array | None, Array | None]:
        """Return input and output in tiles; in one tile they are in place, as one array if equal."""
        in_place = x_at == out_at
        x = out = None
        if layout.inputs is not None:
            first = layout.input_at if in_place else 0
            x = self._view(case, layout, x_at, first, layout.input_size)
        if layout.outputs is not None:
            first = layout.output_at if in_place else 0
            out = self._view(case, layout, out_at, first, layout.output_size)
        same = layout.input_at == layout.output_at and layout.input_size == layout.output_size
        return (x, x) if in_place and x is not None and out is not None and same else (x, out)

    def _operation(self, case: PerfCase, layout: Layout, x_at: Tile, out_at: Tile) -> Call:
        """Return the operation from one tile to another, or in place in one."""
        member = Member(self._comm.rank, self._comm.size, case.root)
        arrays = self._arrays(case, layout, x_at, out_at)
        how = self._how if case.collective.algorithms else {}
        operands = Operands(*arrays, case.op, layout, member)
        return bind(self._comm, case.collective, operands, how, self._memory.copy)

    def _verifies(self, case: PerfCase) -> bool:
        return self._config.validation > 0 and case.collective.moves

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

    def _view(self, case: PerfCase, layout: Layout, at: Tile, first: int, count: int) -> Array:
        """Return `count` elements of a tile, from its element `first` on."""
        slot, tile = at
        start = self._offset(case) + tile * layout.nbytes + first * case.dtype.itemsize
        return self._memory.view(slot, start, count, case.dtype)


def check_algorithm(
    comm: "Communicator", memory: MemoryKind, case: PerfCase, algorithm: str
) -> None:
    """Raise unless `algorithm` applies to a case. Local.

    Raises
    ------
    UsageError
        If it does not; the message lists those that do.
    """
    member = Member(comm.rank, comm.size, case.root)
    layout = case.arrange(comm.rank, comm.size)
    x = None if layout.inputs is None else memory.some(layout.input_size, case.dtype)
    out = None if layout.outputs is None else memory.some(layout.output_size, case.dtype)
    args, keywords = case.collective.arguments(Operands(x, out, case.op, layout, member))
    comm.explain(case.collective.name, *args, **keywords, algorithm=algorithm)
