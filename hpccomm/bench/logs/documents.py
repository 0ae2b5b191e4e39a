"""Finds JSON in a log: one value, several in sequence, or values between other lines.

`hpccomm.bench.logs.reading` passes it a log; the values go to `nccl_json` and `records`.
"""

import json
import re
from typing import Any

from hpccomm.bench.logs import nccl_json, records
from hpccomm.bench.logs.imported import LIMIT, ImportedRun, LogDefaults, LogTable
from hpccomm.errors import ResultsError


def is_one(text: str) -> bool:
    """Return whether a log is JSON."""
    begin = text.lstrip()
    return begin.startswith("{") or (begin.startswith("[") and begin[1:].lstrip()[:1] in ("{", "]"))


def parse(text: str, defaults: LogDefaults) -> list[LogTable]:
    """Return the tables in the documents of a log, as runs or with the reason why not.

    Raises
    ------
    ResultsError
        If none can be read.
    """
    tables: list[LogTable] = []
    notes: list[str] = []
    rows: list[tuple[int, records.Record]] = []
    try:
        for line, value in _values(text, notes):
            # What HDF5 cannot hold: half a surrogate pair is an error here, too.
            if b"\\u0000" in json.dumps(value, ensure_ascii=False).encode():
                raise ValueError("text has a null character")
            if records.is_one(value):
                rows.append((line, value))
            else:
                tables += nccl_json.parse(value, defaults, line)
        if not rows and tables and isinstance(tables[-1], ImportedRun):
            tables[-1].notes.extend(notes)
        return [*records.parse(rows, notes, defaults), *tables]
    except (
        *(ValueError, LookupError, TypeError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise ResultsError(
            f"{defaults.name} is not nccl-tests' JSON: {type(error).__name__}: {error}; give a file that -J of its "
            "programs has written"
        ) from error


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
            if values and records.is_one(values[-1][1]):
                end = text.find("\n", at) + 1 or len(text)
                notes.append(f"line {line}: a record is cut: {text[at:end].strip()[:80]!r}")
                at = end
                continue
            value, end = decoder.decode(_closed(text[at:])), len(text)
            notes.append(f"line {line}: the document is cut behind its last whole result")
        values.append((line, value))
        at = end
    return values


_WITHIN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')


def _closed(text: str) -> str:
    """Return a document that was cut off, up to its last whole result."""
    open_, last = [], 0
    for token in _WITHIN.finditer(text):
        if token[0] in "{[":
            open_.append(token[0])
        elif token[0] in "}]" and open_:
            open_.pop()
            if open_ == ["{", "["]:  # a result is whole
                last = token.end()
    return text[:last] + "]}" if last else text


def _integer(digits: str) -> int:
    value = int(digits)
    if not -LIMIT <= value < LIMIT:
        raise ValueError(f"{digits} is out of range")
    return value
