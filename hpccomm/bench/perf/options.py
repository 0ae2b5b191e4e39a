"""The options of a run of perf."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpccomm.bench.perf.collectives import COLLECTIVES, Benchmark
from hpccomm.bench.perf.memory_kind import AUTO
from hpccomm.bench.perf.names import NO_OP, OPS, TYPES
from hpccomm.bench.perf.readers import ALL, ALL_ROOTS
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.errors import UsageError
from hpccomm.reductions import meaningful
from hpccomm.results.schema import Config


def pairs(
    collective: Benchmark, types: Sequence[str], ops: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of type and reduction that mean something for a collective."""
    if not collective.reduces:
        op_name = ops[0] if collective.names_op else NO_OP
        return tuple((type_name, op_name) for type_name in types)
    return tuple(
        (type_name, op_name)
        for type_name in types
        for op_name in ops
        if meaningful(OPS[op_name], TYPES[type_name])
    )


def meaningless(types: Sequence[str], ops: Sequence[str]) -> tuple[str, ...]:
    """Return the pairs of type and reduction that mean nothing, as ``"avg on bool"``."""
    return tuple(
        f"{op_name} on {type_name}"
        for type_name in types
        for op_name in ops
        if not meaningful(OPS[op_name], TYPES[type_name])
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run of perf.

    Attributes
    ----------
    collectives, backends : tuple of str
        Each combination is one table.
    algorithms : tuple of str or None
        For each, one table; None if the flag was not given.
    types, ops : tuple of str
        Names of `TYPES` and `OPS`.
    root : int
        Or `ALL_ROOTS`.
    sizes : Sizes
        The sizes to measure.
    config : Config
        The flags that are recorded with the results.
    timeout : int
        Seconds; 0 for the communicator's own.
    memory : bool
        Report the memory that was used.
    json, csv, output : Path or None
        Files to write.
    arrays : str
        Memory of the arrays: ``auto``, ``host`` or ``device``.
    """

    collectives: tuple[str, ...]
    backends: tuple[str, ...]
    algorithms: tuple[str, ...] | None
    types: tuple[str, ...]
    ops: tuple[str, ...]
    root: int
    sizes: Sizes
    config: Config
    timeout: int
    memory: bool
    json: Path | None
    csv: Path | None
    output: Path | None
    arrays: str = AUTO

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the pairs of type and reduction that mean something for a collective."""
        return pairs(COLLECTIVES[name], self.types, self.ops)

    @property
    def samples(self) -> bool:
        """Whether the time of every repetition is wanted, and not that of the block alone."""
        return self.config.per_iter_timing or self.output is not None

    def device_flags(self) -> tuple[str, ...]:
        """Return the flags that host arrays cannot follow, with their values and the reason."""
        config = self.config
        flags = {
            f"-G/--cudagraph {config.graph}: CUDA graphs hold device work": config.graph,
            "-y/--stream_null 1: host arrays have no stream": config.stream_null,
            "-C/--report_cputime 1: calls on host arrays return when they are done": (
                config.report_cputime
            ),
        }
        return tuple(flag for flag, used in flags.items() if used)

    def skipped(self) -> tuple[str, ...]:
        """Return the pairs that mean nothing, as ``"avg on bool"``; empty if nothing is reduced."""
        if not any(COLLECTIVES[name].reduces for name in self.collectives):
            return ()
        return meaningless(self.types, self.ops)

    def roots(self, name: str, ranks: int) -> tuple[int, ...]:
        """Return the roots to measure a collective with; -1 where it has none.

        Raises
        ------
        UsageError
            If there is no such rank.
        """
        if not COLLECTIVES[name].rooted:
            return (-1,)
        if self.root == ALL_ROOTS:
            return tuple(range(ranks))
        if self.root >= ranks:
            raise UsageError(
                f"-r/--root {self.root}: there are {ranks} ranks; give 0 to {ranks - 1}, or {ALL}"
            )
        return (self.root,)
