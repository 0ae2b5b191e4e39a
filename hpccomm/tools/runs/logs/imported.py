"""A run that another program measured: its lines, its printed rows, and the facts that a results file stores of it.

- `streams` returns the lines of a log without the prefixes of launchers and loggers, a stream for each origin. A
  prefix of any form is found by the text behind it.
- `cause` says why a program ended.
- `StatedTable` is a table as a log states it. `stored` checks it, and returns the run to store (`ImportedRun`) or the
  reason why not (`LeftOutTable`). The log names collective and number of ranks, or the caller does. A printed figure
  stands for all numbers that round to it, and size, time and ranks must be able to give the bus bandwidth (``GetBw``
  of each of nccl-tests' programs).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

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
"""The beginning of a row. A comment may follow the row."""

_LONGEST = 200
"""Most characters of a prefix."""

_MOST_SHAPES = 100
"""Most prefixes of a log. Prefixes that differ in times and numbers alone count once."""

_TAG = r"\[(?:\d+,)*\d+\](?:<std\w+>)?:?"
_LAST_TAG = re.compile(rf"{_TAG}\s*$")
_AMID = re.compile(rf"(?<=\S)({_TAG})")
"""A tag inside a row, by a launcher that tags each write."""

_UNSTABLE = re.compile(rf"{_STAMP}|\d+|<std\w+>|[:\s]+$")
"""Parts of a prefix that do not tell who printed the line. Some of its numbers do."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line.

    Attributes
    ----------
    number : int
        Number of the line of the log in which it begins, from 1.
    text : str
        Its text without the prefix.
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
    """The prefixes of launchers and loggers in a log: the texts that stand before ``#`` more than once.

    Parameters
    ----------
    lines : list of str
        The lines of the log.
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
        # A number with few values tells who printed a line. One with many values is a time or a count.
        self._tells = [4 * len(values) <= values.total() for values in columns]

    def without(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield the pieces of a line, each with its source."""
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


_FAILED = re.compile(
    r"Test (?:CUDA|HIP|NCCL|CURAND) failure .*|Test timeout .*|(?:NCCL|CUDA|HIP|CuRAND) (?:failure|error) .*"
    r"|DATA VALIDATION ERROR.*|Invalid number of GPUs.*|Segmentation fault.*|[Oo]ut of [Mm]emory.*"
)
_ENDED = re.compile(
    r".*(?:exited on signal|exited with (?:status|exit code|code) [1-9]|\bCANCELLED\b|oom-kill|Killed$|Test failure "
    r"|(?:srun|slurmstepd|prterun|mpirun): error: |^\^C).*"
)
_WARNED = re.compile(r"NCCL WARN .*")
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
        Number of the program's first line, and of the first line after it; None for the end of the log.
    last : int or None
        Number of the line of its last row: an earlier warning was not the cause.
    warned : bool
        Whether warnings count.
    """
    own = [line for line in log if begin <= line.number and (end is None or line.number < end)]
    late = [line for line in own if warned and line.number >= (last or begin)]
    for pattern, lines in ((_FAILED, own), (_ENDED, own), (_WARNED, late)):
        matches = (pattern.search(line.text) for line in lines)
        if match := next(filter(None, matches), None):
            return match[0].strip()[:_MOST]
    return ""


COMPLETED = "completed"
INTERRUPTED = "failed: interrupted: "
"""Beginning of the status of a run that was interrupted; the cause follows."""

CUT = INTERRUPTED + "the log ends before the run does"
"""Status of a run that the log does not finish, and for which it has no cause."""

SLOW = "failed: the average bus bandwidth is below what was asked for"
"""Status of a run that nccl-tests has found too slow."""

LIMIT = 1 << 63
"""The integers of a results file are below this."""

NAMES = {name.replace("_", ""): name for name in OF_NCCL_TESTS} | {
    "reducescatterblock": "reduce_scatter",
    "bcast": "broadcast",
}
"""Names that programs have for a collective, without underscores."""

ITEMSIZES = {name: dtype.itemsize for name, dtype in TYPES.items()} | {
    "char": 1,
    "int": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,  # of old versions, and of rccl-tests
}
"""Bytes of an element, by the name of its type."""

_MOST_NOTES = 3
"""Notes kept of a table without rows."""

_EXACT = 1e-6
"""Error of figures that are printed in full: nccl-tests' JSON has six decimals."""


@dataclass(frozen=True, slots=True)
class LogDefaults:
    """The caller's facts about a log.

    Attributes
    ----------
    name : str
        Name of the log, for messages.
    started : datetime
        When the run started, if the log does not say: the time of the file.
    user : str
        Owner of the file.
    collective : str or None
        The collective, if the log does not say it.
    ranks : int or None
        Number of ranks, if the log does not say it.
    """

    name: str
    started: datetime
    user: str
    collective: str | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """Half a line of a table, as it is printed.

    Attributes
    ----------
    line : int
        Number of its line in the log, from 1.
    row : Row
        The printed values. It lacks collective, backend, algorithm, decimals of its figures, and perhaps the reduction.
    halves : tuple of float
        Half a unit of the last digit of time, algorithm and bus bandwidth; 0 for those that are printed in full.
    samples : ndarray or None
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    """

    line: int
    row: Row
    halves: tuple[float, float, float] = (0.0, 0.0, 0.0)
    samples: np.ndarray | None = None


