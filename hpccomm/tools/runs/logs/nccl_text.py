"""The text output of nccl-tests, rccl-tests and `hpccomm perf`: its columns, its tables, and runs of them.

A table has a head, rows and an end. `parse` reads them in each stream of a log.

Versions differ in columns: ``#wrong`` was once ``error``, old tables lack ``root`` or ``redop``, statistics of
repetitions and time stamps are optional. A row is printed in several writes (its case, each half,
...), and others may print between two of them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

from hpccomm.results.schema import UNCHECKED, Config, RankInfo, Row
from hpccomm.results.table import TIME_FORMAT
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import (
    ITEMSIZES,
    LeftOutTable,
    LogDefaults,
    LogLine,
    LogTable,
    PrintedRow,
    StatedTable,
    cause,
    half_unit,
    stored,
)

_HEADING = re.compile(r"size\s+count\s.*\balgbw\s+busbw\b.*")
_NAMES = {"op": "redop", "cputime": "time", "wrong": "#wrong"}
"""The usual names of columns, by those of some versions, and by one that has lost its ``#``."""

_ABSENT = "N/A"
_NUMBER = r"(?:N/A|nan|inf|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![\d.])"
_CELLS = {
    "size": r"\d+(?!\S)",
    "count": r"\d+(?!\S)",
    "type": r"(?:none|u?int|u?char|half|float|double|bfloat|fp?8|complex|bool)\w*(?!\S)",
    "redop": r"[a-z]\w*(?!\S)",
    "root": r"(?:-1|\d+)(?!\d)",
    "error": _NUMBER + r"\*?",
    "timestamp": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
}
_BLANK_HALF = r"[ ]{32}"
"""The half of a row that nccl-tests has not measured (``writeBenchMarkLineNullBody``)."""

