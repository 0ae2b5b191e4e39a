"""The options of a run of perf: among them the sizes, and the two variants of ``--interleave``.

`flags` and `hpccomm.tools.simulate.simulate` make them from the command line; all of perf reads them.
"""

import math
import operator
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hpccomm import backends
from hpccomm.calls import policy
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.reductions import meaningful
from hpccomm.results.files import as_utf8
from hpccomm.results.schema import REQUIRED_FRACTION, Config, Timing, columns
from hpccomm.settings import VARIABLES
from hpccomm.tools.flags import ALL, ALL_ROOTS
from hpccomm.tools.perf.collectives import Benchmark
from hpccomm.tools.perf.patterns import AUTO, NO_OP, OPS, TYPES

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_OPERATORS = [
    ("AND &", operator.and_),
    ("OR |", operator.or_),
    ("MOD %", operator.mod),
    ("DIV /", operator.floordiv),
]
_HOW = {name: operate for names, operate in _OPERATORS for name in names.split()}
_FITS_SPLIT = "AND, OR, MOD or DIV and a number, such as MOD 8, or AND 0x7"
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RankSplit:
    """The rule that makes a rank's number the color of its group.

    Attributes
    ----------
    operate : callable
        The operator.
    value : int
        The other operand.
    """

    operate: Callable[[int, int], int]
    value: int

    def color(self, rank: int) -> int:
        """Return the color of a rank."""
        return self.operate(rank, self.value)


def split(text: str) -> RankSplit:
    """Read a split, as nccl-tests reads ``NCCL_TESTS_SPLIT``: letters of any case, base 2, 8, 10 or 16."""
    match = re.fullmatch(r"\s*([A-Z]{2,3}|[&|%/])\s*(\w+)\s*", text.upper(), re.ASCII)
    operate = match and _HOW.get(match[1])
    if match is None or operate is None:
        raise ArgumentTypeError(f"{text!r} is not a split; give {_FITS_SPLIT}")
    try:
        value = int(match[2], 8 if re.fullmatch("0[0-7]+", match[2]) else 0)
    except ValueError:
        value = -1
    if not (operate in (operator.mod, operator.floordiv)) <= value <= _LARGEST:
        raise ArgumentTypeError(f"{text!r}: {match[2]} does not fit; give {_FITS_SPLIT}")
    return RankSplit(operate, value)


