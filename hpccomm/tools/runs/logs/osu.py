"""The OSU micro-benchmarks: latency of collectives, and latency and bandwidth between two ranks.

OSU prints the size of one rank's message. A row has nccl-tests' size, like all rows of a results
file: for a gather, scatter, all-gather and all-to-all, the size of all ranks' messages together.

`hpccomm.tools.runs.import_` calls it for each stream of a log.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from hpccomm.results.schema import UNCHECKED, Row
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import (
    LeftOutTable,
    LogDefaults,
    LogLine,
    LogTable,
    PrintedRow,
    StatedTable,
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

_TIMES = {"Avg Latency(us)", "Latency(us)", "Bandwidth(MB/s)"}
"""Columns with the time of one operation: its average latency, or the bandwidth of messages."""

_OTHERS = re.compile(r"nThread\W|nccl-tests version|algbw\s+busbw")
"""A line of another program, behind the last row."""

_VERDICTS = {"Pass": 0, "Fail": 1}
"""The number of wrong elements, by the value of the column Validation; a failure has at least one."""


@dataclass(slots=True)
class _OsuTable(StatedTable):
    """A table that is being read."""

    last: int = 0
    """The line of its last row; without rows, its first line."""
    dtype: str = ""
    columns: list[str] = field(default_factory=list)
    cells: list[tuple[int, dict[str, float]]] = field(default_factory=list)


def parse(
    lines: Sequence[LogLine], log: Sequence[LogLine], defaults: LogDefaults
) -> list[LogTable]:
    """Return the tables in one stream of a log, in their order, as runs or with the reason why not.

    Parameters
    ----------
    lines : sequence of LogLine
        The stream.
    log : sequence of LogLine
        All lines of the log; the cause of a failure may be in any of them.
    defaults : LogDefaults
        Facts that the log may lack.
    """
    tables: list[_OsuTable] = []
    table: _OsuTable | None = None
    for line in lines:
        if title := _TITLE.search(line.text):
            table = _OsuTable(line.number, f"OSU {title[2]}", last=line.number, own=True)
            table.backend = (title[1] or "MPI").lower()
            table.versions = {"osu": title[3]} if title[3] else {}
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
    for each, end in zip_longest(tables, [after.line for after in tables[1:]]):
        each.cause = cause(log, each.last, end, None, warned=False)
    return [_finished(each, defaults) for each in tables]


def _next(table: _OsuTable, line: LogLine, tables: list[_OsuTable]) -> _OsuTable:
    """Return the table of a head's line: another one of the same title if this one has rows."""
    if table.cells:
        number = line.number
        table = replace(table, line=number, last=number, columns=[], cells=[], notes=[])
        tables.append(table)
    return table


def _columns(line: str) -> list[str]:
    """Return the headings of columns, such as ``["Size", "Avg Latency(us)"]``."""
    words = re.split(r"\s{2,}|\t|(?<=\))\s+", line[1:].strip())
    return [re.sub(r"\s*\(", "(", each) for each in words if each]


def _read_row(line: LogLine, table: _OsuTable) -> None:
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
    table.cells.append((line.number, row))
    table.last = line.number


def _finished(table: _OsuTable, defaults: LogDefaults) -> LogTable:
    left_out = partial(LeftOutTable, table.line, table.what)
    # Latency and bandwidth between two ranks leave no name.
    name = re.sub(r"(?i)^OSU|\b(?:latency|bandwidth|personalized exchange)\b", "", table.what)
    name = re.sub(r"[\s-]+", "_", name.strip(" _-"))
    table.collective = imported.collective_of(name) if name else "send_recv"
    if table.collective not in COLLECTIVES:
        return left_out("has no counterpart in hpccomm", unlike=True)
    if not table.cells:
        return imported.stored(table, defaults)
    if not _TIMES.intersection(table.columns):
        lacking = "neither an average latency nor a bandwidth"
        return left_out(f"columns {', '.join(table.columns)} have {lacking}", unlike=True)
    table.program, size = [table.what], defaults.ranks or 1
    if not name:
        table.number = size = 2
        defaults = replace(defaults, ranks=None)
    table.rows = [PrintedRow(line, _row(cells, table, size)) for line, cells in table.cells]
    table.notes += [
        f"line {line}: its validation failed"
        for line, cells in table.cells
        if cells.get("Validation")
    ]
    rows = [each.row for each in table.rows]
    most, checked = max(row.iterations for row in rows), int("Validation" in table.columns)
    table.config = imported.settings_of(rows, step_factor=2, iterations=most, validation=checked)
    if table.cause:
        table.status = imported.INTERRUPTED + table.cause
    return imported.stored(table, defaults)


def _row(cells: dict[str, float], table: _OsuTable, size: int) -> Row:
    what = COLLECTIVES[table.collective].what
    dtype = table.dtype or ("float" if what.reduces else "uint8")
    op, root = "sum" if what.reduces else "none", 0 if what.rooted else -1
    nbytes = int(cells.get("Size", 0)) * (size if table.collective in OF_ALL else 1)
    count = nbytes // imported.ITEMSIZES.get(dtype, 1)
    if "Bandwidth(MB/s)" in cells:  # 1e6 bytes
        time = nbytes / cells["Bandwidth(MB/s)"] if cells["Bandwidth(MB/s)"] else 0.0
    else:
        time = cells.get("Avg Latency(us)", cells.get("Latency(us)", 0.0))
    algbw = nbytes / time / 1e3 if time else 0.0
    wrong, iterations = cells.get("Validation", UNCHECKED), cells.get("Iterations", 0)
    case = "", "", "", dtype, op, root, nbytes, count, False
    return Row(*case, time, algbw, algbw * what.bus_factor(size), int(wrong), int(iterations))
