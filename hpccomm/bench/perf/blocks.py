"""Which tables a run prints, and their lines: decided before anything is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpccomm import settings
from hpccomm.bench.perf.cases import PerfCase, SweepSegment, segments
from hpccomm.bench.perf.collectives import Benchmark
from hpccomm.bench.perf.measure import check_algorithm
from hpccomm.bench.perf.memory_kind import DEVICE, NCCL
from hpccomm.bench.perf.options import Options, Pair
from hpccomm.bench.perf.readers import ALL
from hpccomm.bench.perf.sources import MemoryKind
from hpccomm.dispatch import policy
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


@dataclass(frozen=True, slots=True)
class PerfTable:
    """One table.

    Attributes
    ----------
    source : int
        Number of the backend, in the order of the options.
    backend : str
        As it is printed.
    collective : Benchmark
        Which is measured.
    algorithm : str
        As it is printed, and passed to the calls.
    pairs : tuple of Pair
        Types and reductions that are measured.
    """

    source: int
    backend: str
    collective: Benchmark
    algorithm: str
    pairs: tuple[Pair, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        """Collective, backend and algorithm, as they are printed."""
        return self.collective.name, self.backend, self.algorithm

    def segments(self, options: Options, ranks: int) -> Iterator[SweepSegment]:
        """Yield the lines, type by type, reduction by reduction, root by root."""
        return segments(self.collective, options, self.pairs, ranks)

    def expected_rows(self, options: Options, ranks: int) -> int:
        """Return how many rows there will be; those of one cycle, if there is no end to them."""
        lines = sum(segment.lines for segment in self.segments(options, ranks))
        return (1 + self.collective.in_place) * lines * max(1, options.config.run_cycles)


class TablePlan:
    """The tables of a run, collected backend by backend.

    Parameters
    ----------
    options : Options
        The options of the run.

    Attributes
    ----------
    versions : dict of str to str
        Of what the backends need.
    """

    def __init__(self, options: Options) -> None:
        self.versions: dict[str, str] = {}
        self._options = options
        self._tables: dict[tuple[str, str, str], PerfTable] = {}
        self._skipped: dict[str, None] = dict.fromkeys(options.skipped())
        self._refused: dict[str, str] = {}
        self._used: set[str] = set()
        self._unrecorded: list[str] = []

    def add(self, number: int, comm: "Communicator", memory: MemoryKind) -> None:
        """Add the tables of a backend. Local.

        Parameters
        ----------
        number : int
            The backend's, in the order of the options.
        comm : Communicator
            Over it.
        memory : MemoryKind
            The arrays.
        """
        self.versions |= memory.versions()
        graph = self._options.config.graph
        if graph and memory.name == DEVICE and memory.backend() != NCCL:
            why = f"-G/--cudagraph {graph}: the host takes part in calls over {memory.backend()!r}"
            self._unrecorded.append(f"{why}; leave it out, or give --backend {NCCL}")
            self._skipped[f"graphs over {memory.backend()}"] = None
            return
        for collective in self._options.collectives:
            if memory.name == DEVICE and not collective.moves:
                self._leave_out(
                    f"{collective.name} moves no arrays, on a device or elsewhere; measure it with --arrays host",
                    f"{collective.name} on device arrays",
                )
                continue
            why = collective.possible(comm.size)
            if why:
                self._leave_out(f"{why}; start others", f"{collective.name} on {comm.size} ranks")
                continue
            batched = self._options.config.aggregated_iterations
            if collective.steps and batched > 1 and comm.size > 2:
                why = f"{collective.name} sends what its last step received, and -m {batched} issues all at once"
                self._leave_out(f"{why}; leave -m out", f"{collective.name} in batches of -m")
                continue
            for algorithm, pairs in self._algorithms(comm, memory, collective):
                block = PerfTable(number, memory.backend(), collective, algorithm, pairs)
                self._tables.setdefault(block.names, block)
                self._used.add(algorithm)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The tables and what is left out, so far."""
        return [*self._tables, *((each,) for each in self._skipped)]

    def _leave_out(self, why: str, what: str) -> None:
        """Leave out a collective, which is an error if it is the only one."""
        if len(self._options.collectives) == 1:
            raise UsageError(why)
        self._skipped[what] = None

    def _algorithms(
        self, comm: "Communicator", memory: MemoryKind, collective: Benchmark
    ) -> Iterator[tuple[str, tuple[Pair, ...]]]:
        """Yield the algorithms of a collective, and the pairs that each applies to."""
        requested, pairs = self._options.algorithms, self._options.pairs(collective)
        if requested is None or not collective.algorithms:
            yield _by_default(comm, memory, collective, pairs), pairs
            return
        every = ALL in requested
        for algorithm in policy.names() if every else requested:
            if every and algorithm == AUTO:
                continue  # it takes one of the others
            fails = _failures(comm, memory, collective, pairs, algorithm)
            fit = tuple(pair for pair in pairs if pair not in fails)
            if fit:
                yield algorithm, fit
            elif every:
                continue  # what does not apply at all is no part of all
            for pair, why in fails.items():
                case = PerfCase(collective, *pair, -1, 0)
                self._refused.setdefault(algorithm, f"{case}: {why}")
                part = case if fit else collective.name
                self._skipped[f"{algorithm} on {part}"] = None

    def made(self) -> tuple[tuple[PerfTable, ...], tuple[str, ...]]:
        """Return the tables, and what is skipped because it does not exist.

        Raises
        ------
        UsageError
            If an algorithm applies to none of the collectives, or nothing can be recorded.
        """
        if self._unrecorded and not self._tables:
            raise UsageError(self._unrecorded[0])
        requested = self._options.algorithms or ()
        for algorithm in requested:
            if algorithm not in self._used and ALL not in requested:
                names = ", ".join(collective.name for collective in self._options.collectives)
                why = self._refused.get(algorithm, f"{names} takes no algorithm")
                raise UsageError(f"--algorithm {algorithm}: {why}")
        return tuple(self._tables.values()), tuple(self._skipped)


def _failures(
    comm: "Communicator",
    memory: MemoryKind,
    collective: Benchmark,
    pairs: Sequence[Pair],
    algorithm: str,
) -> dict[Pair, str]:
    """Return the pairs that an algorithm does not apply to, and why.

    Whether it applies depends neither on the size nor on the root: empty arrays and root 0 suffice.
    """
    fails: dict[Pair, str] = {}
    if algorithm == AUTO:
        return fails
    for type_name, op_name in pairs:
        try:
            check_algorithm(comm, memory, PerfCase(collective, type_name, op_name, 0, 0), algorithm)
        except UsageError as error:
            fails[type_name, op_name] = str(error)
    return fails


def _by_default(
    comm: "Communicator", memory: MemoryKind, collective: Benchmark, pairs: Sequence[Pair]
) -> str:
    """Return the algorithm of a table if the flag is not given: the variable's if it applies.

    A table has one algorithm, so the variable holds for a table only if it does for every line.
    """
    variable = str(settings.read("HPCCOMM_ALGORITHM"))
    if variable == AUTO:
        return AUTO
    applies = collective.algorithms and not _failures(comm, memory, collective, pairs, variable)
    return variable if applies else AUTO
