"""Blocks of recorded calls: thousands of calls of one rank, packed column by column; and the columns of all ranks.

A block begins with three numbers for each of `CALL_COLUMNS`: the first value, the bytes of one number, and the bytes of the
whole column. The columns follow, each as a stream of zlib. The stored numbers are small:

- ``end`` is stored as the time since the call's begin.
- ``asked`` is stored as the time since the call's begin plus 1, or 0 if it is 0.
- ``waited`` is stored as itself plus 1, or 0 if it is the whole call.
- All others are stored as the difference to the call before.

A column has the lowest bytes of all its numbers first, then their next bytes, and so on: the upper bytes are mostly equal.

A rank packs its calls once, when they end. They have times of its own clock, and its own numbers of signatures. Joined
recordings have copies of these blocks, with the readings of the rank's clock and the common numbers of its signatures.
"""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.lines import StoredLines
from hpccomm.results.recording import BLOCKS, CALL_COLUMNS, Calls

CALLS = 1 << 14
"""Number of calls in a block. If a block is damaged, all its calls are lost."""

(PACKED,) = BLOCKS.beside

_LEVEL = 1

_WORKERS = min(8, os.cpu_count() or 1)
"""Number of threads that unpack. They run at the same time, since zlib releases the interpreter."""

_HEAD = 3 * 8 * len(CALL_COLUMNS)

_KINDS = {each.name: np.dtype(each.kind) for each in CALL_COLUMNS}

_WITHIN_CALL = {"end", "asked", "waited"}
"""Columns that are stored relative to the call itself, and not to the call before."""


_SHARED = {"begin", "end"}
"""Columns from which others are computed."""