_PLACES = re.compile(r"out-of-place|in-place")


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes
    ----------
    names : tuple of str
        Their names, in order.
    in_place : tuple of bool
        Whether each half is of arrays in place.
    host_time : bool
        Whether the time is the host's.
    """

    names: tuple[str, ...]
    in_place: tuple[bool, ...] = (False, True)
    host_time: bool = False

    @cached_property
    def _row(self) -> re.Pattern[str]:
        """The pattern of a row. Its last writes may be missing."""
        writes = [r"(?<![\w.-])"]
        for number, name in enumerate(self.names):
            if name in ("time", "i_min", "timestamp"):
                writes.append("")
            between = r"\s{1,20}" if number else ""
            cell = f"{between}({_CELLS.get(name, _NUMBER)})"
            # Some versions leave it blank.
            writes[-1] += f"(?:{cell})?" if name == "redop" else cell
        further = "(?P<end>)"
        for write in reversed(writes[1:]):
            further = f"(?:(?:{write}|{_BLANK_HALF}){further})?"
        return re.compile(writes[0] + further)

    def read(self, text: str) -> re.Match[str] | None:
        """Return the match of a row, or of its beginning; None for any other line.

        Its groups are the cells, None for a blank one. The last group, ``end``, is None if the row is not whole.
        Other programs' words may stand before the row and behind it.
        """
        row = self._row.search(text)
        return None if row is None or "#" in text[: row.start()] else row

    def measured(self, row: re.Match[str], line: int, iterations: int) -> list[PrintedRow]:
        """Return the halves of a whole row that were measured.

        Raises
        ------
        ValueError, OverflowError
            If a number or time cannot be read, or there are more figures than columns.
        """
        if re.match(r"[\d.+-]+(?:\s|$)", _behind(row)):
            raise ValueError("more figures than columns")
        named = list(zip(self.names, row.groups()[:-1], strict=True))
        begins = [at for at, name in enumerate(self.names) if name == "time"]
        lead = dict(named[: begins[0]])
        stamp = dict(named).get("timestamp")
        finished = datetime.strptime(stamp, TIME_FORMAT).astimezone().timestamp() if stamp else 0.0
        case = lead["type"] or "", lead.get("redop") or "", int(lead.get("root") or -1)
        size = int(lead["size"] or 0), int(lead["count"] or 0)
        rows = []
        for begin, in_place in zip(begins, self.in_place, strict=True):
            half = {name: text or _ABSENT for name, text in named[begin : begin + 4]}
            figures = [half[name] for name in ("time", "algbw", "busbw")]
            if _ABSENT in figures:
                continue
            # Old versions print the size of an error, which is not a count.
            wrong = half.get("#wrong", _ABSENT)
            wrong_values = UNCHECKED if wrong == _ABSENT else int(float(wrong))
            time, algbw, busbw = map(float, figures)
            halves = half_unit(figures[0]), half_unit(figures[1]), half_unit(figures[2])
            found = Row(
                *("", "", "", *case, *size, in_place),
                *(time, algbw, busbw, wrong_values, iterations, finished),
            )
            rows.append(PrintedRow(line, found, halves))
        return rows


def _behind(row: re.Match[str]) -> str:
    """Return the text behind the last cell."""
    return row.string[row.end() :].strip()


_HALF = "time", "algbw", "busbw", "#wrong"
MODERN = Columns(("size", "count", "type", "redop", "root", *_HALF, *_HALF))
"""The columns of most versions, for rows whose heading is lost."""


def heading(text: str, above: str) -> Columns | None:
    """Return the columns that a line names; None if it is not a heading.

    Parameters
    ----------
    text : str
        The line.
    above : str
        The last line that says which half is in place.
    """
    match = _HEADING.search(text)
    if match is None:
        return None
    words = re.findall(r"[\w#%]+(?!\S)", match[0])
    names = tuple(_NAMES.get(word, word) for word in words)
    halves = names.count("time")
    if names[:3] != ("size", "count", "type") or not halves:
        return None
    if names.count("algbw") != halves or names.count("busbw") != halves:
        return None  # damaged
    places = tuple(place == "in-place" for place in _PLACES.findall(above))
    in_place = places if len(places) == halves else (False, True)[:halves]
    return Columns(names, in_place, "cputime" in words) if len(in_place) == halves else None


_RANK = re.compile(
    r"Rank\s+(?P<rank>\d{1,9})\s+(?:Group\s+(?P<group>\d{1,9})\s+)?(?:Pid\s+(?P<pid>\d{1,9})\s+)?on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<device>-?\d{1,9})\s+\[(?P<hex>[^\]]*)\]\s*(?P<info>.*)"
)
_MANY = re.compile(r"#  (\d{1,9}) ranks on \d+ nodes?$")
_STARTING = re.compile(
    r"# Collective test starting: ([\w./\\-]+)(?: backend (\S+) algorithm (\S+))?"
)
_VERSION = re.compile(r"# (nccl-tests|hpccomm) version (\S+)(.*)|(rccl-tests): Version (\S+)")
_CONFIG = re.compile(r"nThread\W")
_OUT_OF_BOUNDS = re.compile(
    r"(?:^|#)\s*Out of bounds values\s*:\s*(?:(\d+)\s+(?:OK|FAILED)|N/A)(?![`'*])"
)
_BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*\S+\s+FAILED")
_CYCLE = re.compile(r"# Testing \d+ cycle")
_COMMAND = re.compile(r"(?:^|[\s/\\])(\w+?_perf\w*(?:\.exe)?)(?=\s|$)")
_DECIMALS = re.compile(r"(?<!\S)\d+\.\d+(?!\S)")

_SETTINGS = {
    "nThread": "nthreads",
    "nGpus": "ngpus",
    "minBytes": "minimum_bytes",
    "maxBytes": "maximum_bytes",
    "warmup iters": "warmup_iters",
    "iters": "iterations",
    "agg iters": "aggregated_iterations",
    "validation": "validation",
    "graph": "graph",
    "unalign": "unalign",
}
_VERSIONS, _NAMED, _SET, _LISTED, _HEADED, _FILLED, _CLOSED = range(7)
"""The stages of a table, in the order of its lines."""


@dataclass(slots=True)
class PrintedTable(StatedTable):
    """A table, as far as it is read.

    Attributes
    ----------
    listed : dict of int to RankInfo
        The listed ranks.
    folded : int
        Number of ranks, if `hpccomm show` has folded their list.
    layout : Columns or None
        Its columns; None before its heading.
    mixed : bool
        Whether lines of several programs are in it.
    behind : list of int
        Lines with rows and ends behind its own end. They may be another program's.
    ends : int
        Number of ends that were read.
    began : int
        The stage of its first line.
    stage : int
        The stage of the last line of its head, its rows or its end.
    begun : tuple of int and Match, or None
        A row that is not whole yet: its line, and its match.
    cycled : bool
        Whether sizes begin again with the next row.
    """

    stage: int = -1
    listed: dict[int, RankInfo] = field(default_factory=dict)
    folded: int = 0
    layout: Columns | None = None
    begun: tuple[int, re.Match[str]] | None = None
    cycled: bool = False
    mixed: bool = False
    behind: list[int] = field(default_factory=list)
    ends: int = 0
    began: int = 0

    @property
    def closed(self) -> bool:
        """Whether its end was read."""
        return self.wrong is not None

    def cut(self) -> None:
        """Note that the last row is not whole, if it is not."""
        if self.begun is not None:
            line, row = self.begun
            texts, behind = " ".join(filter(None, row.groups())), _behind(row)
            more = f", then {behind[:60]!r}" if behind else ""
            self.notes.append(f"line {line}: a row is cut: {texts!r}{more}")
            self.begun = None


def read(lines: Sequence[LogLine]) -> list[PrintedTable]:
    """Return the tables of one stream of a log, in order; a head without a table is one, too."""
    tables: list[PrintedTable] = []
    above = command = ""
    for line in lines:
        if _PLACES.search(line.text):
            above = line.text
        if "#" not in line.text and (called := _COMMAND.findall(line.text)):
            command = called[-1] if len(set(called)) == 1 else ""
        before = len(tables)
        _read(line, tables, above)
        if command and len(tables) > before:
            tables[-1].program, command = tables[-1].program or [command], ""
    for table in tables:
        table.cut()
    return tables


def _read(line: LogLine, tables: list[PrintedTable], above: str) -> None:
    text = line.text
    columns = heading(text, above)
    if columns is not None:
        table = _reached(_HEADED, line, tables)
        table.layout = columns
    elif version := _VERSION.search(text):
        table = _reached(_VERSIONS if version[1] else _SET, line, tables, again=bool(version[4]))
        table.versions[version[1] or version[4]] = version[2] or version[5]
        table.versions |= _others(version[3] or "")
        table.backend = "rccl" if version[4] else table.backend
    elif starting := _STARTING.search(text):
        table = _reached(_NAMED, line, tables)
        table.program = [starting[1]]
        table.backend = starting[2] or table.backend
        table.algorithm = starting[3] or table.algorithm
    elif _CONFIG.search(text):
        table = _reached(_SET, line, tables)
        table.config = _config(text)
    elif (rank := _RANK.search(text)) and text.lstrip()[:1] in "#R":
        table = _reached(_LISTED, line, tables, again=True)
        info = _rank(rank, table.listed.values())
        table.mixed |= info.rank in table.listed
        table.listed[info.rank] = info
    elif many := _MANY.search(text):
        _reached(_LISTED, line, tables, again=True).folded = int(many[1])
    elif bounds := _OUT_OF_BOUNDS.search(text):
        if tables:
            table = tables[-1]
            table.cut()
            table.ends += 1
            if table.closed:
                table.behind.append(line.number)
            else:
                table.stage, table.wrong = _CLOSED, int(bounds[1] or 0)
    elif tables and _BANDWIDTH.search(text):
        tables[-1].status = imported.SLOW
    elif tables and _CYCLE.search(text):
        tables[-1].cycled = True
    else:
        _read_row(line, tables)


def _reached(
    stage: int, line: LogLine, tables: list[PrintedTable], *, again: bool = False
) -> PrintedTable:
    """Return the table of a head's line: a new one if the last table has passed that stage."""
    last = tables[-1].stage if tables else _CLOSED
    if last > stage or (last == stage and not again):
        tables.append(PrintedTable(line.number, began=stage))
    tables[-1].cut()
    tables[-1].stage = stage
    return tables[-1]


