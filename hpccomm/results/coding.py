"""The bytes of rows and their checksums, and the facts of a run as JSON: what is stored, without HDF5.

A checksum is the CRC-32 of zlib over the run's name, what is checked, its number, each followed by a space,
and its bytes: a row is found damaged as well if it stands in the place of another.
"""

import dataclasses
import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.results.schema import (
    LOCATION,
    STATE,
    Column,
    Config,
    DeviceInfo,
    RankInfo,
    Row,
    RunInfo,
    columns,
)

SAMPLE = np.dtype("<f8")
"""Type of the samples: seconds."""

_LETTERS = {"<i8": "q", "<u8": "Q", "<f8": "d", "u1": "B"}


def _form(stored: tuple[Column, ...]) -> struct.Struct:
    letters = (_LETTERS.get(column.kind) or f"{column.kind[1:]}s" for column in stored)
    return struct.Struct("<" + "".join(letters))


_COLUMNS = columns(Row)
_SIZES = tuple(int(kind[1:]) if kind[0] == "S" else 0 for _, kind, *_ in _COLUMNS)
_ROW = _form((*_COLUMNS, *LOCATION))
_CHECKED = _ROW.size - 8
_COUNT = struct.Struct("<qQ")
_END = struct.Struct("<dQ")
STATUS_BYTES = int(STATE[-1].kind[1:])
"""The longest status."""

ROW_BYTES = _ROW.size
"""Bytes of a stored row."""

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


def checksum(run: str, what: str, number: int, data: bytes | memoryview) -> int:
    """Return the checksum of the bytes of something in a run."""
    return crc32(data, crc32(f"{run} {what} {number} ".encode()))


def samples_bytes(samples: np.ndarray) -> memoryview:
    """Return the bytes of samples, a contiguous array of `SAMPLE`, without a copy."""
    return samples.reshape(-1).view(np.uint8).data


def samples_checksum(run: str, number: int, samples: np.ndarray) -> int:
    """Return the checksum of the samples of a row, an array of `SAMPLE`."""
    return checksum(run, "samples", number, samples_bytes(samples))


def encode_text(value: str, size: int, what: str) -> bytes:
    """Encode a string for a field of `size` bytes; one that does not fit is refused, never cut."""
    encoded = value.encode()
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
    values = [
        encode_text(getattr(stored.row, name), size, name) if size else getattr(stored.row, name)
        for (name, *_), size in zip(_COLUMNS, _SIZES, strict=True)
    ]
    data = _ROW.pack(*values, *stored[1:], 0)[:_CHECKED]
    return data + checksum(run, "row", number, data).to_bytes(8, "little")


def decode_row(run: str, number: int, data: bytes) -> Stored | None:
    """Return a stored row; None if its checksum is another."""
    checked = data[:_CHECKED]
    if checksum(run, "row", number, checked).to_bytes(8, "little") != data[_CHECKED:]:
        return None
    *values, first_sample, repetitions, samples, _ = _ROW.unpack(data)
    return Stored(decode_values(values), first_sample, repetitions, samples)


def decode_values(values: "list[Any]") -> Row:
    """Return the `Row` of the stored values of its columns."""
    return Row(
        *(decoded(value, kind) for value, (_, kind, *_) in zip(values, _COLUMNS, strict=True))
    )


def decoded(value: Any, kind: str) -> Any:
    """Return a stored number or text as the schema's dataclasses hold it."""
    if isinstance(value, bytes):
        return value.rstrip(b"\0").decode()
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


OPTIONAL = ("simulation", "devices")
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
    for name in ("versions", "environment", "slurm", "simulation"):
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
    )
