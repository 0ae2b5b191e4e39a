"""Lines of stored tables and their arrays: as bytes, each with its checksum, and back.

A line has a CRC-32 over its bytes, and the CRC-32 of its part of each array. A checksum also covers the name of the run,
the name of the checked part, and the line's number. So a line in the place of another one counts as damaged, too. `store`
writes lines, and `reader` checks them.
"""

import functools
import os
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm import units
from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.files import DIFFERS, as_utf8, checksum, open_regular, os_errors_as
from hpccomm.results.schema import STATUS, SectionKind, TableForm

UNKNOWN_END = "unknown: the end of the run is damaged"
"""Status of a run whose end is damaged."""

_CRC_BYTES = 4
_COUNT = np.dtype([("count", "<i8"), ("crc", "<u8")])
_END = np.dtype([("ended", "<f8"), ("crc", "<u8")])


class DamagedPart(ResultsError):
    """A line's part of an array differs from its checksum."""


Line = tuple[Sequence[Any], Sequence[np.ndarray]]
"""The values of a line's own columns, and its parts of the arrays. Parts are contiguous and have the arrays' types."""


class DataPlace(NamedTuple):
    """The place of a dataset: its first byte in the file, the bytes of an entry, and its shape."""

    at: int
    width: int
    shape: tuple[int, ...]

    def entry(self, number: int) -> int:
        """Return the first byte of an entry."""
        return self.at + number * self.width


class Source:
    """A results file for plain reads. It is open until `close`, or until this object is deleted.

    After `close`, each read opens the file again, if the path still names it.

    Parameters
    ----------
    path : Path
        The path of the file.
    descriptor : int
        The open file. This object takes it over.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._file = path, os.fstat(descriptor)
        self.descriptor = descriptor
        self.close = weakref.finalize(self, os.close, descriptor)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file. There are fewer if the file ends before."""
        if self.close.alive:
            return os.pread(self.descriptor, size, at)
        with open_regular(self.path) as file:
            if not os.path.samestat(self._file, os.fstat(file.fileno())):
                raise OSError(None, "it was replaced after it was read; read it again")
            return os.pread(file.fileno(), size, at)


@functools.cache
def line_type(form: TableForm) -> np.dtype[Any]:
    """Return the type of a table's lines."""
    return np.dtype([(name, kind) for name, kind, *_ in (*form.own, *form.location)])


def entries(form: TableForm, added: Sequence[Line]) -> dict[str, int]:
    """Return the number of entries that lines take, in a table and in each array beside it."""
    beside = enumerate(array.name for array in form.beside)
    taken = {name: sum(len(parts[at]) for _, parts in added) for at, name in beside}
    return {form.name: len(added), **taken}


def encode(
    form: TableForm, section: str, used: Mapping[str, int], added: Sequence[Line]
) -> tuple[dict[str, bytes | bytearray], dict[str, int]]:
    """Return the bytes of lines and of their parts of arrays, and the number of entries with them.

    Parameters
    ----------
    form : TableForm
        The table.
    section : str
        Name of the run or recording.
    used : mapping of str to int
        Number of entries of the table and of each array that were written before.
    added : sequence of Line
        The lines.

    Returns
    -------
    tuple of dict
        Bytes, and number of entries. Each is by name, for the arrays and then for the table.

    Raises
    ------
    UsageError
        If a text is too long for its column.
    """
    data: dict[str, bytes | bytearray] = {array.name: bytearray() for array in form.beside}
    ends, stored, first = {name: used[name] for name in (*data, form.name)}, [], used[form.name]
    for line, (values, parts) in enumerate(added, first):
        located = []
        for array, part in zip(form.beside, parts, strict=True):
            bytes_ = part.reshape(-1).view("u1").data
            located += [ends[array.name], len(part), checksum(bytes_, section, array.name, line)]
            ends[array.name] += len(part)
            data[array.name] += bytes_
        stored.append((*_fitted(form, values), *located, 0))
    table = np.array(stored, line_type(form))
    table["crc"] = _checksums(form, section, table, first)
    ends[form.name] += len(added)
    return {**data, form.name: table.tobytes()}, ends


def _checksums(form: TableForm, section: str, table: np.ndarray, first: int = 0) -> list[int]:
    """Return the checksum of each line of a table, over all bytes before the stored checksum."""
    checked = table.view("u1").reshape(len(table), table.itemsize)[:, :-_CRC_BYTES]
    return [
        checksum(each.data, section, form.name, line) for line, each in enumerate(checked, first)
    ]


def _fitted(form: TableForm, values: Sequence[Any]) -> list[Any]:
    """Return values in the form of their columns. Raise UsageError for a text that is too long."""
    fitted = list(values)
    for index, column in enumerate(form.own):
        if not isinstance(values[index], str):
            continue
        fitted[index] = encoded = as_utf8(values[index]).encode()
        size = int(column.kind[1:])
        if len(encoded) > size:
            raise UsageError(
                f"{column.name} {values[index]!r} has {len(encoded)} bytes; a results file holds {size}"
            )
    return fitted


