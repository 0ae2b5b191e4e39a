"""The tables and lines of a run, decided before anything is measured; and rows, with sentences about wrong results.

`sweep` measures tables, and makes rows on rank 0. `report` prints them. `hpccomm simulate` computes them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes, settings
from hpccomm.calls import policy
from hpccomm.calls.policy import AUTO
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.reductions import Op
from hpccomm.results.schema import UNCHECKED, Row, Timing
from hpccomm.tools.flags import ALL
from hpccomm.tools.perf.arrays import MemoryKind
from hpccomm.tools.perf.collectives import Benchmark, Layout, Member, Operands
from hpccomm.tools.perf.facts import figures
from hpccomm.tools.perf.isolated import RankTimes
from hpccomm.tools.perf.options import Options, Pair, Sizes
from hpccomm.tools.perf.patterns import DEVICE, NCCL, NO_OP, NO_TYPE, OPS, TYPES
from hpccomm.units import grouped, ranges

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.contracts.signature import Choice

TableNames = tuple[str, str, str]
"""Collective, backend and algorithm of a table, as they are printed."""


@dataclass(frozen=True, slots=True)
class PerfCase:
    """The subject of one line.

    Attributes
    ----------
    collective : Benchmark
        The collective.
    type_name, op_name : str
        Names of type and reduction, as they are printed.
    root : int
        The root, or -1.
    size : int
        The size in bytes.
    """

    collective: Benchmark
    type_name: str
    op_name: str
    root: int
    size: int

    @property
    def dtype(self) -> DType:
        """The type; bool for a barrier, which has no elements."""
        return TYPES.get(self.type_name, dtypes.BOOL)

    @property
    def op(self) -> Op | None:
        """The reduction; None if nothing is reduced."""
        return OPS[self.op_name] if self.collective.what.reduces else None

    def arrange(self, rank: int, ranks: int) -> Layout:
        """Return the layout of the case on one rank."""
        member = Member(rank, ranks, self.root)
        return self.collective.arrange(self.size, self.dtype.itemsize, member)

    def row(
        self,
        table: TableNames,
        ranks: int,
        seconds: float,
        *,
        in_place: bool = False,
        printed: float | None = None,
        wrong: int = UNCHECKED,
        iterations: int = 1,
    ) -> Row:
        """Return the row of the case on this number of ranks, finished now.

        Parameters
        ----------
        table : TableNames
            The table of the row.
        ranks : int
            Number of ranks.
        seconds : float
            Time of one operation, from which bandwidths are computed.
        in_place, wrong, iterations
            Fields of `Row`.
        printed : float, optional
            The printed time in seconds, if it differs from `seconds`.
        """
        layout, collective = self.arrange(0, ranks), self.collective
        carried, factor = collective.carried(ranks), collective.what.bus_factor(ranks)
        size = self.root, layout.nbytes, layout.count, in_place
        case = *table, self.type_name, self.op_name, *size
        times = figures(layout.nbytes * carried, seconds, factor, printed)
        return Row(*case, *times, wrong, iterations, time.time())

    def __str__(self) -> str:
        words = [self.collective.name, self.type_name if self.collective.what.moves else ""]
        words += [self.op_name if self.collective.what.reduces else ""]
        words += [f"root {self.root}" if self.root >= 0 else ""]
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class PerfTable:
    """One table.

    Attributes
    ----------
    phase : int
        Number of the phase in which it is measured, see `Options.phases`.
    backend : str
        Name of the backend, as it is printed.
    collective : Benchmark
        The collective that is measured.
    algorithm : str
        Name of the algorithm, as it is printed and passed to the calls.
    pairs : tuple of Pair
        Types and reductions that are measured.
    """

    phase: int
    backend: str
    collective: Benchmark
    algorithm: str
    pairs: tuple[Pair, ...]

    @property
    def names(self) -> TableNames:
        """Collective, backend and algorithm, as they are printed."""
        return self.collective.name, self.backend, self.algorithm

    def segments(self, options: Options, ranks: int) -> Iterator[tuple[PerfCase, Sizes]]:
        """Yield the lines, grouped by type, reduction and root: a case of size 0, and the sizes of its lines."""
        if not self.collective.what.moves:
            yield PerfCase(self.collective, NO_TYPE, NO_OP, -1, 0), Sizes(0, 0, 2, 0)
            return
        for pair in self.pairs:
            for root in options.roots(self.collective, ranks):
                yield PerfCase(self.collective, *pair, root, 0), options.sizes

    def lines(self, options: Options, ranks: int) -> int:
        """Return the number of lines; if the cycles are endless, that of one cycle."""
        segments = self.segments(options, ranks)
        lines = sum(sizes.number(empty.dtype.itemsize) for empty, sizes in segments)
        return lines * max(1, options.config.run_cycles)


Check = Callable[[PerfCase, str], "Choice"]
"""``check(case, algorithm)`` is `check_algorithm` with the communicator and the arrays of a backend."""


class TablePlan:
    """The tables of a run, collected backend by backend.

    Parameters
    ----------
    options : Options
        The options of the run.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._tables: dict[TableNames, PerfTable] = {}
        self._skipped: dict[str, None] = dict.fromkeys(options.skipped())
        self._refused: dict[str, str] = {}
        self._unrecorded: list[str] = []

    def add(self, phase: int, comm: "Communicator", memory: MemoryKind) -> None:
        """Add the tables of a backend. Local.

        Parameters
        ----------
        phase : int
            Number of the phase, see `Options.phases`.
        comm : Communicator
            A communicator over it.
        memory : MemoryKind
            The arrays.
        """
        graph = self._options.config.graph
        if graph and memory.name == DEVICE and memory.backend != NCCL:
            why = f"-G/--cudagraph {graph}: the host takes part in calls over {memory.backend!r}"
            self._unrecorded.append(f"{why}; leave it out, or give --backend {NCCL}")
            self._skip(f"graphs over {memory.backend}")
            return
        check = partial(check_algorithm, comm, memory)
        for collective in self._options.collectives:
            if obstacle := self._obstacle(collective, comm.size, memory):
                why, skipped = obstacle
                if len(self._options.collectives) == 1:
                    raise UsageError(why)
                self._skip(f"{collective.name} {skipped}")
                continue
            for algorithm in self._algorithms(collective, check):
                if pairs := tuple(self._possible(collective, algorithm, check)):
                    table = PerfTable(phase, memory.backend, collective, algorithm, pairs)
                    self._tables.setdefault(table.names, table)

    def _skip(self, what: str) -> None:
        self._skipped[what] = None

    def _obstacle(
        self, collective: Benchmark, ranks: int, memory: MemoryKind
    ) -> tuple[str, str] | None:
        """Return why a collective cannot be measured, as an error and for the list of skipped cases; None if it can."""
        name, batched = collective.name, self._options.config.aggregated_iterations
        if memory.name == DEVICE and not collective.what.moves:
            why = f"{name} moves no arrays, on a device or elsewhere; measure it with --arrays host"
            return why, "on device arrays"
        if why := collective.possible(ranks):
            return f"{why}; start others", f"on {ranks} ranks"
        if collective.steps and batched > 1 and ranks > 2:
            why = f"{name} sends what its last step received, and -m {batched} issues all at once"
            return f"{why}; leave -m out", "in batches of -m"
        return None

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The tables and the left-out cases, so far."""
        return [*self._tables, *((each,) for each in self._skipped)]

    def _algorithms(self, collective: Benchmark, check: Check) -> Iterator[str]:
        """Yield the algorithms of a collective; some may not apply."""
        requested = self._options.algorithms
        if requested is None or not collective.algorithms:
            # A table has one algorithm, so the variable applies to a table only if it applies to every line.
            variable = str(settings.read("HPCCOMM_ALGORITHM"))
            applies = collective.algorithms and not self._failures(collective, variable, check)
            yield variable if applies else AUTO
        elif ALL in requested:
            yield from (name for name in policy.names() if name != AUTO)  # AUTO takes one of them
        else:
            yield from requested

    def _failures(self, collective: Benchmark, algorithm: str, check: Check) -> dict[Pair, str]:
        """Return the pairs to which an algorithm does not apply, each with the reason.

        That does not depend on size or root, so empty arrays and root 0 are tried.
        """
        fails: dict[Pair, str] = {}
        for pair in () if algorithm == AUTO else self._options.pairs(collective):
            try:
                check(PerfCase(collective, *pair, 0, 0), algorithm)
            except UsageError as error:
                fails[pair] = str(error)
        return fails

    def _possible(self, collective: Benchmark, algorithm: str, check: Check) -> Iterator[Pair]:
        """Yield the pairs to which an algorithm applies. With a CUDA graph, it must be able to hold their calls."""
        pairs, fails = self._options.pairs(collective), self._failures(collective, algorithm, check)
        nowhere = len(fails) == len(pairs)
        if nowhere and ALL in (self._options.algorithms or ()):
            return  # algorithms that never apply are not part of ``all``
        recorded = self._options.config.graph and collective.algorithms
        for pair in pairs:
            case = PerfCase(collective, *pair, -1, 0)
            if why := fails.get(pair):
                self._refused.setdefault(algorithm, f"{case}: {why}")
                self._skip(f"{algorithm} on {collective.name if nowhere else case}")
            elif recorded and check(replace(case, root=0), algorithm).path == "staged":
                why = f"-G/--cudagraph: {case} goes through the host; leave it out"
                self._unrecorded.append(f"{why}, or name an --algorithm of the device")
                self._skip(f"graphs of {case}")
            else:
                yield pair

    def made(self) -> tuple[tuple[PerfTable, ...], tuple[str, ...]]:
        """Return the tables, and the cases that were skipped since they do not exist.

        Raises
        ------
        UsageError
            If an algorithm applies to none of the collectives, or nothing can be recorded.
        """
        if self._unrecorded and not self._tables:
            raise UsageError(self._unrecorded[0])
        requested = self._options.algorithms or ()
        used = {table.algorithm for table in self._tables.values()}
        for algorithm in requested:
            if algorithm not in used and ALL not in requested:
                names = ", ".join(collective.name for collective in self._options.collectives)
                why = self._refused.get(algorithm, f"{names} takes no algorithm")
                raise UsageError(f"--algorithm {algorithm}: {why}")
        return tuple(self._tables.values()), tuple(self._skipped)


def side_by_side(
    plans: Sequence[TablePlan], options: Options
) -> tuple[list[tuple[PerfTable, ...]], tuple[str, ...]]:
    """Return the tables of all plans, grouped by collective, and the skipped cases.

    Raises
    ------
    UsageError
        If an algorithm applies to none of the collectives, or two variants have no case in common.
    """
    planned = [plan.made() for plan in plans]
    skipped = dict.fromkeys(name for _, names in planned for name in names)
    first, *others = (tables for tables, _ in planned)
    together = []
    for table in first:
        same = [each for tables in others for each in tables if each.collective is table.collective]
        pairs = tuple(pair for pair in table.pairs if all(pair in each.pairs for each in same))
        if len(same) == len(others) and pairs:
            together.append(tuple(replace(each, pairs=pairs) for each in (table, *same)))
        else:
            skipped[f"{table.collective.name} with both variants"] = None
    if options.variants and not together:
        names = " ".join(repr(variant.name) for variant in options.variants)
        raise UsageError(
            f"--interleave {names}: no case has both; name collectives, types and reductions that both have"
        )
    return together, tuple(skipped)


def check_algorithm(
    comm: "Communicator", memory: MemoryKind, case: PerfCase, algorithm: str
) -> "Choice":
    """Return how `algorithm` carries out a case. Local.

    Raises
    ------
    UsageError
        If it does not apply to the case; the message lists the algorithms that do.
    """
    layout = case.arrange(comm.rank, comm.size)
    x = None if layout.inputs is None else memory.module.empty(layout.input_size, case.dtype)
    out = None if layout.outputs is None else memory.module.empty(layout.output_size, case.dtype)
    operands = Operands(x, out, case.op, layout, Member(comm.rank, comm.size, case.root))
    args, keywords = case.collective.arguments(operands)
    return comm.explain(case.collective.name, *args, **keywords, algorithm=algorithm)


RANK_0, AVERAGE, MINIMUM, MAXIMUM = range(4)
"""Values of ``-a``: the ways to make one time from the times of all ranks."""


def over_ranks(means: NDArray[np.float64], average: int) -> float:
    """Return one time for the times of all ranks. `average` is the value of ``-a``."""
    return float((means[0], means.mean(), means.min(), means.max())[average])


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row with its timing, and the samples from which both are computed.

    Attributes
    ----------
    row : Row
        The measurement.
    timing : Timing
        How it was timed.
    samples : ndarray of float64, shape ``(repetitions, ranks)``
        Seconds of each repetition back to back; no repetitions if they were not timed singly.
    isolated : ndarray of float64, shape ``(repetitions, ranks, 2)``
        Start and end of each isolated repetition, in seconds on one clock; no repetitions if there were none.
    """

    row: Row
    timing: Timing
    samples: NDArray[np.float64]
    isolated: NDArray[np.float64]


def wrong_results(case: PerfCase, row: Row, times: Sequence[RankTimes]) -> Iterator[str]:
    """Yield a sentence on each operation of a row that went wrong: rank, index, expected and got.

    The sentence names the lowest rank with a wrong element, and lists all such ranks.
    """
    where = f"{case}, {row.bytes} B, {'in place' if row.in_place else 'out of place'}"
    operations = grouped(
        (mismatch.repetition, (rank, mismatch))
        for rank, each in enumerate(times)
        for mismatch in each.wrong
    )
    for repetition, mismatches in operations.items():
        rank, first = mismatches[0]
        timed = f"timed operation {repetition}"
        when = "an operation after the timed ones" if repetition is None else timed
        elements = sum(mismatch.wrong for _, mismatch in mismatches)
        yield (
            f"{where}, {when}: rank {rank}, index {first.index}: expected {first.expected}, "
            f"got {first.got}; {elements} elements are wrong on ranks "
            f"{ranges(rank for rank, _ in mismatches)}"
        )