def _read_row(line: LogLine, tables: list[PrintedTable]) -> None:
    """Read a line that may be a row or a part of one."""
    columns = tables[-1].layout if tables else None
    if columns is None:
        if MODERN.read(line.text) is None:
            return
        if not tables:
            tables.append(PrintedTable(line.number, began=_FILLED))
        tables[-1].notes.append(f"line {line.number}: the heading of its columns is lost")
        tables[-1].mixed |= len(tables) > 1 and not tables[-2].closed
        columns = tables[-1].layout = MODERN
    table, number = tables[-1], line.number
    row = columns.read(line.text)
    if row is None and table.begun is not None and line.text[:1].isspace():
        # Others have printed between its writes.
        number, begun = table.begun
        row = columns.read(begun[0] + line.text)
        if row is not None and row[0] == begun[0]:
            row = None
        table.begun = table.begun if row is None else None
    not_a_row = f"line {line.number}: not a row: {line.text.strip()[:80]!r}"
    if row is None:
        if table.stage < _CLOSED and _like_row(line.text):
            table.notes.append(not_a_row)
        return
    table.cut()
    if row["end"] is None:
        table.begun = number, row
        return
    try:
        rows = columns.measured(row, number, table.config.iterations if table.config else 0)
    except (ValueError, OverflowError) as error:
        table.notes.append(f"{not_a_row}: {error}")
        return
    if table.closed:
        table.behind.append(line.number)
        return
    table.mixed |= _steps_back(table, rows)
    table.stage = _FILLED
    table.rows += rows


