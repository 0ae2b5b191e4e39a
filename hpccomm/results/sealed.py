"""The measurements of a sealed file, by plain reads: each row and each row's samples has its checksum."""

import os
import weakref
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.files.regular import open_regular
from hpccomm.results import coding
from hpccomm.results.coding import ROW_BYTES, SAMPLE, STATE_BYTES, Stored

_BLOCK = 1 << 20
_PAGE = 4096
_TRIES = 5

EMPTY = ""
BEGUN = "what comes next was being written"
FILLED = "space that holds nothing yet: not empty"
"""What is said of the space for more rows."""

DIFFERS = "stored checksum differs: not shown"
"""What is said of damage."""


class Damaged(ResultsError):
    """Samples differ from their checksum."""


class Source:
    """A results file that is open for reading until nobody refers to it any more.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path) -> None:
        with open_regular(path) as file:
            self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file, fewer where it ends."""
        return os.pread(self.descriptor, size, at)


class WholeRows(NamedTuple):
    """What of a run's measurements is whole.

    Attributes
    ----------
    rows : dict
        The whole rows by their numbers.
    ended : float
        When the run ended, in seconds; 0 if it has no end.
    status : str
        How.
    damage : list of str
        What is not whole.
    """

    rows: dict[int, Stored]
    ended: float
    status: str
    damage: list[str]


def measured(source: Source, name: str, places: Mapping[str, Any]) -> WholeRows:
    """Read the rows of a run and its state.

    Parameters
    ----------
    source : Source
        The file.
    name : str
        Of the run.
    places : mapping
        Where they are, as the seal has it.
    """
    # A run that is measured may write while this reads.
    found = _measured(source, name, places)
    return _measured(source, name, places) if found.damage else found


