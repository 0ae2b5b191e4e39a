"""Add other programs' measurements to a results file.

It reads the tables and JSON of nccl-tests (-J, versions 2 and 3) and rccl-tests (-Z), and the output
of the OSU micro-benchmarks. A log may have several tables, prefixes of launchers and loggers, and
other lines; it may be packed by gzip. What a log does not say is asked for: --collective, --ranks.
A table whose bus bandwidth does not follow from its sizes, times and ranks is left out. Each table
gets a line that says whether it was added.

Examples
--------
  hpccomm import all_reduce.log --output runs.h5
  hpccomm import *.json --output runs.h5
  hpccomm import nightly.log.gz --dry-run           what it would add, and leave out
  hpccomm import osu_allreduce.txt --ranks 64 --output runs.h5
  hpccomm import old.log --collective all_reduce --output runs.h5
  all_reduce_perf -b 8 -e 1G -f 2 -g 8 | hpccomm import - --output runs.h5

The time of a run is the log's, or else the file's. A measurement that the results file already has
is not added again. Exit status 2 if a table is left out that more knowledge might mend.
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import facts, reader
from hpccomm.results.facts import identity
from hpccomm.results.files import os_errors_as
from hpccomm.results.writer import add_runs
from hpccomm.tools import flags, output
from hpccomm.tools.explain.log import CONTROL, DAMAGED, PACKED
from hpccomm.tools.explain.meanings import foreign
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs.logs import nccl_json, nccl_text, osu
from hpccomm.tools.runs.logs.imported import (
    LIMIT,
    ImportedRun,
    LeftOutTable,
    LogDefaults,
    LogLine,
    LogTable,
    collective_of,
    streams,
)

# Logs of all programs, and the runs in them.

_LOOKED_AT = 1 << 16
"""Number of the first bytes of a file, which tell whether it is a log."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The contents of a log.

    Attributes
    ----------
    name : str
        The log, with its packing or encoding if it is not plain text.
    tables : list of ImportedRun or LeftOutTable
        The outcome of each table, in order; at least one is a run.
    """

    name: str
    tables: list[LogTable]

    @property
    def runs(self) -> list[ImportedRun]:
        """The tables that can be stored."""
        return [each for each in self.tables if isinstance(each, ImportedRun)]

    @property
    def left_out(self) -> list[LeftOutTable]:
        """The others."""
        return [each for each in self.tables if isinstance(each, LeftOutTable)]


def parse(data: bytes, defaults: LogDefaults) -> ReadLog:
    """Return the runs of a log.

    Parameters
    ----------
    data : bytes
        The output of the program.
    defaults : LogDefaults
        Facts that the log may lack.

    Raises
    ------
    ResultsError
        If no known program wrote it, or none of its tables can be stored. The message has the reason for each.
    """
    text, packed = decoded(data, defaults.name)
    what = foreign((text if packed else data.decode("latin-1"))[:_LOOKED_AT])
    form = writer = ""
    try:
        if nccl_json.is_csv(text):
            form, writer = "rccl-tests' CSV", "its -Z csv"
            tables = nccl_json.parse_records(*nccl_json.of_csv(text), defaults)
        elif not what and re.match(r"\s*(?:\{|\[\s*[{\]])", text):
            form, writer = "nccl-tests' JSON", "-J of its programs"
            tables = _of_json(text, defaults)
        else:
            tables = _of_lines(text, defaults)
    except _OTHER_FORM as error:
        if not form:
            raise
        raise ResultsError(
            f"{defaults.name} is not {form}: {type(error).__name__}: {error}; give a file that {writer} has written"
        ) from error
    log = ReadLog(f"{defaults.name} ({packed})" if packed else defaults.name, tables)
    if what and not tables:
        raise ResultsError(f"{log.name} has no table of a benchmark; it is {what}")
    if not tables:
        raise ResultsError(
            f"{log.name} has no table of nccl-tests, rccl-tests or OSU, and is not JSON of theirs; give "
            "what such a program printed"
        )
    if not log.runs:
        reasons = "; ".join(f"line {each.line}: {each.what}: {each.why}" for each in log.left_out)
        raise ResultsError(f"{log.name} has no table that can be stored: {reasons}")
    return log


_OTHER_FORM = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)
"""Errors of reading JSON or CSV of another form."""


def _of_lines(text: str, defaults: LogDefaults) -> list[LogTable]:
    separate = streams(text)
    log = sorted(chain(*separate), key=lambda line: line.number)
    tables = _tables(separate, log, defaults)
    if len(separate) > 1 and not any(isinstance(each, ImportedRun) for each in tables):
        # The prefixes do not tell who printed a line.
        merged = _tables([log], log, defaults)
        if any(isinstance(each, ImportedRun) for each in merged) or not tables:
            tables = merged
    return sorted(tables, key=lambda each: each.line)


def _tables(
    apart: Sequence[Sequence[LogLine]], log: Sequence[LogLine], defaults: LogDefaults
) -> list[LogTable]:
    programs = osu.parse, nccl_text.parse
    return [table for lines in apart for parse in programs for table in parse(lines, log, defaults)]


def known_runs(path: Path | None) -> dict[Hashable, str]:
    """Return the names of the runs of a results file by their identity; none if there is no file.

    Raises
    ------
    ResultsError
        If there is a file, and it cannot be read.
    """
    known: dict[Hashable, str] = {}
    if path is not None and path.is_file() and path.stat().st_size:
        for run in reader.read(path):
            known.setdefault(identity(run.info, run.rows), f"{run.name} of {path}")
    return known


_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Marks of an encoding, the longer first; Windows puts them before the first line."""

