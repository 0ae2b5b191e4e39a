"""Blocks of recorded calls: thousands of calls of one rank, packed column by column; and the columns of all ranks.

A block begins with three numbers of each of `CALL_COLUMNS`: its first value, the bytes of a number, and the bytes that it
takes. The columns follow, each as a stream of zlib. What is stored of a call are small numbers: the difference to the call
before; of ``end``, to its begin; of ``asked``, one more than that, or 0 if it is 0; of ``waited``, one more, or 0 if that is
the whole call. Of all numbers of a column, the lowest bytes come first, then the next ones: the upper ones are mostly equal.

A rank packs its calls once, as they end: with times of its own clock, and its own numbers of signatures. Joined recordings
have copies of these blocks, and what takes them to the common clock and to common numbers.
"""

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.lines import StoredLines
from hpccomm.results.recording import BLOCKS, CALL_COLUMNS

CALLS = 1 << 14
"""Calls of a block. A damaged one loses all of them."""

(PACKED,) = BLOCKS.beside

_LEVEL = 1

_HEAD = 3 * 8 * len(CALL_COLUMNS)

_KINDS = {each.name: np.dtype(each.kind) for each in CALL_COLUMNS}

_APART = {"end", "asked", "waited"}  # not from the call before


def pack(calls: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the bytes of a block of at least one call, by the names of `CALL_COLUMNS`."""
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


class StoredColumns(Mapping[str, NDArray[Any]]):
    """The columns of stored calls, each unpacked when it is first asked for.

    Parameters
    ----------
    blocks : StoredLines
        The table of blocks. Damaged ones are added to its damage.
    ranks : int
        Number of ranks.

    Attributes
    ----------
    starts : ndarray of int64
        As `hpccomm.results.recording.Calls.starts`.
    """

    def __init__(self, blocks: StoredLines, ranks: int) -> None:
        self._blocks = blocks
        self._columns: dict[str, NDArray[Any]] = {}
        heads = {index: packed[:_HEAD].view("<i8") for index, packed in blocks.parts(PACKED.name)}
        lines = blocks.lines[list(heads)]
        by_rank = np.argsort(lines["rank"], kind="stable")
        table = np.array([*heads.values()], np.int64).reshape(-1, len(_KINDS), 3)[by_rank]
        self._firsts, self._widths, self._sizes = table.T
        self._at = lines[PACKED.first][by_rank] + _HEAD + np.cumsum(self._sizes, 0) - self._sizes
        self._ends = np.cumsum(lines["calls"][by_rank])
        calls = np.bincount(lines["rank"], lines["calls"], ranks).astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(calls)))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Raises
        ------
        ResultsError
            If the file cannot be read any more.
        """
        if name not in self._columns:
            numbers = self._numbers(name)
            match name:
                case "end":
                    numbers += self["begin"]
                case "asked":
                    np.add(numbers, self["begin"] - 1, out=numbers, where=numbers != 0)
                case "waited":
                    numbers -= 1
                    np.subtract(self["end"], self["begin"], out=numbers, where=numbers < 0)
            self._columns[name] = numbers.astype(_KINDS[name], copy=False)
        return self._columns[name]

    def packed(self, rank: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the whole blocks of a rank, each with the number of its calls."""
        for index, packed in self._blocks.parts(PACKED.name):
            line = self._blocks.lines[index]
            if line["rank"] == rank:
                yield int(line["calls"]), packed

    def read(self) -> None:
        """Read all columns now, and close the file: its program may go on, and a process may open some thousand files."""
        for name in self:
            _ = self[name]
        self._blocks.close()

    def forget(self) -> None:
        """Keep no column any more."""
        self._columns.clear()

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_KINDS)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(_KINDS)

    def _numbers(self, name: str) -> NDArray[np.int64]:
        """Return what is stored of a column; of differences to the call before, their sums."""
        place, out = [*_KINDS].index(name), np.empty(int(self.starts[-1]), np.int64)

        def unpack(blocks: NDArray[np.intp]) -> None:
            for block in blocks.tolist():
                end, width = int(self._ends[block]), int(self._widths[place, block])
                begin = int(self._ends[block - 1]) if block else 0
                at, size = int(self._at[place, block]), int(self._sizes[place, block])
                data = zlib.decompress(self._blocks.read(PACKED.name, at, size))
                planes = np.frombuffer(data, "u1").reshape(width, end - begin)
                numbers = np.stack([*planes], -1).view(f"<i{width}").reshape(-1)
                if name in _APART:
                    out[begin:end] = numbers
                else:
                    np.cumsum(numbers, dtype=np.int64, out=out[begin:end])
                    out[begin:end] += self._firsts[place, block]

        workers = min(8, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:  # zlib leaves the interpreter to others
            list(pool.map(unpack, np.array_split(np.arange(len(self._ends)), workers)))
        return out


@dataclass(frozen=True)
class OwnCalls:
    """The calls of a rank as it has written them.

    Attributes
    ----------
    stored : StoredColumns
        Has them: by its own clock, with its own numbers of signatures, in no certain order.
    where : slice
        Where in the columns they are.
    clock : sequence of (int, int, int)
        Readings: what the clock showed, how much that was ahead of the common clock, and a bound of the error, in ns.
    numbers : sequence of int
        The common number of each of its signatures.
    """

    stored: StoredColumns
    where: slice
    clock: Sequence[Sequence[int]]
    numbers: Sequence[int]

    @property
    def size(self) -> int:
        """How many they are."""
        return len(range(*self.where.indices(int(self.stored.starts[-1]))))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column as the rank has written it."""
        return self.stored[name][self.where]

    @cached_property
    def _order(self) -> NDArray[np.intp] | slice:
        """Their places in the order of their begins."""
        begin = self["begin"]
        ordered = np.all(begin[1:] >= begin[:-1])
        return slice(None) if ordered else np.argsort(begin, kind="stable")

    def common(self, name: str) -> NDArray[Any]:
        """Return a column by the common clock and by common numbers, in the order of their begins."""
        column = self[name]
        match name:
            case "signature":
                column = np.array(self.numbers, _KINDS[name])[column]
            case "begin" | "end":
                column = self._shown(column)
            case "asked":
                column = np.where(column == 0, 0, self._shown(column))
            case "waited":
                throughout = column == self["end"] - self["begin"]
                whole = self._shown(self["end"]) - self._shown(self["begin"])
                column = np.where(throughout, whole, column)
        return column[self._order]

    def _shown(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return times by the common clock: between its readings, clocks run evenly."""
        if not self.clock:
            return times
        local, ahead, _ = np.array(self.clock, np.int64).T
        # float64 holds the differences to the nanosecond.
        more = np.interp((times - local[0]).astype(float), local - local[0], ahead - ahead[0])
        shown: NDArray[np.int64] = times - ahead[0] - np.rint(more).astype(np.int64)
        return shown


class JoinedColumns(Mapping[str, NDArray[Any]]):
    """The columns of the calls of all ranks, each made when it is first asked for.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    own : mapping of int to OwnCalls
        The calls of the ranks that have some.

    Attributes
    ----------
    own : dict of int to OwnCalls
        The parameter.
    starts : ndarray of int64
        As `hpccomm.results.recording.Calls.starts`.
    """

    def __init__(self, ranks: int, own: Mapping[int, OwnCalls]) -> None:
        self.own = dict(sorted(own.items()))
        self.starts = np.cumsum([0, *(own[n].size if n in own else 0 for n in range(ranks))])
        self._columns: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column; raise as `StoredColumns` does."""
        if name not in self._columns:
            each = [np.empty(0, _KINDS[name]), *(own.common(name) for own in self.own.values())]
            self._columns[name] = np.concatenate(each)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_KINDS)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(_KINDS)

    def read(self) -> None:
        """Make all columns now, of which no other copy is kept."""
        for name in self:
            _ = self[name]
        for own in self.own.values():
            own.stored.forget()