@dataclass(slots=True)
class StatedTable:
    """A table, as a log states it.

    Attributes
    ----------
    line : int
        Number of its first line in the log, from 1.
    what : str
        Its name in messages. Without a name they give the number of its rows.
    collective : str
        The collective that it measures; empty if the log does not say it.
    number : int
        Number of ranks in a call, which are those of a group; 0 if the log does not say it.
    rows : list of PrintedRow
        The halves of its whole rows.
    backend, algorithm : str
        Those of all rows.
    host_time : bool
        Whether the time is the host's. The bandwidth does not follow from that time.
    own : bool
        Whether counts and roots may differ from those of nccl-tests, as in tables that hpccomm has printed.
    program : list of str
        The command line, or the program's name; empty if the log does not say.
    config : Config or None
        Its settings.
    ranks : sequence of RankInfo
        All ranks; empty if the log does not list all.
    versions, environment : dict of str to str
        Versions of programs and libraries; environment variables.
    started, ended : datetime or None
        When it began and ended, if the log says it.
    wrong : int or None
        Number of values out of bounds, from the line at its end; None without that line.
    status : str
        How it ended, apart from values out of bounds.
    cause : str
        Why it was interrupted, as the log says; else empty.
    notes : list of str
        Sentences about incomplete rows, and about other parts that are not stored.
    """

    line: int
    what: str = ""
    collective: str = ""
    number: int = 0
    rows: list[PrintedRow] = field(default_factory=list)
    backend: str = "nccl"
    algorithm: str = "auto"
    host_time: bool = False
    own: bool = False
    program: list[str] = field(default_factory=list)
    config: Config | None = None
    ranks: Sequence[RankInfo] = ()
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    started: datetime | None = None
    ended: datetime | None = None
    wrong: int | None = None
    status: str = COMPLETED
    cause: str = ""
    notes: list[str] = field(default_factory=list)


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
        When it ended, if the log says it.
    line : int
        Number of its first line in the log, from 1.
    notes : list of str
        Sentences about parts that are not stored.
    """

    info: RunInfo
    rows: list[Row]
    samples: list[np.ndarray | None]
    status: str
    ended: datetime | None
    line: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class LeftOutTable:
    """A table of a log that is not stored.

    Attributes
    ----------
    line : int
        Number of its first line in the log, from 1.
    what : str
        The table in words.
    why : str
        The reason, and what to do.
    unlike : bool
        Whether the table is whole, but measures something without a counterpart in hpccomm.
    """

    line: int
    what: str
    why: str
    unlike: bool = False


LogTable = ImportedRun | LeftOutTable
"""The outcome of a table."""


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


def ranks_of(listed: Sequence[RankInfo], share: int = 1) -> int:
    """Return the number of ranks in a call, from the ranks that a log lists: those of the first one's group.

    Parameters
    ----------
    listed : sequence of RankInfo
        The listed ranks, in order. If there is one group, some may be missing.
    share : int
        Number of ranks that each stands for.
    """
    if not listed:
        return 0
    groups = [rank.group for rank in listed]
    if len(set(groups)) > 1:
        return groups.count(groups[0]) * share
    return max(listed[-1].rank + share, len(listed) * share)


def settings_of(rows: Sequence[Row], **known: Any) -> Config:
    """Return the settings of rows; those that are not `known`, and do not follow from the rows, are 0."""
    sizes = [row.bytes for row in rows] or [0]
    unknown = dict.fromkeys(("step_factor", "step_bytes", "iterations", "warmup_iters"), 0)
    sized = {"minimum_bytes": min(sizes), "maximum_bytes": max(sizes)}
    return Config(**{**sized, **unknown, **known})


def half_unit(text: str) -> float:
    """Return half a unit of the last digit of a printed number.

    Raises
    ------
    ValueError
        If the exponent is not a number.
    """
    mantissa, _, exponent = text.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def stored(table: StatedTable, defaults: LogDefaults) -> LogTable:
    """Return the run of a table, if its figures agree with its collective and ranks; else why it is left out."""
    of = f" of {table.collective}" if table.collective else ""
    what = f"{len(table.rows)} rows{of}" if table.rows else "a table"
    left_out = partial(LeftOutTable, table.line, table.what or what)
    if not table.rows:
        reasons = "; ".join(filter(None, [*table.notes[:_MOST_NOTES], table.cause]))
        return left_out(f"has no whole row{reasons and ': ' + reasons}")
    collective, ranks = table.collective or defaults.collective, table.number or defaults.ranks
    if not collective or not ranks:
        wanted = [
            *([] if collective else [("which collective it measured", "--collective NAME")]),
            *([] if ranks else [("how many ranks there were", "--ranks N")]),
        ]
        said, flags = (" and ".join(each) for each in zip(*wanted, strict=True))
        return left_out("; ".join([f"does not say {said}; give {flags}", *table.notes]))
    if collective not in COLLECTIVES:
        return left_out(f"{collective} has no counterpart in hpccomm", unlike=True)
    group = _Group(collective, ranks)
    objections = filter(None, (group.objection(each, table) for each in table.rows))
    if objection := next(objections, ""):
        return left_out("; ".join([objection, *table.notes]))
    rows = [group.completed(each, table) for each in table.rows]
    info = RunInfo(
        table.started or defaults.started,
        defaults.user,
        UNKNOWN_LAUNCHER,
        tuple(table.program) or (f"{collective}_perf",),
        (),
        table.config or settings_of(rows),
        tuple(table.ranks) or tuple(map(RankInfo, range(ranks))),
        table.versions,
        recorded_environment(table.environment),
        recorded_slurm(table.environment),
    )
    wrong = table.wrong or sum(row.wrong for row in rows if row.wrong > 0)
    status = f"failed: {wrong} values are out of bounds" if wrong else table.status
    asked = (
        ("--collective", defaults.collective, table.collective),
        ("--ranks", defaults.ranks, table.number),
    )
    notes = table.notes + [
        f"{flag} {value} contradicts the log, and is not used"
        for flag, value, said in asked
        if value and said and value != said
    ]
    samples = [each.samples for each in table.rows]
    return ImportedRun(info, rows, samples, status, table.ended, table.line, notes)


class _Group:
    """The ranks of a call. It checks and completes the printed rows."""

    def __init__(self, collective: str, ranks: int) -> None:
        self._collective, self._ranks = collective, ranks
        self._benchmark = COLLECTIVES[collective]
        self._bus_factor = self._benchmark.what.bus_factor(ranks)
        self._carried = self._benchmark.carried(ranks)
        """Algorithm bandwidth over size / time."""

    def objection(self, printed: PrintedRow, table: StatedTable) -> str:
        """Return why a row cannot be of this collective on so many ranks; empty if it can."""
        row = printed.row
        numbers = row.root, row.bytes, row.count, row.wrong
        if max(len(row.dtype), len(row.op)) > 32 or max(map(abs, numbers)) >= LIMIT:
            return "has names or numbers that no program prints"
        if self._fits(printed, host_time=table.host_time) and (table.own or self._belongs(row)):
            return ""
        factor = self._carried * self._bus_factor
        due = row.bytes / row.time / 1e3 * factor if row.time else 0.0
        return (
            f"contradicts {'itself' if table.collective and table.number else 'the flags'}: {row.bytes} B with a "
            f"count of {row.count} in {row.time:g} us and a bus bandwidth of {row.busbw:g} GB/s (line "
            f"{printed.line}) are not {self._collective}'s on {self._ranks} ranks, which would be {due:.2f}"
        )

    def _fits(self, printed: PrintedRow, *, host_time: bool) -> bool:
        """Whether the bus bandwidth can follow from size and time, or else from the algorithm bandwidth."""
        row, (time, algbw, busbw) = printed.row, printed.halves
        # nccl-tests' all-to-all-v counts the elements of the busiest rank.
        if host_time or self._collective == "all_to_all_v":
            low, high = (each * self._bus_factor for each in _bounds(row.algbw, algbw))
        else:
            due = row.bytes / 1e3 * self._carried * self._bus_factor
            least, most = _bounds(row.time, time)
            low, high = due / most, due / max(least, _EXACT)
        least, most = _bounds(row.busbw, busbw)
        return low <= most and least <= high

    def _belongs(self, row: Row) -> bool:
        """Whether nccl-tests prints such a reduction, root and count for such a size."""
        benchmark = self._benchmark
        named = row.op not in ("", "none") and not benchmark.names_op
        if (row.op == "none" if benchmark.what.reduces else named) or (
            benchmark.what.rooted != (row.root >= 0)
        ):
            return False
        itemsize = ITEMSIZES.get(row.dtype, 0)
        if not itemsize or row.count <= 0 or self._collective == "all_to_all_v":
            return True
        return row.bytes == row.count * itemsize * (self._ranks if benchmark.what.blockwise else 1)

    def completed(self, printed: PrintedRow, table: StatedTable) -> Row:
        """Return a row for a results file: with all names, and with the decimals that follow from the time."""
        row = printed.row
        algbw, busbw = row.algbw, row.busbw
        if row.time and not table.host_time:
            due = row.bytes / row.time / 1e3 * self._carried
            algbw = due if abs(due - algbw) <= printed.halves[1] else algbw
            due *= self._bus_factor
            busbw = due if abs(due - busbw) <= printed.halves[2] else busbw
        return replace(
            row,
            collective=self._collective,
            backend=table.backend,
            algorithm=table.algorithm,
            op=row.op or ("sum" if self._benchmark.what.reduces else "none"),
            algbw=algbw,
            busbw=busbw,
        )


def _bounds(value: float, half: float) -> tuple[float, float]:
    """Return the least and the largest number that can be printed as a value."""
    slack = half + _EXACT * (1 + abs(value))
    return value - slack, value + slack
