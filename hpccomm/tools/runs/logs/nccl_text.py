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

from hpccomm.results.schema import UNCHECKED, Config, RankInfo
from hpccomm.results.table import TIME_FORMAT
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import (
    ITEMSIZES,
    ImportedRun,
    LeftOutTable,
    LogDefaults,
    LogLine,
    LogTable,
    PrintedRow,
    Unfit,
    cause,
    figure,
    measured,
)

_HEADING = re.compile(r"size\s+count\s.*\balgbw\s+busbw\b.*")
_NAMES = {"op": "redop", "cputime": "time", "wrong": "#wrong"}
"""Names of columns in some versions, and where ``#`` is lost; and the usual ones."""

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
"""What nccl-tests prints where it has measured in place only (``writeBenchMarkLineNullBody``)."""

_PLACES = re.compile(r"out-of-place|in-place")


@dataclass(frozen=True, slots=True)
class Cells:
    """A row, or its beginning.

    Attributes
    ----------
    line : int
        Of the log, where it begins.
    texts : tuple of str or None
        Its cells; None where one is blank, or has not come.
    read : str
        What of the line they are.
    rest : str
        What stands behind them.
    whole : bool
        Whether all of the row is there.
    """

    line: int
    texts: tuple[str | None, ...]
    read: str
    rest: str
    whole: bool


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes
    ----------
    names : tuple of str
        In their order.
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
        """The pattern of a row, of which the last writes may be missing."""
        writes = [r"(?<![\w.-])"]
        for number, name in enumerate(self.names):
            if name in ("time", "i_min", "timestamp"):
                writes.append("")
            between = r"\s{1,20}" if number else ""
            cell = f"{between}({_CELLS.get(name, _NUMBER)})"
            # Some leave it blank.
            writes[-1] += f"(?:{cell})?" if name == "redop" else cell
        further = "(?P<end>)"
        for write in reversed(writes[1:]):
            further = f"(?:(?:{write}|{_BLANK_HALF}){further})?"
        return re.compile(writes[0] + further)

    def read(self, line: int, text: str) -> Cells | None:
        """Return the cells of a row, or of its beginning; None for any other line.

        Parameters
        ----------
        line : int
            Of the log.
        text : str
            The line. Words of others may stand before the row and behind it.
        """
        row = self._row.search(text)
        if row is None or "#" in text[: row.start()]:
            return None
        rest = text[row.end() :].strip()
        return Cells(line, row.groups()[:-1], row[0], rest, row["end"] is not None)

    def measured(self, cells: Cells, iterations: int) -> list[PrintedRow]:
        """Return the halves of a whole row that were measured.

        Raises
        ------
        ValueError, OverflowError
            If a number or time cannot be read, or there are more figures than columns.
        """
        if re.match(r"[\d.+-]+(?:\s|$)", cells.rest):
            raise ValueError("more figures than columns")
        named = list(zip(self.names, cells.texts, strict=True))
        begins = [at for at, name in enumerate(self.names) if name == "time"]
        lead = dict(named[: begins[0]])
        stamp = dict(named).get("timestamp")
        finished = datetime.strptime(stamp, TIME_FORMAT).astimezone().timestamp() if stamp else 0.0
        rows = []
        for begin, in_place in zip(begins, self.in_place, strict=True):
            half = {name: text or _ABSENT for name, text in named[begin : begin + 4]}
            if _ABSENT in (half["time"], half["algbw"], half["busbw"]):
                continue
            # An error's size, as old versions print, is not a count.
            wrong = half.get("#wrong", _ABSENT)
            case = lead["type"] or "", lead.get("redop") or "", int(lead.get("root") or -1)
            size = int(lead["size"] or 0), int(lead["count"] or 0), in_place
            rates = figure(half["time"]), figure(half["algbw"]), figure(half["busbw"])
            wrong_values = UNCHECKED if wrong == _ABSENT else int(float(wrong))
            rows.append(
                PrintedRow(cells.line, *case, *size, *rates, wrong_values, finished, iterations)
            )
        return rows


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


_MOST_NOTES = 3
"""Notes kept of a table without rows."""

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
"""How far a table has come; its lines come in this order."""