def pack(calls: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the bytes of a block, from columns by the names of `CALL_COLUMNS`. There is at least one call."""
    head = np.zeros((len(_KINDS), 3), "<i8")
    given = {name: np.asarray(calls[name]).astype(np.int64) for name in _KINDS}
    seconds = given["end"] - given["begin"]
    streams = []
    for line, (name, values) in zip(head, given.items(), strict=True):
        match name:
            case "end":
                numbers = seconds
            case "asked":
                numbers = np.where(values == 0, 0, values - given["begin"] + 1)
            case "waited":
                numbers = np.where(values == seconds, 0, values + 1)
            case _:
                line[0] = values[0]
                numbers = np.diff(values, prepend=values[:1])
        least, most = numbers.min(), numbers.max()
        line[1] = next(n for n in (1, 2, 4, 8) if -least - 1 >> 8 * n - 1 <= 0 >= most >> 8 * n - 1)
        planes = numbers.astype(f"<i{line[1]}").view("u1").reshape(len(numbers), -1).T
        streams.append(zlib.compress(planes.tobytes(), _LEVEL))
        line[2] = len(streams[-1])
    return np.frombuffer(head.tobytes() + b"".join(streams), "u1")


def heads(table: StoredLines) -> dict[int, dict[int, NDArray[np.int64]]]:
    """Return the heads of each rank's whole blocks, by the index of the line. Damaged blocks go to the table's damage."""
    ranks = table.lines["rank"].tolist()
    found: dict[int, dict[int, NDArray[np.int64]]] = {}
    for index, packed in table.parts(PACKED.name):
        head = packed[:_HEAD].copy().view("<i8").reshape(-1, 3)
        found.setdefault(ranks[index], {})[index] = head
    return found


@dataclass(frozen=True)
class RankCalls:
    """The calls of a rank as they are stored, with the readings of its clock and the common numbers of its signatures.

    Attributes
    ----------
    table : StoredLines
        The file's table of blocks.
    heads : mapping of int to ndarray
        The head of each of the rank's blocks, by the index of its line.
    clock : sequence of (int, int, int)
        For each reading of its clock: the reading, how far it is ahead of the common clock, and a bound of the error, in
        ns. Without readings, its times are those of the common clock.
    numbers : sequence of int or None
        The common number of each of its signatures. If it is None, the rank's numbers are the common ones.
    unpacked : dict of str to ndarray
        The stored numbers of columns that are kept. After `read`, these are all columns. Before, they are the columns from
        which others are computed.
    """

    table: StoredLines
    heads: Mapping[int, NDArray[np.int64]]
    clock: Sequence[Sequence[int]] = ()
    numbers: Sequence[int] | None = None
    unpacked: dict[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """Number of calls."""
        return int(self.table.lines["calls"][[*self.heads]].sum())

    def packed(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the blocks, each with the number of its calls."""
        for index in self.heads:
            packed = self.table.part(self.table.numbers[index], PACKED.name)
            yield int(self.table.lines["calls"][index]), packed

    def read(self) -> None:
        """Unpack all columns now, and close the file. A program may then replace it, and many files can be read."""
        with ThreadPoolExecutor(_WORKERS) as pool:
            self.unpacked.update(zip(_KINDS, pool.map(self._stored, _KINDS), strict=True))
        self.table.close()

    @cached_property
    def _order(self) -> NDArray[np.intp] | slice:
        """The places of calls in the order in which they began."""
        begin = self._stored("begin")
        ordered = np.all(begin[1:] >= begin[:-1])
        return slice(None) if ordered else np.argsort(begin, kind="stable")

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, in the order in which calls began."""
        return self._common(name).astype(_KINDS[name], copy=False)[self._order]

    def _stored(self, name: str) -> NDArray[np.int64]:
        """Return the numbers of a column, with differences to the call before already summed up.

        Raises
        ------
        ResultsError
            If the file cannot be read any more.
        """
        if name in self.unpacked:
            return self.unpacked[name]
        place = [*_KINDS].index(name)

        def unpack(index: int) -> NDArray[np.int64]:
            head = self.heads[index]
            first, width, size = head[place].tolist()
            at = int(self.table.lines[PACKED.first][index] + _HEAD + head[:place, 2].sum())
            data = zlib.decompress(self.table.read(PACKED.name, at, size))
            planes = np.frombuffer(data, "u1").reshape(width, -1)
            numbers = np.stack([*planes], -1).view(f"<i{width}").reshape(-1)
            return numbers if name in _WITHIN_CALL else first + np.cumsum(numbers, dtype="i8")

        numbers = np.concatenate([np.empty(0, "i8"), *map(unpack, self.heads)])
        if name in _SHARED:
            self.unpacked[name] = numbers
        return numbers

    def _common(self, name: str) -> NDArray[Any]:
        """Return a column in the order in which it is stored."""
        stored = self._stored(name)
        match name:
            case "signature" if self.numbers is not None:
                return np.array(self.numbers, np.int64)[stored]
            case "begin":
                return self._shown(stored)
            case "end":
                return self._shown(self._stored("begin") + stored)
            case "asked":
                return np.where(stored == 0, 0, self._shown(self._stored("begin") + stored - 1))
            case "waited":
                return np.where(
                    stored == 0, self._common("end") - self._common("begin"), stored - 1
                )
        return stored

    def _shown(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times by the common clock. Between two readings, the difference of the clocks is linear."""
        if not self.clock:
            return times
        local, ahead, _ = np.array(self.clock, np.int64).T
        # float64 holds the differences to the nanosecond.
        more = np.interp((times - local[0]).astype(float), local - local[0], ahead - ahead[0])
        shown: NDArray[np.int64] = times - ahead[0] - np.rint(more).astype(np.int64)
        return shown


class StoredColumns(Mapping[str, NDArray[Any]]):
    """The columns of the calls of all ranks. Each is made on first use.

    Attributes
    ----------
    ranks : dict of int to RankCalls
        The calls of each rank that has any.
    """

    def __init__(self, ranks: Mapping[int, RankCalls]) -> None:
        self.ranks = dict(sorted(ranks.items()))
        self._columns: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column. Raise a `ResultsError` if the file cannot be read any more."""
        if name not in self._columns:
            with ThreadPoolExecutor(_WORKERS) as pool:
                each = pool.map(lambda one: one.column(name), self.ranks.values())
                self._columns[name] = np.concatenate([np.empty(0, _KINDS[name]), *each])
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_KINDS)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(_KINDS)

    def read(self) -> None:
        """Make all columns now, and keep no other copy of their numbers."""
        for name in self:
            _ = self[name]
        for each in self.ranks.values():
            each.unpacked.clear()


def of_ranks(ranks: int, each: Mapping[int, RankCalls]) -> Calls:
    """Return the calls of all ranks, from the calls of each rank that has any."""
    counts = [each[rank].count if rank in each else 0 for rank in range(ranks)]
    return Calls(np.cumsum([0, *counts]), StoredColumns(each))
