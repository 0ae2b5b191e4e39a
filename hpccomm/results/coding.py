"""The bytes of rows and their checksums, and the facts of a run as JSON: what is stored, without HDF5.

A checksum is the CRC-32 of zlib over the run's name, what is checked, its number, each followed by a space,
and its bytes: a row is found damaged as well if it stands in the place of another.
"""

import dataclasses
import math
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.files.regular import as_utf8
from hpccomm.results.schema import (
    LOCATION,
    STATE,
    TIMING_LOCATION,
    Column,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    Timing,
    columns,
)

SAMPLE = np.dtype("<f8")
"""Type of the samples: seconds."""

_Line = TypeVar("_Line", Row, Timing)

_LETTERS = {"<i8": "q", "<u8": "Q", "<f8": "d", "u1": "B"}


def _form(stored: tuple[Column, ...]) -> struct.Struct:
    letters = (_LETTERS.get(column.kind) or f"{column.kind[1:]}s" for column in stored)
    return struct.Struct("<" + "".join(letters))


_ROW = _form((*columns(Row), *LOCATION))
_TIMING = _form((*columns(Timing), *TIMING_LOCATION))
_COUNT = struct.Struct("<qQ")
_END = struct.Struct("<dQ")
STATUS_BYTES = int(STATE[-1].kind[1:])
"""The longest status."""

ROW_BYTES = _ROW.size
"""Bytes of a stored row."""

TIMING_BYTES = _TIMING.size
"""Bytes of a stored timing."""

STATE_BYTES = _form(STATE).size
"""Bytes of the state of a run."""

COUNT_AT, END_AT, STATUS_AT = 0, _COUNT.size, _COUNT.size + _END.size
"""Where the count of rows, the end and the status stand in the state."""


class Stored(NamedTuple):
    """A row as it is stored.

    Attributes
    ----------
    row : Row
        The measurement.
    first_sample, repetitions, samples_checksum : int
        Its samples.
    """

    row: Row
    first_sample: int
    repetitions: int
    samples_checksum: int


class StoredTiming(NamedTuple):
    """A timing as it is stored.

    Attributes
    ----------
    timing : Timing
        Of one row.
    first_isolated, repetitions, isolated_checksum : int
        Its isolated repetitions.
    """

    timing: Timing
    first_isolated: int
    repetitions: int
    isolated_checksum: int


def checksum(run: str, what: str, number: int, data: bytes | memoryview) -> int:
    """Return the checksum of the bytes of something in a run."""
    return crc32(data, crc32(f"{run} {what} {number} ".encode()))


def samples_bytes(samples: np.ndarray) -> memoryview:
    """Return the bytes of samples, a contiguous array of `SAMPLE`, without a copy."""
    return samples.reshape(-1).view(np.uint8).data


def samples_checksum(run: str, what: str, number: int, samples: np.ndarray) -> int:
    """Return the checksum of a row's array of `SAMPLE`: its ``samples`` or ``isolated``, as `what` says."""
    return checksum(run, what, number, samples_bytes(samples))


def encode_text(value: str, size: int, what: str) -> bytes:
    """Encode a string for a field of `size` bytes; one that does not fit is refused, never cut."""
    encoded = as_utf8(value).encode()
    if len(encoded) > size:
        raise UsageError(f"{what} {value!r} has {len(encoded)} bytes; a results file holds {size}")
    return encoded


def encode_row(run: str, number: int, stored: Stored) -> bytes:
    """Return the bytes of a stored row, with its checksum.

    Raises
    ------
    UsageError
        If a string is too long for its column.
    """
    return _encoded(_ROW, run, "row", number, _values(stored.row), stored[1:])


def decode_row(run: str, number: int, data: bytes) -> Stored | None:
    """Return a stored row; None if its checksum is another."""
    found = _decoded(_ROW, run, "row", number, data)
    if found is None:
        return None
    *values, first_sample, repetitions, samples = found
    return Stored(decode_values(Row, values), first_sample, repetitions, samples)


def encode_timing(run: str, number: int, stored: StoredTiming) -> bytes:
    """Return the bytes of a stored timing, with its checksum."""
    return _encoded(_TIMING, run, "timing", number, _values(stored.timing), stored[1:])


def decode_timing(run: str, number: int, data: bytes) -> StoredTiming | None:
    """Return a stored timing; None if its checksum is another."""
    found = _decoded(_TIMING, run, "timing", number, data)
    if found is None:
        return None
    *values, first_isolated, repetitions, isolated = found
    return StoredTiming(decode_values(Timing, values), first_isolated, repetitions, isolated)