_OF_A_LINE = ("log", "msg", "message", "MESSAGE")
"""Keys of the text in logs with a JSON object in each line: those of Docker, loggers and journald."""


def decoded(data: bytes, name: str) -> tuple[str, str]:
    """Return the text of a log, and its packing or encoding; empty for plain text.

    Bytes outside UTF-8, such as an umlaut in a host's name, become escapes.

    Raises
    ------
    ResultsError
        If it is damaged.
    """
    packings = []
    for magic, (packed, unpack) in PACKED.items():
        if data.startswith(magic):
            try:
                data = unpack(io.BytesIO(data)).read()
            except DAMAGED as error:
                raise ResultsError(
                    f"{name} is {packed}, and damaged: {error}; give the log itself"
                ) from error
            packings.append(packed)
    encoding = next((each for mark, each in _MARKS.items() if data.startswith(mark)), "utf-8")
    if not encoding.startswith("utf-8"):
        packings.append(encoding.upper())
    text = data.decode(encoding, "backslashreplace" if encoding.startswith("utf-8") else "replace")
    if _within(text.partition("\n")[0]) is not None:
        packings.append("lines in JSON")
        lines = [line if (inner := _within(line)) is None else inner for line in text.splitlines()]
        text = "\n".join(line.removesuffix("\n") for line in lines)
    return CONTROL.sub("", text), ", ".join(packings)


def _within(line: str) -> str | None:
    """Return the text in a line that is such an object; None for any other line."""
    try:
        value = json.loads(line, strict=False)
    except (ValueError, RecursionError):
        return None
    printed = [value.get(key) for key in _OF_A_LINE] if isinstance(value, dict) else []
    return next((each for each in printed if isinstance(each, str)), None)


def _of_json(text: str, defaults: LogDefaults) -> list[LogTable]:
    """Return the tables in the documents of a log, as runs or with the reason why not.

    Raises
    ------
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError
        If one has another form.
    """
    tables: list[LogTable] = []
    notes: list[str] = []
    rows: list[tuple[int, nccl_json.Record]] = []
    for line, value in _values(text, notes):
        # HDF5 cannot hold a null character. Half a surrogate pair is an error here, too.
        if b"\\u0000" in json.dumps(value, ensure_ascii=False).encode():
            raise ValueError("text has a null character")
        if nccl_json.is_record(value):
            rows.append((line, value))
        else:
            tables += nccl_json.parse(value, defaults, line)
    if not rows and tables and isinstance(tables[-1], ImportedRun):
        tables[-1].notes.extend(notes)
    return [*nccl_json.parse_records(rows, notes, defaults), *tables]


_MOST_OPEN = 8
"""Most objects that may have ended behind the last whole result."""