def _like_row(text: str) -> bool:
    """Whether a line looks like a row: it begins with two numbers, or has four with decimals."""
    return "#" not in text and (
        re.match(r"\s*\d+(?:\s+\d+(?:\s|$)|\s*$)", text) is not None
        or len(_DECIMALS.findall(text)) >= 4
    )


def _steps_back(table: PrintedTable, rows: list[PrintedRow]) -> bool:
    """Whether a row cannot come after the last one if one program has printed both: sizes grow."""
    if not table.rows or not rows or "hpccomm" in table.versions:
        return False
    one, other = table.rows[-1].row, rows[0].row
    cycled, table.cycled = table.cycled, False
    if cycled or (one.dtype, one.op, one.root) != (other.dtype, other.op, other.root):
        return False
    # Blocks are rounded down: sizes that grow by few bytes may be equal, as those below the first block are.
    in_full = other.bytes == other.count * ITEMSIZES.get(other.dtype, 0)
    doubles = table.config is not None and table.config.step_factor > 1
    return other.bytes < one.bytes or (0 < other.bytes == one.bytes and (in_full or doubles))


def _others(text: str) -> dict[str, str]:
    """Return the versions of a text such as ``nccl-library=22907 numpy=2.4.1``; 22907 is 2.29.7."""
    versions = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = versions.pop("nccl-library", "")
    versions.pop("nccl-headers", None)
    return versions | ({"nccl": imported.nccl_version(int(code))} if code.isdigit() else {})


def _config(line: str) -> Config:
    values: dict[str, Any] = {}
    for key, name in _SETTINGS.items():
        pattern = rf"(?<!warmup )(?<!agg )\b{re.escape(key)}:?\s*(-?\d{{1,18}})\b"
        if value := re.search(pattern, line):
            values[name] = int(value[1])
    if step := re.search(r"step:\s*(\d{1,18})\((factor|bytes)\)", line):
        values[f"step_{step[2]}"] = int(step[1])
    return imported.settings_of([], **values)