def _values(line: Row | Timing) -> list[Any]:
    """Return the values of a line's columns as they are packed."""
    return [
        encode_text(getattr(line, name), int(kind[1:]), name)
        if kind[0] == "S"
        else getattr(line, name)
        for name, kind, *_ in columns(type(line))
    ]


def _encoded(
    form: struct.Struct, run: str, what: str, number: int, values: list[Any], place: tuple[Any, ...]
) -> bytes:
    data = form.pack(*values, *place, 0)[:-8]
    return data + checksum(run, what, number, data).to_bytes(8, "little")


def _decoded(
    form: struct.Struct, run: str, what: str, number: int, data: bytes
) -> tuple[Any, ...] | None:
    """Return all values but the checksum; None if that is another."""
    if checksum(run, what, number, data[:-8]).to_bytes(8, "little") != data[-8:]:
        return None
    return form.unpack(data)[:-1] if len(data) == form.size else None


def decode_values(kind: type[_Line], values: "list[Any]") -> _Line:
    """Return the `Row` or `Timing` of the stored values of its columns."""
    return kind(
        *(decoded(value, form) for value, (_, form, *_) in zip(values, columns(kind), strict=True))
    )


def decoded(value: Any, kind: str) -> Any:
    """Return a stored number or text as the schema's dataclasses hold it."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode()
    if value != value:
        return math.nan  # one object, which equals itself inside of lines that are compared
    return bool(value) if kind == "u1" else value


def encode_count(run: str, rows: int) -> bytes:
    """Return the count of rows with its checksum: the first bytes of the state."""
    return _COUNT.pack(rows, _of_count(run, rows))


def encode_end(run: str, ended: float, status: bytes) -> bytes:
    """Return the end of a run, in seconds, with its checksum."""
    return _END.pack(ended, _of_end(run, ended, status))


def _of_count(run: str, rows: int) -> int:
    return checksum(run, "count", 0, struct.pack("<q", rows))


def _of_end(run: str, ended: float, status: bytes) -> int:
    # Of an end that was not written whole there may be the status.
    said = status.ljust(STATUS_BYTES, b"\0") if ended else b""
    return checksum(run, "end", 0, struct.pack("<d", ended) + said)


def decode_count(run: str, state: bytes) -> int | None:
    """Return the count of rows in a state; None if its checksum is another."""
    rows, stored = _COUNT.unpack_from(state, COUNT_AT)
    return int(rows) if rows >= 0 and stored == _of_count(run, rows) else None


def no_rows(run: str) -> bytes:
    """Return the state of a run that has no rows and no end."""
    return (encode_count(run, 0) + encode_end(run, 0.0, b"")).ljust(STATE_BYTES, b"\0")


def decode_end(run: str, state: bytes) -> tuple[float, str] | None:
    """Return the end in seconds and the status in a state, 0 and empty without an end; None if damaged."""
    ended, stored = _END.unpack_from(state, END_AT)
    if stored != _of_end(run, ended, state[STATUS_AT:]):
        return None
    return ended, state[STATUS_AT:].rstrip(b"\0").decode() if ended else ""


OPTIONAL = ("simulation", "devices", "machine", "series")
"""Facts that runs of before there were any lack."""


def facts(info: RunInfo) -> dict[str, Any]:
    """Return the facts of a run as JSON."""
    found = {name: getattr(info, name) for name, *_ in columns(RunInfo)}
    found["started"] = info.started.isoformat()
    found["config"] = dataclasses.asdict(info.config)
    for name in ("arguments", "skipped"):
        found[name] = list(found[name])
    for name in ("ranks", "devices"):
        found[name] = [list(dataclasses.astuple(line)) for line in found[name]]
    for name in ("versions", "environment", "slurm", "simulation", "machine", "series"):
        found[name] = dict(found[name])
    return found


def run_info(stored: Mapping[str, Any]) -> RunInfo:
    """Return the facts of a run from JSON."""
    return RunInfo(
        started=datetime.fromisoformat(stored["started"]),
        user=stored["user"],
        launcher=stored["launcher"],
        arguments=tuple(stored["arguments"]),
        skipped=tuple(stored["skipped"]),
        config=Config(**stored["config"]),
        ranks=tuple(RankInfo(*line) for line in stored["ranks"]),
        versions=stored["versions"],
        environment=stored["environment"],
        slurm=stored["slurm"],
        simulation=stored["simulation"],
        devices=tuple(DeviceInfo(*line) for line in stored["devices"]),
        machine=stored.get("machine", {}),
        series=stored.get("series", {}),
    )