class StoredLines:
    """The whole lines of a stored table, and their parts of the arrays beside it.

    Parameters
    ----------
    source : Source
        The file.
    section : str
        Name of the run or recording.
    form : TableForm
        The table.
    places : mapping of str to DataPlace
        The places of the table and the arrays.
    count : int or None
        Number of written lines. None if this number is damaged: then all whole lines are given.

    Attributes
    ----------
    numbers : list of int
        Numbers of the whole lines: 0, 1, 2, ... unless some are damaged.
    lines : ndarray
        The whole lines.
    damage : list of str
        The damaged parts.
    """

    def __init__(
        self,
        source: Source,
        section: str,
        form: TableForm,
        places: Mapping[str, DataPlace],
        count: int | None,
    ) -> None:
        self._source, self._section, self._form, self._places = source, section, form, places
        place, kind = places[form.name], line_type(form)
        (tried,) = place.shape if count is None else (count,)
        data = source.read(place.at, tried * kind.itemsize)
        table = np.frombuffer(data, kind, len(data) // kind.itemsize)
        self.numbers: list[int] = np.flatnonzero(
            table["crc"] == np.array(_checksums(form, section, table), "<u4")
        ).tolist()
        self.lines = table[self.numbers]
        self.damage = []
        if count is None:
            self.damage.append(f"number of {form.name}: {DIFFERS}")
        else:
            lost = sorted(set(range(count)).difference(self.numbers))
            self.damage += [f"{each}: {DIFFERS}" for each in spans(form.name[:-1], lost)]

    def read(self, name: str, first: int, count: int) -> bytes:
        """Read entries of array `name`, which were whole before.

        Raises
        ------
        ResultsError
            If the file cannot be read any more.
        """
        place = self._places[name]
        with os_errors_as(self._source.path, "read"):
            return self._source.read(place.entry(first), count * place.width)

    def close(self) -> None:
        """Close the file. Later reads open it again."""
        self._source.close()

    def parts(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the whole parts of array `name`, each with the index of its line. Damaged parts go to `damage`."""
        for index, number in enumerate(self.numbers):
            try:
                yield index, self.part(number, name)
            except DamagedPart as error:
                self.damage.append(str(error))

    def part(self, number: int, name: str) -> np.ndarray:
        """Read the part of array `name` that belongs to the whole line of this number.

        Raises
        ------
        DamagedPart
            If it is damaged.
        ResultsError
            If the file cannot be read any more.
        """
        array = next(each for each in self._form.beside if each.name == name)
        place = self._places[name]
        line = self.lines[bisect_left(self.numbers, number)]
        first, count = int(line[array.first]), int(line[array.many])
        data = self.read(name, first, count)
        if checksum(data, self._section, name, number) != line[array.crc]:
            what = self._form.name[:-1]
            raise DamagedPart(f"{name} of {what} {number}: {DIFFERS}")
        return np.frombuffer(data, array.kind).reshape(count, *place.shape[1:]).copy()


def spans(what: str, numbers: list[int]) -> list[str]:
    """Return ascending numbers as texts, such as ``row 3`` and ``rows 5 to 9``."""
    return [f"{what} {a}" if a == b else f"{what}s {a} to {b}" for a, b in units.spans(numbers)]


@functools.cache
def state_type(kind: SectionKind) -> np.dtype[Any]:
    """Return the type of the scalar ``state`` of a run or recording.

    For each table, it has the number of lines and its checksum: sixteen bytes that are written at once. Then come the time
    of the end, a checksum of this time and the status, and the status.
    """
    counts = ((form.name, "<i8", f"{form.name}_crc") for form in kind.forms)
    fields = [*counts, ("ended", "<f8", "ended_crc")]
    pairs = [each for name, form, crc in fields for each in ((name, form), (crc, "<u8"))]
    return np.dtype([*pairs, STATUS[:2]])


def offset(kind: SectionKind, field: str) -> int:
    """Return where a field begins in the state."""
    return int(state_type(kind).fields[field][1])  # type: ignore[index]


def encode_count(section: str, form: TableForm, count: int) -> bytes:
    """Return the bytes of a table's number of lines, with its checksum."""
    return np.array((count, checksum(b"", section, form.name, "count", count)), _COUNT).tobytes()


def encode_end(section: str, ended: float, status: bytes) -> bytes:
    """Return the bytes of the end of a run, in seconds, with its checksum."""
    return np.array((ended, checksum(status, section, "ended", ended)), _END).tobytes()


def no_lines(kind: SectionKind, section: str) -> bytes:
    """Return the state of a run or recording that has no lines and no end."""
    counts = b"".join(encode_count(section, form, 0) for form in kind.forms)
    state = counts + encode_end(section, 0.0, b"")
    return state.ljust(state_type(kind).itemsize, b"\0")


def decode_count(kind: SectionKind, section: str, form: TableForm, state: bytes) -> int | None:
    """Return the number of lines of a table; None if it is damaged."""
    at = offset(kind, form.name)
    count = int(np.frombuffer(state, "<i8", 1, at)[0])
    if state[at : at + _COUNT.itemsize] != encode_count(section, form, count):
        return None
    return count


def decode_end(kind: SectionKind, section: str, state: bytes) -> tuple[float, str] | None:
    """Return the end in seconds and the status, or 0 and "" if there is no end. Return None if the end is damaged."""
    at = offset(kind, "ended")
    ended = float(np.frombuffer(state, "<f8", 1, at)[0])
    # The status is written before the end: without an end, there may be one.
    status = state[offset(kind, STATUS.name) :].rstrip(b"\0") if ended else b""
    if state[at : at + _END.itemsize] != encode_end(section, ended, status):
        return None
    return ended, status.decode()
