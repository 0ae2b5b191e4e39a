"""A run that another program measured: its lines, its printed rows, and the facts that a results file stores of it.

- `streams` returns the lines of a log without the prefixes of launchers and loggers, a stream for each origin. A prefix is
  known by what it stands before, whatever its form is.
- `cause` says why a program ended.
- `ImportedRun` is a run to store, and `LeftOutTable` a table that is not stored, with the reason.
- `measured` returns what a table has measured, and checks its rows. The log names collective and number of ranks, or
  the caller does. A printed figure stands for all numbers that round to it: the bus bandwidth has to be one that size,
  time and ranks can give (``GetBw`` of each of nccl-tests' programs).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hpccomm.contracts.collectives import OF_NCCL_TESTS
from hpccomm.results.facts import UNKNOWN_LAUNCHER
from hpccomm.results.schema import (
    Config,
    RankInfo,
    Row,
    RunInfo,
    recorded_environment,
    recorded_slurm,
)
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.patterns import TYPES
from hpccomm.units import grouped

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T _-]|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d "
_STAMP = rf"(?:(?:{_DATE})?{_TIME}(?: ?(?:Z|[+-]\d\d:?\d\d)| \d{{4}}(?=[\[\]<]))?|\d+\.\d{{3,}})"
"""A time: with a date, or in seconds since 1970 or since the system began."""

_ROW = re.compile(r"\d+$|[\d.]+\s+[\d.]")
"""How a row begins, which may have a comment behind it."""

_LONGEST = 200
"""Characters of a prefix."""

_MOST_SHAPES = 100
"""Prefixes of a log, without times and numbers."""

_TAG = r"\[(?:\d+,)*\d+\](?:<std\w+>)?:?"
_LAST_TAG = re.compile(rf"{_TAG}\s*$")
_AMID = re.compile(rf"(?<=\S)({_TAG})")
"""A tag amid a row, of a launcher that tags each write."""

_UNSTABLE = re.compile(rf"{_STAMP}|\d+|<std\w+>|[:\s]+$")
"""Parts of a prefix that do not say who printed the line; of its numbers, some do."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line.

    Attributes
    ----------
    number : int
        Of the line in the log where it begins, from 1.
    text : str
        Without what stands before it.
    """

    number: int
    text: str


def streams(text: str) -> list[list[LogLine]]:
    """Return the lines of a log without the prefixes of launchers and loggers, a stream for each origin.

    A launcher that tags each write instead of each line has tags amid a row. What follows such a tag is a line of its
    own, and `nccl_text` puts the row together.
    """
    raw = re.split(r"\r*\n|\r", text)
    prefixes = Prefixes(raw)
    by_source = grouped(
        (source, LogLine(number, piece))
        for number, line in enumerate(raw, 1)
        for source, piece in prefixes.without(line)
    )
    return list(by_source.values())


class Prefixes:
    """What launchers and loggers print before the lines of a log: what stands before ``#`` more than once.

    Parameters
    ----------
    lines : list of str
        The log.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        heads = (line[:_LONGEST].partition("#") for line in lines)
        before = (head.strip() for head, hash_, _ in heads if hash_)
        shapes = Counter(_shape(each) for each in before if each and not _ROW.match(each))
        common = [each for each, number in shapes.most_common(_MOST_SHAPES) if number > 1]
        common.sort(key=len, reverse=True)
        self._pattern = re.compile(rf"\s*(?:{'|'.join(common) or '(?!)'}) ?")
        found = [match.groups() for match in map(self._pattern.match, lines) if match]
        columns = [Counter(filter(None, column)) for column in zip(*found, strict=True)]
        # A number of few values says who printed a line; of many it is a time, or counts.
        self._tells = [4 * len(values) <= values.total() for values in columns]

    def without(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield the pieces of a line, each with who has printed it."""
        match = self._pattern.match(line)
        if match is None:
            yield "", line
            return
        before, rest = match[0], line[match.end() :]
        tag = _LAST_TAG.search(before)
        first, *more = _AMID.split(rest) if tag else [rest]
        yield self._source(before), first
        for each, piece in zip(more[::2], more[1::2], strict=True):
            yield self._source(_LAST_TAG.sub(each, before)), piece

    def _source(self, before: str) -> str:
        match = self._pattern.match(before)
        numbers = match.groups() if match else ()
        told = (each for each, tells in zip(numbers, self._tells, strict=False) if each and tells)
        return " ".join([_UNSTABLE.sub("", before), *told])


def _shape(before: str) -> str:
    """Return the pattern of a prefix: any times, any numbers, and any stream of a rank."""
    parts = (re.split(r"\d+", part) for part in re.split(_STAMP, before))
    shape = _STAMP.join(r"(\d+)".join(map(re.escape, words)) for words in parts)
    return re.sub(r"<std\w+>", r"<std\\w+>", shape)


_FAILURES = re.compile(
    r"Test (?:CUDA|HIP|NCCL|CURAND) failure .*|Test timeout .*|(?:NCCL|CUDA|HIP|CuRAND) (?:failure|error) .*"
    r"|DATA VALIDATION ERROR.*|Invalid number of GPUs.*|Segmentation fault.*|[Oo]ut of [Mm]emory.*"
)
_ENDS = re.compile(
    r"exited on signal|exited with (?:status|exit code|code) [1-9]|\bCANCELLED\b|oom-kill|Killed$|Test failure "
    r"|(?:srun|slurmstepd|prterun|mpirun): error: |^\^C"
)
_WARNING = re.compile(r"NCCL WARN .*")
_MOST = 200


def cause(
    log: Sequence[LogLine], begin: int, end: int | None, last: int | None, *, warned: bool
) -> str:
    """Return the line that says why a program ended; empty without one.

    A failed call says more than the program's end, and both say more than a warning.

    Parameters
    ----------
    log : sequence of LogLine
        All lines.
    begin, end : int
        The first line of the program, and the one behind its last; None for the end of the log.
    last : int or None
        The line of its last row: a warning before that was none of the cause.
    warned : bool
        Whether warnings count.
    """
    failure = ended = warning = ""
    for line in log:
        if line.number < begin or (end is not None and line.number >= end):
            continue
        if not failure and (match := _FAILURES.search(line.text)):
            failure = match[0]
        elif not ended and _ENDS.search(line.text):
            ended = line.text
        elif warned and not warning and line.number >= (last or begin):
            warning = match[0] if (match := _WARNING.search(line.text)) else ""
    return (failure or ended or warning).strip()[:_MOST]


COMPLETED = "completed"
INTERRUPTED = "failed: interrupted: "
"""Beginning of the status of a run that did not come to its end; the cause follows."""

CUT = INTERRUPTED + "the log ends before the run does"
"""Status of a run whose log has no end, and no cause of it."""

LIMIT = 1 << 63
"""Of the integers of a results file."""

NAMES = {name.replace("_", ""): name for name in OF_NCCL_TESTS} | {
    "reducescatterblock": "reduce_scatter",
    "bcast": "broadcast",
}
"""Names that programs have for a collective, without underscores."""


@dataclass(slots=True)
class ImportedRun:
    """One run of a log.

    Attributes
    ----------
    info : RunInfo
        Its facts, as far as the log has them.
    rows : list of Row
        Its measurements.
    samples : list of ndarray or None
        Seconds of each repetition on each rank, for each row.
    status : str
        ``"completed"``, or ``"failed: "`` and why.
    ended : datetime or None
        When it ended, if the log says so.
    line : int
        Where it begins in the log, from 1.
    notes : list of str
        What is not stored.
    """

    info: RunInfo
    rows: list[Row] = field(default_factory=list)
    samples: list[np.ndarray | None] = field(default_factory=list)
    status: str = COMPLETED
    ended: datetime | None = None
    line: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """A table of a log that is not stored.

    Attributes
    ----------
    line : int
        Where it begins in the log, from 1.
    what : str
        The table.
    why : str
        The reason, and what to do.
    unlike : bool
        Whether the table is whole, but measures something that hpccomm has no counterpart of.
    """

    line: int
    what: str
    why: str
    unlike: bool = False


LogTable = ImportedRun | LeftOutTable
"""The outcome of a table."""


@dataclass(frozen=True, slots=True)
class LogDefaults:
    """The caller's facts about a log.

    Attributes
    ----------
    name : str
        Of the log, for messages.
    started : datetime
        When the run started, if the log does not say: the time of the file.
    user : str
        Who owns the file.
    collective : str or None
        What was measured, if the log does not say.
    ranks : int or None
        How many ranks there were, if the log does not say.
    """

    name: str
    started: datetime
    user: str
    collective: str | None = None
    ranks: int | None = None


def collective_of(name: str) -> str:
    """Return hpccomm's name of a collective, or of a program that measures one."""
    name = re.split(r"[/\\]", name)[-1].lower()
    # all_reduce_perf_mpi, all_reduce_perf.exe
    name = re.sub(r"_perf(?:_\w+)?(?:\.exe)?$", "", name)
    return NAMES.get(name.replace("_", ""), name)


def nccl_version(code: int) -> str:
    """Return NCCL's version code in its usual form."""
    from hpccomm.backends.nccl.facts import version_text  # which loads a backend

    return version_text(code)


def unknown_ranks(count: int) -> tuple[RankInfo, ...]:
    """Return a number of ranks without any other facts."""
    return tuple(map(RankInfo, range(count)))


def ranks_of(listed: Sequence[RankInfo], share: int = 1) -> int:
    """Return how many ranks took part in a call, by what a log lists: those of the first one's group.

    Parameters
    ----------
    listed : sequence of RankInfo
        The listed ranks, in their order; of one group some may be missing.
    share : int
        How many ranks each stands for.
    """
    if not listed:
        return 0
    groups = [rank.group for rank in listed]
    if len(set(groups)) > 1:
        return groups.count(groups[0]) * share
    return max(listed[-1].rank + share, len(listed) * share)


def settings_of(rows: Sequence[Row], **known: Any) -> Config:
    """Return the settings of rows, where the log says no more."""
    sizes = [row.bytes for row in rows] or [0]
    unknown = dict.fromkeys(("step_factor", "step_bytes", "iterations", "warmup_iters"), 0)
    sized = {"minimum_bytes": min(sizes), "maximum_bytes": max(sizes)}
    return Config(**{**sized, **unknown, **known})


def status_of(rows: Sequence[Row], wrong: int = 0) -> str:
    """Return how a run ended whose log says how many of its values are `wrong`, or each row does."""
    wrong = wrong or sum(row.wrong for row in rows if row.wrong > 0)
    return f"failed: {wrong} values are out of bounds" if wrong else COMPLETED


def lacking(collective: str | None, ranks: int | None) -> str:
    """Return why a table is left out of which neither the log nor the caller says one of these."""
    wanted = [
        *([] if collective else [("which collective it measured", "--collective NAME")]),
        *([] if ranks else [("how many ranks there were", "--ranks N")]),
    ]
    said, flags = (" and ".join(each) for each in zip(*wanted, strict=True))
    return f"does not say {said}; give {flags}"


SLOW = "failed: the average bus bandwidth is below what was asked for"
"""Status of a run that nccl-tests has found too slow."""


def run_info(
    defaults: LogDefaults,
    config: Config,
    ranks: Sequence[RankInfo],
    versions: dict[str, str],
    arguments: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> RunInfo:
    """Return the facts of a run, where the log says no more."""
    words, recorded = tuple(arguments), recorded_environment(environment)
    of_run = defaults.started, defaults.user, UNKNOWN_LAUNCHER, words, (), config, tuple(ranks)
    return RunInfo(*of_run, versions, recorded, recorded_slurm(environment))


ITEMSIZES = {name: dtype.itemsize for name, dtype in TYPES.items()} | {
    "char": 1,
    "int": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,  # of old versions, and of rccl-tests
}
"""Bytes of an element, by the name of its type."""

_EXACT = 1e-6
"""Error of figures that are printed in full: nccl-tests' JSON has six decimals."""


class Unfit(Exception):
    """Why a table is not stored; caught where tables are read, never seen outside.

    Parameters
    ----------
    why : str
        The reason, and what to do.
    unlike : bool
        As of `LeftOutTable`.
    """

    def __init__(self, why: str, *, unlike: bool = False) -> None:
        super().__init__(why)
        self.unlike = unlike


class Figure(NamedTuple):
    """A printed number, and half a unit of its last digit; 0 for one that is printed in full."""

    value: float
    half: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that may print so."""
        slack = self.half + _EXACT * (1 + abs(self.value))
        return self.value - slack, self.value + slack

    def refined(self, exact: float) -> float:
        """Return a number that was computed if it prints so, else the printed one."""
        return exact if abs(exact - self.value) <= self.half else self.value


def figure(text: str) -> Figure:
    """Return a printed number.

    Raises
    ------
    ValueError
        If the text is not a number.
    """
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Figure(float(text), 0.5 * 10.0 ** (int(exponent or 0) - decimals))


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """Half a line of a table, as it is printed.

    Attributes
    ----------
    line : int
        Of the log, from 1.
    dtype, op : str
        As printed; empty if not printed.
    root : int
        -1 without one.
    size, count : int
        Bytes, and elements; `count` is -1 if not printed.
    in_place : bool
        Whether it is the half in place.
    time, algbw, busbw : Figure
        Microseconds, and 1e9 B/s.
    wrong : int
        -1 if it is not printed.
    finished : float
        When it was measured, since 1970 in seconds; 0 if it is not printed.
    iterations : int
        Repetitions; 0 if they are not printed.
    repetitions : dict or None
        Times of repetitions, as nccl-tests' JSON has them.
    """

    line: int
    dtype: str
    op: str
    root: int
    size: int
    count: int
    in_place: bool
    time: Figure
    algbw: Figure
    busbw: Figure
    wrong: int
    finished: float = 0.0
    iterations: int = 0
    repetitions: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a table is of, as its log says, or else the caller.

    Attributes
    ----------
    collective : str
        The collective.
    ranks : int
        How many took part in a call: those of a group.
    stated : bool
        Whether the log says both.
    notes : tuple of str
        What the caller says and the log says otherwise.
    """

    collective: str
    ranks: int
    stated: bool
    notes: tuple[str, ...]

    def rows(
        self,
        printed: Sequence[PrintedRow],
        backend: str,
        algorithm: str = "auto",
        *,
        host_time: bool = False,
        own: bool = False,
    ) -> list[Row]:
        """Return the rows of a results file: printed figures, with the decimals that follow from the time.

        Parameters
        ----------
        printed : sequence of PrintedRow
            The rows.
        backend, algorithm : str
            Of all rows.
        host_time : bool
            Whether the time is the host's, of which the bandwidth is not.
        own : bool
            Whether hpccomm has printed them, whose counts and roots are not those of nccl-tests.

        Raises
        ------
        Unfit
            If a row is not of this collective on so many ranks.
        """
        # nccl-tests' all-to-all-v counts what the busiest rank has.
        timed = not host_time and self.collective != "all_to_all_v"
        rows = []
        for row in printed:
            numbers = row.root, row.size, row.count, row.wrong
            if max(len(row.dtype), len(row.op)) > 32 or max(map(abs, numbers)) >= LIMIT:
                raise Unfit("has names or numbers that no program prints")
            if not self._fits(row, timed=timed) or not (own or self._belongs(row)):
                raise Unfit(self._contradiction(row))
            carried, factor = self._factors
            algbw, busbw = row.algbw.value, row.busbw.value
            if row.time.value and not host_time:
                base = row.size / row.time.value / 1e3
                algbw, busbw = row.algbw.refined(base * carried), row.busbw.refined(base * factor)
            op = row.op or ("sum" if COLLECTIVES[self.collective].what.reduces else "none")
            case = self.collective, backend, algorithm, row.dtype, op, row.root, row.size
            figures = row.count, row.in_place, row.time.value, algbw, busbw, row.wrong
            rows.append(Row(*case, *figures, row.iterations, row.finished))
        return rows

    @property
    def _factors(self) -> tuple[float, float]:
        """Algorithm and bus bandwidth over size / time."""
        benchmark = COLLECTIVES[self.collective]
        carried = benchmark.carried(self.ranks)
        return carried, carried * benchmark.what.bus_factor(self.ranks)

    def _fits(self, row: PrintedRow, *, timed: bool) -> bool:
        """Whether the bus bandwidth may be that of size and time, or else of the algorithm bandwidth."""
        if timed:
            factor = row.size / 1e3 * self._factors[1]
            least, most = row.time.bounds
            low, high = factor / most, factor / max(least, _EXACT)
        else:
            factor = COLLECTIVES[self.collective].what.bus_factor(self.ranks)
            low, high = (each * factor for each in row.algbw.bounds)
        least, most = row.busbw.bounds
        return low <= most and least <= high

    def _belongs(self, row: PrintedRow) -> bool:
        """Whether nccl-tests prints such a reduction, root and count for such a size."""
        benchmark = COLLECTIVES[self.collective]
        named = row.op not in ("", "none") and not benchmark.names_op
        if (row.op == "none" if benchmark.what.reduces else named) or (
            benchmark.what.rooted != (row.root >= 0)
        ):
            return False
        itemsize = ITEMSIZES.get(row.dtype, 0)
        if not itemsize or row.count <= 0 or self.collective == "all_to_all_v":
            return True
        return row.size == row.count * itemsize * (self.ranks if benchmark.what.blockwise else 1)

    def _contradiction(self, row: PrintedRow) -> str:
        base = row.size / row.time.value / 1e3 if row.time.value else 0.0
        return (
            f"contradicts {'itself' if self.stated else 'the flags'}: {row.size} B with a count of {row.count} in "
            f"{row.time.value:g} us and a bus bandwidth of {row.busbw.value:g} GB/s (line {row.line}) are not "
            f"{self.collective}'s on {self.ranks} ranks, which would be {base * self._factors[1]:.2f}"
        )


def measured(name: str, ranks: int, defaults: LogDefaults) -> Measured:
    """Return what a table is of.

    Parameters
    ----------
    name : str
        The collective that the log names; empty if it names none.
    ranks : int
        How many ranks the log lists; 0 if it lists none.
    defaults : LogDefaults
        What the caller says.

    Raises
    ------
    Unfit
        If neither says it, or hpccomm has no such collective.
    """
    collective, number = name or defaults.collective, ranks or defaults.ranks
    if not collective or not number:
        raise Unfit(lacking(collective, number))
    if collective not in COLLECTIVES:
        raise Unfit(f"{collective} has no counterpart in hpccomm", unlike=True)
    asked = ("--collective", defaults.collective, name), ("--ranks", defaults.ranks, ranks)
    notes = (
        f"{flag} {value} contradicts the log, and is not used"
        for flag, value, said in asked
        if value and said and value != said
    )
    return Measured(collective, number, bool(name and ranks), tuple(notes))
