"""The OSU micro-benchmarks: latency of collectives, and latency and bandwidth between two ranks.

OSU prints the size of one rank's message. A row has nccl-tests' size, like all rows of a results
file: for a gather, scatter, all-gather and all-to-all, the size of all ranks' messages together.

`hpccomm.tools.runs.import_` calls it for each stream of a log.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from hpccomm.results.schema import UNCHECKED, Row
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import (
    ImportedRun,
    LeftOutTable,
    LogDefaults,
    LogLine,
    LogTable,
    cause,
)

_TITLE = re.compile(
    r"#\s*OSU\s+(?:(MPI|NCCL|RCCL|XCCL)(?:-[\w-]+)?[\s_]+)?(.*?)\s*Test(?:\s+v?([\d.]+))?\s*$",
    re.IGNORECASE,
)
_DATATYPE = re.compile(r"#\s*Datatype:\s*MPI_(\w+)", re.IGNORECASE)
_TYPES = {
    "CHAR": "uint8",
    "FLOAT": "float",
    "INT": "int32",
    "DOUBLE": "double",
    "C_BOOL": "bool",
    "INT8_T": "int8",
    "BYTE": "uint8",
}
"""nccl-tests' names of the types that OSU's ``-T`` takes."""

OF_ALL = ("all_gather", "all_to_all", "all_to_all_v", "gather", "scatter")
"""Collectives whose size counts the messages of all ranks."""

_OTHERS = re.compile(r"nThread\W|nccl-tests version|algbw\s+busbw")
"""A line of another program, behind the last row."""

_VERDICTS = {"Pass": 0, "Fail": 1}
"""Values of the column Validation, with wrong elements: one at least."""


@dataclass(slots=True)
class _Open:
    """A table that is being read."""

    line: int
    last: int
    """Its last row, or its first line."""
    library: str
    title: str
    version: str
    dtype: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: str = ""


def parse(
    lines: Sequence[LogLine], log: Sequence[LogLine], defaults: LogDefaults
) -> list[LogTable]:
    """Return the tables in one stream of a log, in their order, as runs or with the reason why not.

    Parameters
    ----------
    lines : sequence of LogLine
        The stream.
    log : sequence of LogLine
        All lines of the log, where the cause of a failure is searched.
    defaults : LogDefaults
        Facts that the log may lack.
    """
    tables: list[_Open] = []
    table: _Open | None = None
    for line in lines:
        if title := _TITLE.search(line.text):
            table = _Open(line.number, line.number, title[1] or "MPI", title[2], title[3] or "")
            tables.append(table)
        elif table is None or _OTHERS.search(line.text):
            table = None
        elif datatype := _DATATYPE.search(line.text):
            table = _next(table, line, tables)
            table.dtype = _TYPES.get(datatype[1].upper(), datatype[1].lower())
        elif "#" in line.text:
            comment = line.text[line.text.index("#") :]
            if re.match(r"#\s*(?:Size|\S+ ?\w* ?\((?:us|MB/s)\))(?:\s|$)", comment):
                table = _next(table, line, tables)
                table.columns = _columns(comment)
        elif table.columns:
            _read_row(line, table)
    return [
        _finished(each, cause(log, each.last, end, None, warned=False), defaults)
        for each, end in zip_longest(tables, [after.line for after in tables[1:]])
    ]


def _next(table: _Open, line: LogLine, tables: list[_Open]) -> _Open:
    """Return the table of this title that a line of its head begins: another one if it has rows."""
    if not table.rows:
        return table
    begin = line.number
    tables.append(_Open(begin, begin, table.library, table.title, table.version, table.dtype))
    return tables[-1]


def _columns(line: str) -> list[str]:
    """Return the headings of columns, such as ``["Size", "Avg Latency(us)"]``."""
    words = re.split(r"\s{2,}|\t|(?<=\))\s+", line[1:].strip())
    return [re.sub(r"\s*\(", "(", each) for each in words if each]


def _read_row(line: LogLine, table: _Open) -> None:
    words = line.text.split()
    if not words or not re.fullmatch(r"\d{1,15}(?:\.\d+)?", words[0]):
        return
    row: dict[str, float] = {}
    for name, word in zip(table.columns, words, strict=False):
        if word in _VERDICTS and name == "Validation":
            row[name] = _VERDICTS[word]
        elif re.fullmatch(r"\d{1,15}(?:\.\d*)?", word):
            row[name] = float(word)
        else:
            break
    if len(row) < len(table.columns):
        if len(words) <= len(table.columns):
            table.notes.append(f"line {line.number}: a row is cut: {line.text.strip()[:80]!r}")
        return
    if row.get("Validation"):
        table.failed = table.failed or f"failed: validation failed at {words[0]} B"
    table.rows.append(row)
    table.last = line.number


def _finished(table: _Open, why: str, defaults: LogDefaults) -> LogTable:
    what = f"OSU {table.title}"
    # No name is left of latency and bandwidth between two ranks.
    name = re.sub(r"(?i)\b(?:latency|bandwidth|personalized exchange)\b", "", table.title)
    name = re.sub(r"[\s-]+", "_", name.strip(" _-"))
    collective = imported.collective_of(name) if name else "send_recv"
    if collective not in COLLECTIVES:
        return LeftOutTable(table.line, what, "has no counterpart in hpccomm", unlike=True)
    if not table.rows:
        reason = "; ".join([*table.notes, *([why] if why else [])])
        return LeftOutTable(table.line, what, f"has no whole row{reason and ': ' + reason}")
    size = defaults.ranks if name else 2
    if size is None:
        return LeftOutTable(table.line, what, imported.lacking(collective, size))
    if _column(table.columns) is None:
        lacking = "neither an average latency nor a bandwidth"
        reason = f"columns {', '.join(table.columns)} have {lacking}"
        return LeftOutTable(table.line, what, reason, unlike=True)
    notes = list(table.notes)
    if defaults.collective not in (None, collective):
        notes.append(f"--collective {defaults.collective} contradicts the log, and is not used")
    rows = [_row(each, table, collective, size) for each in table.rows]
    most, checked = max(row.iterations for row in rows), int("Validation" in table.columns)
    config = imported.settings_of(rows, step_factor=2, iterations=most, validation=checked)
    versions = {"osu": table.version} if table.version else {}
    info = imported.run_info(defaults, config, imported.unknown_ranks(size), versions, [what])
    status = table.failed or (imported.INTERRUPTED + why if why else imported.COMPLETED)
    return ImportedRun(info, rows, [None] * len(rows), status, line=table.line, notes=notes)


def _row(cells: dict[str, float], table: _Open, collective: str, size: int) -> Row:
    what = COLLECTIVES[collective].what
    dtype = table.dtype or ("float" if what.reduces else "uint8")
    op = "sum" if what.reduces else "none"
    itemsize = {"float": 4, "int32": 4, "double": 8}.get(dtype, 1)
    nbytes = int(cells.get("Size", 0)) * (size if collective in OF_ALL else 1)
    root, count = 0 if what.rooted else -1, nbytes // itemsize
    case = collective, table.library.lower(), "auto", dtype, op, root, nbytes, count, False
    time = _time(cells, nbytes)
    algbw = nbytes / time / 1e3 if time else 0.0
    wrong, iterations = cells.get("Validation", UNCHECKED), cells.get("Iterations", 0)
    return Row(*case, time, algbw, algbw * what.bus_factor(size), int(wrong), int(iterations))


def _column(names: Iterable[str]) -> str | None:
    """Return the column with the time of one operation: its average latency, or the bandwidth of messages."""
    known = ("Avg Latency(us)", "Latency(us)", "Bandwidth(MB/s)")
    return next((name for name in names if name in known), None)


def _time(line: dict[str, float], nbytes: int) -> float:
    """Return the microseconds of one operation: the average latency, or what the bandwidth makes of a message."""
    name = _column(line)
    if name == "Bandwidth(MB/s)":  # 1e6 bytes
        return nbytes / line[name] if line[name] else 0.0
    return line[name or "Latency(us)"]