def _values(text: str, notes: list[str]) -> list[tuple[int, Any]]:
    """Return the values with the lines in which they begin; a list's values one by one."""
    decoder = json.JSONDecoder(parse_int=_integer)
    values: list[tuple[int, Any]] = []
    at, line, counted = 0, 1, 0
    while at < len(text):
        if text[at] in " \t\r\n,[]":
            at += 1
            continue
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            if values and nccl_json.is_record(values[-1][1]):
                end = text.find("\n", at) + 1 or len(text)
                notes.append(f"line {line}: a record is cut: {text[at:end].strip()[:80]!r}")
                at = end
                continue
            value, end = _of_cut(text[at:], decoder), len(text)
            notes.append(f"line {line}: the document is cut behind its last whole result")
        values.append((line, value))
        at = end
    return values


def _of_cut(text: str, decoder: json.JSONDecoder) -> Any:
    """Return a document that was cut off, up to its last whole result."""
    ends = [brace.end() for brace in re.finditer("}", text)]
    for end in reversed(ends[-_MOST_OPEN:]):
        with suppress(json.JSONDecodeError):  # another object ends there
            return decoder.decode(text[:end] + "]}")
    return decoder.decode(text)


def _integer(digits: str) -> int:
    value = int(digits)
    if not -LIMIT <= value < LIMIT:
        raise ValueError(f"{digits} is out of range")
    return value


def _collective(text: str) -> str:
    return flags.one_of(sorted(COLLECTIVES), "collective")(collective_of(text))


FLAGS = flags.table(__package__, {"collective": _collective}, file="import.toml")["import"]


def run(args: argparse.Namespace) -> int:
    """Read and store; return the exit status."""
    if args.output is None and not args.dry_run:
        raise UsageError("--output is missing; name the results file, or give --dry-run")
    # All logs are read before the first one is stored.
    logs, unreadable = [], []
    with output.watched("reading logs", len(args.logs)) as progress:
        for log in args.logs:
            try:
                logs.append(parse(*_read(log, args)))
            except ResultsError as error:
                unreadable.append(str(error))
            progress.advance()
    refused = ResultsError("; ".join(unreadable))
    if unreadable and not args.dry_run:
        raise refused
    known = known_runs(args.output)
    new: dict[Hashable, tuple[ReadLog, ImportedRun]] = {}
    for log in logs:
        for found in log.runs:
            if (key := identity(found.info, found.rows)) not in known:
                new.setdefault(key, (log, found))
    if args.dry_run:
        places = [f"that of {log.name}" for log, _ in new.values()]
    else:
        # A run is named only when it is in the file.
        ended = [
            (each.info, each.rows, each.samples, each.status, each.ended or each.info.started)
            for _, each in new.values()
        ]
        places = [f"{name} of {args.output}" for name in add_runs(args.output, ended)]
    known |= dict(zip(new, places, strict=True))
    for log in logs:
        for each in log.tables:
            if isinstance(each, LeftOutTable):
                output.write(f"{log.name}: line {each.line}: {each.what} left out: {each.why}\n")
                continue
            what = f"{each.rows[0].collective}, {len(each.rows)} rows, {len(each.info.ranks)} ranks"
            key = identity(each.info, each.rows)
            if key not in new or new[key][1] is not each:
                output.write(f"{log.name}: {what} left out: the same measurement as {known[key]}\n")
                continue
            place = "would be stored" if args.dry_run else known[key]
            output.write(f"{log.name}: {what}: {place}, {each.status}\n")
            output.write("".join(f"{log.name}:   {note}\n" for note in each.notes))
    if unreadable:
        raise refused
    return 2 * any(not each.unlike for log in logs for each in log.left_out)


def _read(log: Path, args: argparse.Namespace) -> tuple[bytes, LogDefaults]:
    """Return the bytes of a log, and other facts about it."""
    asked = {"collective": args.collective, "ranks": args.ranks}
    if str(log) == "-":
        data, now = sys.stdin.buffer.read(), datetime.now().astimezone()
        return data, LogDefaults("standard input", now, facts.user(), **asked)
    with os_errors_as(log, "read"):
        data, stat = log.read_bytes(), log.stat()
    try:
        owner = log.owner()
    except KeyError:  # a user id without a name
        owner = str(stat.st_uid)
    changed = datetime.fromtimestamp(stat.st_mtime).astimezone()
    return data, LogDefaults(str(log), changed, owner, **asked)
