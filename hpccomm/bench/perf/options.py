"""The options of a run of perf.

Made from the flags by `hpccomm.cli.perf` and `hpccomm.cli.simulate`; read by all of perf.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from hpccomm.bench.perf.collectives import Benchmark
from hpccomm.bench.perf.names import AUTO, NO_OP, OPS, TYPES
from hpccomm.bench.perf.readers import ALL, ALL_ROOTS
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.bench.perf.split import RankSplit
from hpccomm.bench.perf.variants import Variant
from hpccomm.errors import UsageError
from hpccomm.reductions import meaningful
from hpccomm.results.schema import REQUIRED_FRACTION, Config

Pair = tuple[str, str]
"""Names of a type and a reduction."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run of perf.

    Attributes
    ----------
    collectives : tuple of Benchmark
    backends : tuple of str
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
    sync : str
        How isolated repetitions are started together; empty for none.
    interval : float
        How narrow the confidence interval of their median is to be, as a part of it; 0 for any.
    budget : float
        Seconds that all of them may take; infinite for any.
    least_busbw : float or None
        Average bus bandwidth in 1e9 B/s; a table with less than 0.9 times that fails.
    series : mapping of str to str
        The series that the run is a launch of, as `RunInfo` has it.
    variants : tuple of Variant or None
        Two that are measured in turns.
    expected : str or None
        What the rows should have: a file, or the name of a link.
    near : float
        Part of it that is enough.
    split : RankSplit or None
        Groups of ranks that measure at the same time.
    device : int or None
        This rank's device; None for its number on the node.
    """

    collectives: tuple[Benchmark, ...]
    backends: tuple[str, ...]
    algorithms: tuple[str, ...] | None
    types: tuple[str, ...]
    ops: tuple[str, ...]
    root: int
    sizes: Sizes
    config: Config
    timeout: int = 0
    memory: bool = False
    json: Path | None = None
    csv: Path | None = None
    output: Path | None = None
    arrays: str = AUTO
    sync: str = ""
    interval: float = 0.0
    budget: float = math.inf
    least_busbw: float | None = None
    series: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Variant, Variant] | None = None
    expected: str | None = None
    near: float = REQUIRED_FRACTION
    split: RankSplit | None = None
    device: int | None = None

    def of_variant(self, variant: Variant) -> "Options":
        """Return the options with a variant's settings."""
        return replace(
            self,
            backends=(variant.backend,) if variant.backend else self.backends,
            algorithms=(variant.algorithm,) if variant.algorithm else self.algorithms,
        )

    @property
    def series_of_run(self) -> dict[str, str]:
        """The series, with the names of two variants, as `RunInfo` has them."""
        names = [variant.name for variant in self.variants or ()]
        return {**dict(zip(("base", "new"), names, strict=False)), **self.series}

    def pairs(self, collective: Benchmark) -> tuple[Pair, ...]:
        """Return the pairs of type and reduction that mean something for a collective.

        Raises
        ------
        UsageError
            Without a pair that the reduction is defined for.
        """
        if not collective.what.reduces:
            op_name = self.ops[0] if collective.names_op else NO_OP
            return tuple((type_name, op_name) for type_name in self.types)
        result = tuple(pair for pair in product(self.types, self.ops) if _meaningful(*pair))
        if not result:
            raise UsageError(
                f"-o/--op {','.join(self.ops)} means nothing on -d/--datatype "
                f"{','.join(self.types)}; give others of them, or {ALL}"
            )
        return result

    @property
    def samples(self) -> bool:
        """Whether to time every repetition, and not only the block."""
        stored = self.output is not None or self.csv is not None or self.expected is not None
        return self.config.per_iter_timing or stored or self.variants is not None

    def refuse_device_flags(self, why: str) -> None:
        """Raise if there is a flag that host arrays cannot follow.

        Parameters
        ----------
        why : str
            Ends the message: why the arrays are on the host, and what to do.
        """
        config = self.config
        flags = {
            f"-G/--cudagraph {config.graph}: CUDA graphs hold device work": config.graph,
            "-y/--stream_null 1: host arrays have no stream": config.stream_null,
            "-C/--report_cputime 1: calls on host arrays return when they are done": (
                config.report_cputime
            ),
        }
        for flag, used in flags.items():
            if used:
                raise UsageError(f"{flag}, and {why}")

    def skipped(self) -> tuple[str, ...]:
        """Return the pairs that mean nothing, as ``"avg on bool"``; empty if nothing is reduced."""
        if not any(collective.what.reduces for collective in self.collectives):
            return ()
        pairs = product(self.types, self.ops)
        return tuple(f"{op} on {kind}" for kind, op in pairs if not _meaningful(kind, op))

    def roots(self, collective: Benchmark, ranks: int) -> tuple[int, ...]:
        """Return the roots to measure a collective with; -1 for one without a root.

        Raises
        ------
        UsageError
            If the root is not a rank.
        """
        if not collective.what.rooted:
            return (-1,)
        if self.root == ALL_ROOTS:
            return tuple(range(ranks))
        if self.root >= ranks:
            raise UsageError(
                f"-r/--root {self.root}: there are {ranks} ranks; give 0 to {ranks - 1}, or {ALL}"
            )
        return (self.root,)


def _meaningful(type_name: str, op_name: str) -> bool:
    return meaningful(OPS[op_name], TYPES[type_name])