def _rank(match: re.Match[str], before: Iterable[RankInfo]) -> RankInfo:
    hosts = list(dict.fromkeys(each.host for each in before))
    host = match["host"]
    info = match["info"].strip()
    cores = re.search(r", node (\d+), cores (\S*)$", info)
    where = int(match["rank"]), int(match["group"] or 0), host
    node, its = (int(cores[1]), cores[2]) if cores else ([*hosts, host].index(host), "")
    pci = "" if match["hex"] == "none" else match["hex"]
    process = node, int(match["pid"] or 0), its, int(match["device"])
    return RankInfo(*(*where, *process), pci, info[: cores.start()] if cores else info)


def parse(
    lines: Sequence[LogLine], log: Sequence[LogLine], defaults: LogDefaults
) -> Iterator[LogTable]:
    """Yield the tables in one stream of a log, in their order, as runs or with the reason why not.

    Parameters
    ----------
    lines : sequence of LogLine
        The stream.
    log : sequence of LogLine
        All lines of the log; the cause of a failure may be in any of them.
    defaults : LogDefaults
        Facts that the log may lack.
    """
    whole = (MODERN.read(line.text) for line in lines)
    if not any(heading(line.text, "") for line in lines) and not any(
        row and row["end"] is not None for row in whole
    ):
        return  # a head, or part of a row, may be anything
    tables = read(lines)
    ends = {one.line: other.line for one, other in pairwise(tables)}
    for group in _apart(tables):
        first = group[0]
        left_out = "what stands behind the end of the table is left out"
        first.notes += [f"line {number}: {left_out}" for number in first.behind]
        if len(group) > 1 or first.mixed:
            yield _interleaved(group)
            continue
        if not first.closed:
            last = first.rows[-1].line if first.rows else None
            first.cause = cause(log, first.line, ends.get(first.line), last, warned=True)
        yield _finished(first, defaults)


def _apart(tables: Sequence[PrintedTable]) -> Iterator[list[PrintedTable]]:
    """Yield the tables in groups: one table each, but all of programs whose output is mixed.

    Such programs begin before others end: their tables are one group until as many have ended as have begun. They
    have printed into each other if nothing else explains a group: rows stand behind another's end, or parts of a head
    do not begin as one.
    """
    first = min((table.began for table in tables), default=0)
    groups: list[list[PrintedTable]] = []
    running = 0
    for table in tables:
        if running <= 0:
            groups.append([])
            running = 0
        groups[-1].append(table)
        running += (table.began == first) - table.ends
    for group in groups:
        several = sum(table.began == first for table in group) > 1
        if any(
            table.mixed or (several and (table.behind or table.began > first)) for table in group
        ):
            yield group
        else:
            yield from ([table] for table in group if table.layout is not None or table.notes)


def _interleaved(group: list[PrintedTable]) -> LeftOutTable:
    rows = sum(len({row.line for row in table.rows}) + len(table.behind) for table in group)
    programs = sum(1 for table in group if table.layout is not None)
    number = f"{programs} programs print" if programs > 1 else "several programs print"
    return LeftOutTable(
        group[0].line,
        f"{rows} lines",
        f"{number} into each other, and nothing says whose row is whose; build nccl-tests with MPI=1, where one "
        "process prints for all, or run it with mpirun --tag-output or srun --label",
    )


def _finished(table: PrintedTable, defaults: LogDefaults) -> LogTable:
    """Return the run of a table."""
    columns = table.layout
    if not table.rows or columns is None:
        return stored(table, defaults)
    if not table.closed:
        last = table.rows[-1].row.bytes
        table.notes.append(f"the table is not finished: its last size is {last} B")
        table.status = imported.INTERRUPTED + table.cause if table.cause else imported.CUT
    listed = tuple(table.listed[rank] for rank in sorted(table.listed))
    if listed and len(listed) == listed[-1].rank + 1:
        table.ranks = listed
    table.number = table.folded or imported.ranks_of(listed)
    table.collective = imported.collective_of(*table.program) if table.program else ""
    table.own, table.host_time = "hpccomm" in table.versions, columns.host_time
    table.config = replace(
        table.config or imported.settings_of([each.row for each in table.rows]),
        report_cputime=columns.host_time,
        report_timestamps="timestamp" in columns.names,
    )
    return stored(table, defaults)