@dataclass(slots=True)
class PrintedTable:
    """A table, as far as it is read.

    Attributes
    ----------
    line : int
        Where it begins, from 1.
    versions : dict of str to str
        Of programs and libraries.
    program : str
        Name of the program, from its head or a command above it; empty without one.
    backend, algorithm : str
        For its rows.
    config : Config or None
        Its settings.
    ranks : dict of int to RankInfo
        The listed ranks.
    folded : int
        How many there were, where `hpccomm show` has folded them.
    layout : Columns or None
        Its columns; None before its heading.
    rows : list of PrintedRow
        The halves of its whole rows.
    notes : list of str
        Its incomplete rows.
    wrong : int or None
        Values out of bounds, of its last lines; None if it has no end.
    slow : bool
        Whether its average bus bandwidth is too low.
    mixed : bool
        Whether lines of several programs are in it.
    behind : list of int
        Lines of rows and ends behind its own end, which may be another program's.
    ends : int
        How many ends have come.
    began : int
        The stage of its first line.
    stage : int
        How far it has come.
    begun : Cells or None
        A row that has not come to its end.
    cycled : bool
        Whether sizes begin again with the next row.
    """

    line: int
    stage: int = -1
    versions: dict[str, str] = field(default_factory=dict)
    program: str = ""
    backend: str = "nccl"
    algorithm: str = "auto"
    config: Config | None = None
    ranks: dict[int, RankInfo] = field(default_factory=dict)
    folded: int = 0
    layout: Columns | None = None
    rows: list[PrintedRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begun: Cells | None = None
    cycled: bool = False
    wrong: int | None = None
    slow: bool = False
    mixed: bool = False
    behind: list[int] = field(default_factory=list)
    ends: int = 0
    began: int = 0

    @property
    def ended(self) -> bool:
        """Whether its end has come."""
        return self.wrong is not None

    def cut(self) -> None:
        """Name the row that was begun, and has not come to its end."""
        if self.begun is not None:
            texts = " ".join(filter(None, self.begun.texts))
            behind = f", then {self.begun.rest[:60]!r}" if self.begun.rest else ""
            self.notes.append(f"line {self.begun.line}: a row is cut: {texts!r}{behind}")
            self.begun = None


def read(lines: Sequence[LogLine]) -> list[PrintedTable]:
    """Return the tables of one stream of a log, in their order, and heads without a table."""
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
            tables[-1].program, command = tables[-1].program or command, ""
    for table in tables:
        table.cut()
    return tables


def _modern(line: LogLine) -> Cells | None:
    """Return a row of most versions, which is known without its heading."""
    cells = MODERN.read(line.number, line.text)
    return cells if cells is not None and cells.whole else None


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
        table.program = starting[1]
        table.backend = starting[2] or table.backend
        table.algorithm = starting[3] or table.algorithm
    elif _CONFIG.search(text):
        table = _reached(_SET, line, tables)
        table.config = _config(text)
    elif (rank := _RANK.search(text)) and text.lstrip()[:1] in "#R":
        table = _reached(_LISTED, line, tables, again=True)
        info = _rank(rank, table.ranks.values())
        table.mixed |= info.rank in table.ranks
        table.ranks[info.rank] = info
    elif many := _MANY.search(text):
        _reached(_LISTED, line, tables, again=True).folded = int(many[1])
    elif bounds := _OUT_OF_BOUNDS.search(text):
        if tables:
            table = tables[-1]
            table.cut()
            table.ends += 1
            if table.ended:
                table.behind.append(line.number)
            else:
                table.stage, table.wrong = _CLOSED, int(bounds[1] or 0)
    elif tables and _BANDWIDTH.search(text):
        tables[-1].slow = True
    elif tables and _CYCLE.search(text):
        tables[-1].cycled = True
    else:
        _read_row(line, tables)


def _reached(
    stage: int, line: LogLine, tables: list[PrintedTable], *, again: bool = False
) -> PrintedTable:
    """Return the table that a line of its head belongs to: another one where the last is that far already."""
    last = tables[-1].stage if tables else _CLOSED
    if last > stage or (last == stage and not again):
        tables.append(PrintedTable(line.number, began=stage))
    tables[-1].cut()
    tables[-1].stage = stage
    return tables[-1]


def _read_row(line: LogLine, tables: list[PrintedTable]) -> None:
    """Take a line that is a row, part of one, or of no table."""
    columns = tables[-1].layout if tables else None
    if columns is None:
        row = MODERN.read(line.number, line.text)
        if row is None:
            return
        if not tables:
            tables.append(PrintedTable(line.number, began=_FILLED))
        tables[-1].notes.append(f"line {line.number}: the heading of its columns is lost")
        tables[-1].mixed |= len(tables) > 1 and not tables[-2].ended
        columns = tables[-1].layout = MODERN
    table = tables[-1]
    cells, begun = columns.read(line.number, line.text), table.begun
    if cells is None and begun is not None and line.text[:1].isspace():
        # Others have printed between its writes.
        cells = columns.read(begun.line, begun.read + line.text)
        if cells is not None and cells.read != begun.read:
            table.begun = None
        else:
            cells = None
    if cells is None:
        if table.stage < _CLOSED and _like_row(line.text):
            table.notes.append(f"line {line.number}: not a row: {line.text.strip()[:80]!r}")
        return
    table.cut()
    if not cells.whole:
        table.begun = cells
        return
    try:
        rows = columns.measured(cells, 0 if table.config is None else table.config.iterations)
    except (ValueError, OverflowError) as error:
        table.notes.append(f"line {line.number}: not a row: {line.text.strip()[:80]!r}: {error}")
        return
    if table.ended:
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
    one, other = table.rows[-1], rows[0]
    cycled, table.cycled = table.cycled, False
    if cycled or (one.dtype, one.op, one.root) != (other.dtype, other.op, other.root):
        return False
    # Blocks are rounded down: sizes that grow by few bytes may be equal, and those below the first block.
    in_full = other.size == other.count * ITEMSIZES.get(other.dtype, 0)
    doubles = table.config is not None and table.config.step_factor > 1
    return other.size < one.size or (0 < other.size == one.size and (in_full or doubles))


def _others(text: str) -> dict[str, str]:
    """Return versions such as ``nccl-library=22907``, where it is 2.29.7, and ``numpy=2.4.1``."""
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
        All lines of the log, where the cause of a failure is searched.
    defaults : LogDefaults
        Facts that the log may lack.
    """
    if not any(heading(line.text, "") or _modern(line) for line in lines):
        return  # a head or part of a row may be anything
    tables = read(lines)
    ends = {one.line: other.line for one, other in pairwise(tables)}
    for group in _apart(tables):
        first = group[0]
        left_out = "what stands behind the end of the table is left out"
        first.notes += [f"line {number}: {left_out}" for number in first.behind]
        if len(group) > 1 or first.mixed:
            yield _interleaved(group)
            continue
        why = ""
        if not first.ended:
            last = first.rows[-1].line if first.rows else None
            why = cause(log, first.line, ends.get(first.line), last, warned=True)
        yield _finished(first, why, defaults)


def _apart(tables: Sequence[PrintedTable]) -> Iterable[list[PrintedTable]]:
    """Return the tables in groups: one table each, but all of programs whose output is mixed.

    Such programs begin before others end: their tables are one group until as many have ended as have begun.
    """
    first = min((table.began for table in tables), default=0)
    group: list[PrintedTable] = []
    begun = 0
    for table in tables:
        if group and begun <= 0:
            yield from _split(group, first)
            group, begun = [], 0
        group.append(table)
        begun += (table.began == first) - table.ends
    yield from _split(group, first)


def _split(group: list[PrintedTable], first: int) -> Iterable[list[PrintedTable]]:
    """Return a group as one if its programs have printed into each other: nothing else explains it."""
    begun = sum(table.began == first for table in group)
    if any(table.mixed for table in group) or (
        # Rows behind another's end, and parts of a head that do not begin as one.
        begun > 1 and any(table.behind or table.began > first for table in group)
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


def _finished(table: PrintedTable, why: str, defaults: LogDefaults) -> LogTable:
    """Return the run of a table, if its figures agree with its collective and ranks."""
    name = imported.collective_of(table.program) if table.program else ""
    what = f"{len(table.rows)} rows" + (f" of {name}" if name else "")
    columns = table.layout
    if not table.rows or columns is None:
        reason = "; ".join([*table.notes[:_MOST_NOTES], *([why] if why else [])])
        return LeftOutTable(table.line, "a table", f"has no whole row{reason and ': ' + reason}")
    if not table.ended:
        table.notes.append(f"the table is not finished: its last size is {table.rows[-1].size} B")
    listed = tuple(table.ranks[rank] for rank in sorted(table.ranks))
    own = "hpccomm" in table.versions
    try:
        of = measured(name, table.folded or imported.ranks_of(listed), defaults)
        rows = of.rows(
            table.rows, table.backend, table.algorithm, host_time=columns.host_time, own=own
        )
    except Unfit as error:
        reason = "; ".join([str(error), *table.notes])
        return LeftOutTable(table.line, what, reason, error.unlike)
    config = replace(
        table.config or imported.settings_of(rows),
        report_cputime=columns.host_time,
        report_timestamps="timestamp" in columns.names,
    )
    whole = listed and len(listed) == listed[-1].rank + 1
    ranks = listed if whole else imported.unknown_ranks(of.ranks)
    program = table.program or f"{of.collective}_perf"
    status = imported.status_of(rows, table.wrong or 0)
    if status == imported.COMPLETED and not table.ended:
        status = imported.INTERRUPTED + why if why else imported.CUT
    elif status == imported.COMPLETED and table.slow:
        status = imported.SLOW
    info = imported.run_info(defaults, config, ranks, table.versions, [program])
    notes = [*table.notes, *of.notes]
    return ImportedRun(info, rows, [None] * len(rows), status, line=table.line, notes=notes)