@contextmanager
def own_group(
    world: "Communicator", split: RankSplit | None
) -> Iterator[tuple["Communicator", int, int]]:
    """Yield this rank's group, its color, and the number of ranks of the smallest group. Collective; blocks.

    Parameters
    ----------
    world : Communicator
        The communicator of all ranks.
    split : RankSplit or None
        The split. Rank 0's is used, since not every launcher passes variables on. None leaves the ranks together.
    """
    split = world.broadcast_object(split)
    if split is None:
        yield world, 0, world.size
        return
    color = split.color(world.rank)
    group = world.split(color, key=world.rank, name=f"{world.name}-{color}")
    assert group is not None  # as all ranks have a color
    with group:
        yield group, color, min(world.all_gather_object(group.size))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes, from the flags ``-b``, ``-e``, ``-f`` and ``-i``.

    Attributes
    ----------
    smallest, largest : int
        The smallest and the largest size.
    factor : int
        Factor between a size and the next; 0 if they grow by `step`.
    step : int
        Bytes between a size and the next; 0 if they grow by `factor`.

    Raises
    ------
    UsageError
        If the smallest size is above the largest.
    """

    smallest: int
    largest: int
    factor: int
    step: int

    def __post_init__(self) -> None:
        if self.smallest > self.largest:
            raise UsageError(
                f"-b/--minbytes {self.smallest} is above -e/--maxbytes {self.largest}, each as given or by "
                "default; give sizes that ascend"
            )

    def measured(self, itemsize: int) -> Iterator[int]:
        """Yield the sizes to measure, ascending.

        A size of 0 is followed by `itemsize` bytes; from there on, sizes grow by the factor or step.
        """
        size = self.smallest
        while size <= self.largest:
            yield size
            if size == 0:
                size = itemsize
            else:
                size = size * self.factor if self.factor else size + self.step

    def number(self, itemsize: int) -> int:
        """Return the number of sizes to measure."""
        if self.factor:
            return sum(1 for _ in self.measured(itemsize))
        # With a step there can be billions of sizes.
        first = self.smallest or itemsize
        zero = 0 if self.smallest else 1
        return zero + max(0, 1 + (self.largest - first) // self.step)

    def warmups(self, itemsize: int) -> Iterator[int]:
        """Return the sizes for warming up, which double, as in nccl-tests."""
        return replace(self, factor=2).measured(itemsize)


_LONGEST = next(int(each.kind[1:]) for each in columns(Timing) if each.name == "variant")

_SETTINGS = tuple(each.name for each in VARIABLES)

_PER_COMMUNICATOR = re.compile(r"HPCCOMM_\w+|NCCL_ALGO|NCCL_PROTO")
"""Pattern of variables that are read whenever a communicator is made, and not once in each process."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of two variants that are measured in turns.

    Attributes
    ----------
    name : str
        The text that was given.
    backend, algorithm : str
        Its values for ``--backend`` and ``--algorithm``; empty without one.
    environment : mapping of str to str
        Environment variables that it sets.
    """

    name: str
    backend: str = ""
    algorithm: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def flags(self) -> list[str]:
        """Return the flags of perf that it sets, and its name."""
        flags = {"--backend": self.backend, "--algorithm": self.algorithm, "--variant": self.name}
        return [word for flag, value in flags.items() if value for word in (flag, value)]

    def same(self, other: "Variant") -> bool:
        """Whether both set the same values, however they are spelled."""
        return (self.algorithm, self.place) == (other.algorithm, other.place)

    @property
    def place(self) -> object:
        """The values that determine its communicator: variants of equal places can share one."""
        return self.backend, frozenset(self.environment.items())

    def refuse_process_variables(self) -> None:
        """Raise if it sets a variable that a process reads only once, when it starts.

        Raises
        ------
        UsageError
            If it does. Whole launches can differ in such variables.
        """
        for name in self.environment:
            if not _PER_COMMUNICATOR.fullmatch(name):
                raise UsageError(
                    f"--interleave {self.name}: a process reads {name} only once, so one launch cannot alternate "
                    "between its values; add --launches 10, which alternates whole launches"
                )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context with its environment variables."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)  # the block may have removed it
                else:
                    os.environ[name] = value


ONLY = Variant("")
"""The single variant of a run without ``--interleave``."""


def name_of_variant(text: str) -> str:
    """Read the name of a variant, which results files can hold."""
    if not text.strip() or len(as_utf8(text).encode()) > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is not a name; give one of 1 to {_LONGEST} bytes")
    return text


def variant(text: str) -> Variant:
    """Read a variant from words with blanks between them.

    A word is ``algorithm=NAME``, ``backend=NAME``, a variable ``NAME=VALUE``, or the name of an algorithm or a
    backend alone.
    """
    words = text.split()
    if not words or len(as_utf8(text).encode()) > _LONGEST:
        raise ArgumentTypeError(f"{text!r} is not a variant; {_FITS}, in at most {_LONGEST} bytes")
    algorithms = policy.names()
    known = {"algorithm": algorithms, "backend": backends.choices()}
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            kinds = [kind for kind, names in known.items() if word in names]
            name, value = (kinds[0] if kinds else "algorithm"), word
        if name in known and value not in known[name]:
            every = known[name] if equals else (*algorithms, *known["backend"])
            advice = did_you_mean(value, every, _FITS)
            raise ArgumentTypeError(f"{value!r} is not a known {name}; {advice}")
        if name not in known and not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ArgumentTypeError(f"{word!r} sets no variable; {_FITS}")
        if name.startswith("HPCCOMM_") and name not in _SETTINGS:
            advice = did_you_mean(name, _SETTINGS, f"give one of {', '.join(_SETTINGS)}")
            raise ArgumentTypeError(f"{name} is not a setting of hpccomm; {advice}")
        if name in settings:
            raise ArgumentTypeError(f"{text!r} sets {name} twice; give one value")
        settings[name] = value
    return Variant(text, settings.pop("backend", ""), settings.pop("algorithm", ""), settings)


_FITS = (
    "give words such as ring, algorithm=ring, backend=nccl or a variable like HPCCOMM_SEGMENT=65536, "
    "with blanks between them"
)


_ON_DEVICE = {
    "graph": "-G/--cudagraph {}: CUDA graphs hold device work",
    "stream_null": "-y/--stream_null 1: host arrays have no stream",
    "report_cputime": "-C/--report_cputime 1: calls on host arrays return when they are done",
}
"""Fields of `Config` that are for device arrays alone, with the reason."""

Pair = tuple[str, str]
"""Names of a type and a reduction."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run of perf.

    Attributes
    ----------
    collectives : tuple of Benchmark
        The collectives. Each combination of collective, backend and algorithm is one table.
    backends : tuple of str
        Names of the backends.
    algorithms : tuple of str or None
        Names of the algorithms; None if the flag was not given.
    types, ops : tuple of str
        Names of `TYPES` and `OPS`.
    root : int
        The root, or `ALL_ROOTS`.
    config : Config
        The flags that are recorded with the results, among them the sizes.
    timeout : int
        Deadline of calls in seconds; 0 for the communicator's default.
    memory : bool
        Whether to report the used memory.
    json, csv, output : Path or None
        Files to write.
    arrays : str
        Memory of the arrays: ``auto``, ``host`` or ``device``.
    sync : str
        The method by which ranks start isolated repetitions at the same time; empty for no such repetitions.
    interval : float
        Half the width of the confidence interval of their median that ends them, as a fraction of it; 0: any width.
    budget : float
        Most seconds for all isolated repetitions; infinite without a limit.
    least_busbw : float or None
        Required average bus bandwidth in 1e9 B/s; a table with less than 0.9 times that fails.
    series : mapping of str to str
        The series of launches to which the run belongs, and the names of its variants, as in `RunInfo`.
    variants : tuple of Variant or None
        Two variants that are measured in turns.
    expected : str or None
        The expected bandwidths of the rows: a file, or the name of a link.
    near : float
        The fraction of the expected bandwidth that is enough.
    split : RankSplit or None
        The split of the ranks into groups that measure at the same time.
    device : int or None
        This rank's device; None for its number on the node.
    """

    collectives: tuple[Benchmark, ...]
    backends: tuple[str, ...]
    algorithms: tuple[str, ...] | None
    types: tuple[str, ...]
    ops: tuple[str, ...]
    root: int
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
        """Return the options with a variant's algorithm."""
        return replace(self, algorithms=(variant.algorithm,)) if variant.algorithm else self

    @property
    def sizes(self) -> Sizes:
        """The sizes to measure."""
        config = self.config
        limits = config.minimum_bytes, config.maximum_bytes
        return Sizes(*limits, config.step_factor, config.step_bytes)

    @property
    def phases(self) -> list[tuple[Variant, ...]]:
        """The variants that are open in each phase: one for each backend, or both of ``--interleave`` in one phase."""
        if self.variants is None:
            return [(Variant("", backend),) for backend in self.backends]
        default = self.backends[0]
        return [tuple(replace(each, backend=each.backend or default) for each in self.variants)]

    def pairs(self, collective: Benchmark) -> tuple[Pair, ...]:
        """Return the pairs of type and reduction that have a meaning for a collective.

        Raises
        ------
        UsageError
            If no pair has a meaning.
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
        """Whether to time every repetition too, and not only the block."""
        stored = self.output is not None or self.csv is not None or self.expected is not None
        return self.config.per_iter_timing or stored or self.variants is not None

    def refuse_device_flags(self, why: str) -> None:
        """Raise if a flag is given that is for device arrays alone.

        Parameters
        ----------
        why : str
            The end of the message: why the arrays are on the host, and a remedy.
        """
        for name, flag in _ON_DEVICE.items():
            if value := getattr(self.config, name):
                raise UsageError(f"{flag.format(value)}, and {why}")

    def skipped(self) -> tuple[str, ...]:
        """Return the pairs without a meaning, such as ``"avg on bool"``; empty if no collective reduces."""
        if not any(collective.what.reduces for collective in self.collectives):
            return ()
        pairs = product(self.types, self.ops)
        return tuple(f"{op} on {kind}" for kind, op in pairs if not _meaningful(kind, op))

    def roots(self, collective: Benchmark, ranks: int) -> tuple[int, ...]:
        """Return the roots with which a collective is measured; -1 for a collective without a root.

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
