"""The measurements of a sealed file, by plain reads: each row and each row's samples has its checksum."""

import math
import os
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hpccomm import units
from hpccomm.errors import ResultsError
from hpccomm.files.regular import open_regular
from hpccomm.results import coding
from hpccomm.results.coding import (
    ROW_BYTES,
    SAMPLE,
    STATE_BYTES,
    TIMING_BYTES,
    Stored,
    StoredTiming,
)

_Line = TypeVar("_Line", Stored, StoredTiming)
_Table = tuple[
    str, int, Callable[[str, int, bytes], Stored | StoredTiming | None], str, Mapping[int, Any]
]

_BLOCK = 1 << 20
_PAGE = 4096
_TRIES = 5

EMPTY = ""
BEGUN = "what comes next was being written"
FILLED = "space that holds nothing yet: not empty"
"""What is said of the space for more rows."""

DIFFERS = "stored checksum differs: not shown"
"""What is said of damage."""

UNKNOWN = "unknown: the end of the run is damaged"
"""Status of a run whose end is damaged."""


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
    timings : dict
        The whole timings by the numbers of their rows.
    ended : float
        When the run ended, in seconds; 0 if it has no end.
    status : str
        How.
    damage : list of str
        What is not whole.
    """

    rows: dict[int, Stored]
    timings: dict[int, StoredTiming]
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
    rows = _lines(source, name, at, count, ROW_BYTES, coding.decode_row)
    timings = {}
    if "timings" in places:
        at, _ = places["timings"]
        timings = _lines(source, name, at, count, TIMING_BYTES, coding.decode_timing)
        lost = [number for number in range(count) if number not in timings]
        damage += [f"timing of {numbers}: {DIFFERS}" for numbers in spans("row", lost)]
    lost = [number for number in range(count) if number not in rows]
    damage += [f"{numbers}: {DIFFERS}" for numbers in spans("row", lost)]
    end = coding.decode_end(name, state)
    if end is None:
        damage.append(f"end of the run: {DIFFERS}")
    return WholeRows(rows, timings, *(end or (0.0, UNKNOWN)), damage)


def _lines(
    source: Source,
    name: str,
    at: int,
    count: int,
    size: int,
    decode: Callable[[str, int, bytes], _Line | None],
) -> dict[int, _Line]:
    """Return the whole lines of a table of run `name` by their numbers."""
    data = source.read(at, count * size)
    lines = (
        decode(name, number, data[number * size : (number + 1) * size]) for number in range(count)
    )
    return {number: line for number, line in enumerate(lines) if line is not None}


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
    ended = measured.ended
    number = max(measured.rows, default=-1) + 1
    status = source.read(places["state"], STATE_BYTES)[coding.STATUS_AT :].strip(b"\0")
    if status and not ended and not status.startswith((b"completed", b"failed: ")):
        return FILLED
    begun = bool(status and not ended)
    parts = []
    tables: list[_Table] = [
        ("rows", ROW_BYTES, coding.decode_row, "samples", measured.rows),
        ("timings", TIMING_BYTES, coding.decode_timing, "isolated", measured.timings),
    ]
    for table, size, decode, numbers, lines in tables:
        if table not in places:
            continue
        at, slots = places[table]
        begin, end = at + number * size, at + slots * size
        following = None
        if not ended:
            data = source.read(begin, min(size, end - begin)).rstrip(b"\0")
            begin += size
            following = decode(name, number, data.ljust(size, b"\0")) if data else None
            broken_off = (begin - size + len(data)) // _PAGE != begin // _PAGE
            if data and following is None and not broken_off:
                return FILLED  # a write that is broken off ends with a page
            begun = begun or bool(data)
        parts.append((begin, end))
        place = places[numbers]
        if "at" not in place:
            continue
        last = lines.get(number - 1)
        used = last[1] + last[2] if last else 0
        width = place["ranks"] * place.get("each", 1) * SAMPLE.itemsize
        first, end = (place["at"] + each * width for each in (used, place["length"]))
        if following is not None:
            first += following[2] * width
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
    return [f"{what} {a}" if a == b else f"{what}s {a} to {b}" for a, b in units.spans(numbers)]


class Numbers:
    """The samples of a run's rows, or their isolated repetitions.

    Parameters
    ----------
    source : Source
        The file.
    name : str
        Of the run.
    what : str
        ``samples`` or ``isolated``.
    place : mapping
        Where they are, as the seal has it.
    lines : mapping
        The run's whole rows, or timings, by their numbers.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        what: str,
        place: Mapping[str, Any],
        lines: Mapping[int, Stored] | Mapping[int, StoredTiming],
    ) -> None:
        self._source = source
        self._name = name
        self._what = what
        self._place = place
        self._shape = (place["ranks"], *([place["each"]] if "each" in place else []))
        self._lines = lines
        self._last: tuple[int, np.ndarray] = (-1, np.empty(0))

    def __call__(self, number: int) -> np.ndarray:
        """Return those of row `number`, shape ``(repetitions, ranks)`` or ``(repetitions, ranks, 2)``.

        Raises
        ------
        Damaged
            If they are damaged.
        OSError
            If the file cannot be read.
        """
        line = self._lines.get(number)
        if line is None:  # a timing that is damaged: its row is whole
            raise Damaged(f"{self._what} of row {number}: {DIFFERS}")
        _, first, repetitions, stored = line
        begin, end = first, first + repetitions
        found = self._contiguous(begin, end) if "at" in self._place else self._chunked(begin, end)
        if (
            found is None
            or coding.samples_checksum(self._name, self._what, number, found) != stored
        ):
            raise Damaged(f"{self._what} of row {number}: {DIFFERS}")
        return found

    def _contiguous(self, begin: int, end: int) -> np.ndarray | None:
        width = math.prod(self._shape) * SAMPLE.itemsize
        data = self._source.read(self._place["at"] + begin * width, (end - begin) * width)
        found = self._shaped(data, end - begin)
        return None if found is None else found.copy()

    def _chunked(self, begin: int, end: int) -> np.ndarray | None:
        tall = self._place["tall"]
        parts = [np.empty((0, *self._shape), SAMPLE)]
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
        at, size, skipped, crc = self._place["chunks"][index]
        data = self._source.read(at, size)
        if zlib.crc32(data) != crc:
            return None
        if not skipped & 2:
            data = zlib.decompress(data)
        if not skipped & 1:
            data = np.frombuffer(data, np.uint8).reshape(SAMPLE.itemsize, -1).T.tobytes()
        chunk = self._shaped(data, self._place["tall"])
        if chunk is not None:
            self._last = index, chunk
        return chunk

    def _shaped(self, data: bytes, length: int) -> np.ndarray | None:
        shape = (length, *self._shape)
        whole = len(data) == math.prod(shape) * SAMPLE.itemsize
        return np.frombuffer(data, SAMPLE).reshape(shape) if whole else None