def _measured(source: Source, name: str, places: Mapping[str, Any]) -> WholeRows:
    damage = []
    state = source.read(places["state"], STATE_BYTES).ljust(STATE_BYTES, b"\0")
    at, slots = places["rows"]
    count = coding.decode_count(name, state)
    if count is None or count > slots:
        damage.append(f"number of rows: {DIFFERS}")
        data = source.read(at, slots * ROW_BYTES).rstrip(b"\0")
        count = -(-len(data) // ROW_BYTES)
    data = source.read(at, count * ROW_BYTES)
    rows = {}
    lost = []
    for number in range(count):
        row = coding.decode_row(name, number, data[number * ROW_BYTES : (number + 1) * ROW_BYTES])
        if row is None:
            lost.append(number)
        else:
            rows[number] = row
    damage += [f"{numbers}: {DIFFERS}" for numbers in spans("row", lost)]
    end = coding.decode_end(name, state)
    if end is None:
        damage.append(f"end of the run: {DIFFERS}")
    return WholeRows(rows, *(end or (0.0, "")), damage)


def spare(source: Source, name: str, places: Mapping[str, Any]) -> str:
    """Say what is in the space for more rows and samples, and for an end that is not there.

    Returns
    -------
    str
        `EMPTY`; `BEGUN` where a run without an end has begun to write a row, or its end; `FILLED` if
        something else is there.
    """
    for _ in range(_TRIES):
        before = source.read(places["state"], STATE_BYTES)
        found = _spare(source, name, places, _measured(source, name, places))
        if source.read(places["state"], STATE_BYTES) == before:
            return found
    return BEGUN  # it is written to faster than it is read


def _spare(source: Source, name: str, places: Mapping[str, Any], measured: WholeRows) -> str:
    rows, ended = measured.rows, measured.ended
    at, slots = places["rows"]
    samples = places["samples"]
    number = max(rows, default=-1) + 1
    begin, end = at + number * ROW_BYTES, at + slots * ROW_BYTES
    status = source.read(places["state"], STATE_BYTES)[coding.STATUS_AT :].strip(b"\0")
    if ended:
        next_row = b""
    elif status and not status.startswith((b"completed", b"failed: ")):
        return FILLED
    else:
        next_row = source.read(begin, min(ROW_BYTES, end - begin)).rstrip(b"\0")
        begin += ROW_BYTES
    parts = [(begin, end)]
    begun = bool(next_row) or bool(status and not ended)
    row = coding.decode_row(name, number, next_row.ljust(ROW_BYTES, b"\0")) if next_row else None
    if next_row and row is None and (begin - ROW_BYTES + len(next_row)) // _PAGE == begin // _PAGE:
        return FILLED  # a write that is broken off ends with a page
    if "at" in samples:
        last = rows[number - 1] if rows else None
        used = last.first_sample + last.repetitions if last else 0
        width = samples["ranks"] * SAMPLE.itemsize
        first, end = (samples["at"] + each * width for each in (used, samples["length"]))
        if row is not None:
            first += row.repetitions * width
        elif not ended:
            written = _written(source, first, end)
            begun = begun or written > first
            first = written
        parts.append((first, end))
    if any(
        source.read(place, min(_BLOCK, end - place)).lstrip(b"\0")
        for begin, end in parts
        for place in range(begin, end, _BLOCK)
    ):
        return FILLED
    return BEGUN if begun else EMPTY


def _written(source: Source, begin: int, end: int) -> int:
    """Return where the samples end that were written from `begin` on: no time is 0."""
    for place in range(begin, end, _BLOCK):
        data = source.read(place, min(_BLOCK, end - place))
        zeros = np.flatnonzero(np.frombuffer(data[: len(data) // 8 * 8], "<u8") == 0)
        if len(zeros):
            return place + int(zeros[0]) * 8
    return end


def spans(what: str, numbers: list[int]) -> list[str]:
    """Return ascending numbers in words: ``row 3``, ``rows 5 to 9``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{what} {a}" if a == b else f"{what}s {a} to {b}" for a, b in found]


class Samples:
    """The samples of a run's rows.

    Parameters
    ----------
    source : Source
        The file.
    name : str
        Of the run.
    places : mapping
        Where its measurements are, as the seal has it.
    rows : mapping
        Its whole rows by their numbers.
    """

    def __init__(
        self, source: Source, name: str, places: Mapping[str, Any], rows: Mapping[int, Stored]
    ) -> None:
        self._source = source
        self._name = name
        self._place = places["samples"]
        self._rows = rows
        self._last: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __call__(self, number: int) -> np.ndarray:
        """Return the samples of row `number`, shape ``(repetitions, ranks)``.

        Raises
        ------
        Damaged
            If they are damaged.
        OSError
            If the file cannot be read.
        """
        row = self._rows[number]
        begin, end = row.first_sample, row.first_sample + row.repetitions
        samples = self._contiguous(begin, end) if "at" in self._place else self._chunked(begin, end)
        if (
            samples is None
            or coding.samples_checksum(self._name, number, samples) != row.samples_checksum
        ):
            raise Damaged(f"samples of row {number}: {DIFFERS}")
        return samples

    def _contiguous(self, begin: int, end: int) -> np.ndarray | None:
        ranks = self._place["ranks"]
        width = ranks * SAMPLE.itemsize
        data = self._source.read(self._place["at"] + begin * width, (end - begin) * width)
        samples = _samples(data, end - begin, ranks)
        return None if samples is None else samples.copy()

    def _chunked(self, begin: int, end: int) -> np.ndarray | None:
        tall, ranks = self._place["tall"], self._place["ranks"]
        parts = [np.empty((0, ranks), SAMPLE)]
        for index in range(begin // tall, -(-end // tall) if end > begin else begin // tall):
            chunk = self._chunk(index)
            if chunk is None:
                return None
            parts.append(chunk[max(begin - index * tall, 0) : end - index * tall])
        return np.concatenate(parts)

    def _chunk(self, index: int) -> np.ndarray | None:
        """Return a chunk as HDF5's filters, shuffle and then deflate, were given it."""
        if self._last[0] == index:
            return self._last[1]
        tall, ranks = self._place["tall"], self._place["ranks"]
        at, size, skipped, crc = self._place["chunks"][index]
        data = self._source.read(at, size)
        if zlib.crc32(data) != crc:
            return None
        if not skipped & 2:
            data = zlib.decompress(data)
        if not skipped & 1:
            data = np.frombuffer(data, np.uint8).reshape(SAMPLE.itemsize, -1).T.tobytes()
        chunk = _samples(data, tall, ranks)
        if chunk is not None:
            self._last = index, chunk
        return chunk


def _samples(data: bytes, length: int, ranks: int) -> np.ndarray | None:
    whole = len(data) == length * ranks * SAMPLE.itemsize
    return np.frombuffer(data, SAMPLE).reshape(length, ranks) if whole else None
