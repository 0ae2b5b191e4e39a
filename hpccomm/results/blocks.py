"""Blocks of recorded calls: thousands of calls of one rank, packed column by column; and the columns of all ranks.

A block begins with three numbers of each of `CALL_COLUMNS`: its first value, the bytes of a number, and the bytes that it
takes. The columns follow, each as a stream of zlib. What is stored of a call are small numbers: the difference to the call
before; of ``end``, to its begin; of ``asked``, one more than that, or 0 if it is 0; of ``waited``, one more, or 0 if that is
the whole call. Of all numbers of a column, the lowest bytes come first, then the next ones: the upper ones are mostly equal.

A rank packs its calls once, as they end: with times of its own clock, and its own numbers of signatures. Joined recordings
have copies of these blocks, with the readings of its clock and the common numbers of its signatures.
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
from hpccomm.results.recording import BLOCKS, CALL_COLUMNS, Calls

CALLS = 1 << 14
"""Calls of a block. A damaged one loses all of them."""

(PACKED,) = BLOCKS.beside

_LEVEL = 1

_HEAD = 3 * 8 * len(CALL_COLUMNS)

_KINDS = {each.name: np.dtype(each.kind) for each in CALL_COLUMNS}

_WITHIN_CALL = {"end", "asked", "waited"}
"""Columns that are stored relative to the call itself, and not to the call before."""


def pack(calls: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return the bytes of a block: columns of at least one call, by the names of `CALL_COLUMNS`."""
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


class PackedCalls:
    """The blocks of one file, of all ranks whose calls it has.

    Parameters
    ----------
    table : StoredLines
        The table of blocks. Damaged ones are added to its damage.
    ranks : int
        Number of ranks.

    Attributes
    ----------
    starts : ndarray of int64
        The first call of each rank, and behind the last one.
    """

    def __init__(self, table: StoredLines, ranks: int) -> None:
        self._table = table
        self._columns: dict[str, NDArray[np.int64]] = {}
        heads = {index: packed[:_HEAD].view("<i8") for index, packed in table.parts(PACKED.name)}
        lines = table.lines[list(heads)]
        by_rank = np.argsort(lines["rank"], kind="stable")
        numbers = np.array([*heads.values()], np.int64).reshape(-1, len(_KINDS), 3)[by_rank]
        self._firsts, self._widths, self._sizes = numbers.T
        self._at = lines[PACKED.first][by_rank] + _HEAD + np.cumsum(self._sizes, 0) - self._sizes
        self._ends = np.cumsum(lines["calls"][by_rank])
        calls = np.bincount(lines["rank"], lines["calls"], ranks).astype(np.int64)
        self.starts = np.concatenate(([0], np.cumsum(calls)))

    def packed(self, rank: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the whole blocks of a rank, each with the number of its calls."""
        for index, packed in self._table.parts(PACKED.name):
            line = self._table.lines[index]
            if line["rank"] == rank:
                yield int(line["calls"]), packed

    def read(self) -> None:
        """Unpack all columns now, and close the file: a program may replace it, and a process may open some thousand files."""
        for name in _KINDS:
            self.numbers(name)
        self._table.close()

    def forget(self) -> None:
        """Drop the unpacked columns."""
        self._columns.clear()

    def numbers(self, name: str) -> NDArray[np.int64]:
        """Return the stored numbers of a column. Differences to the call before are summed up.

        Raises
        ------
        ResultsError
            If the file cannot be read any more.
        """
        if name in self._columns:
            return self._columns[name]
        place, out = [*_KINDS].index(name), np.empty(int(self.starts[-1]), np.int64)

        def unpack(blocks: NDArray[np.intp]) -> None:
            for block in blocks.tolist():
                end, width = int(self._ends[block]), int(self._widths[place, block])
                begin = int(self._ends[block - 1]) if block else 0
                at, size = int(self._at[place, block]), int(self._sizes[place, block])
                data = zlib.decompress(self._table.read(PACKED.name, at, size))
                planes = np.frombuffer(data, "u1").reshape(width, end - begin)
                numbers = np.stack([*planes], -1).view(f"<i{width}").reshape(-1)
                if name in _WITHIN_CALL:
                    out[begin:end] = numbers
                else:
                    np.cumsum(numbers, dtype=np.int64, out=out[begin:end])
                    out[begin:end] += self._firsts[place, block]

        workers = min(8, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:  # zlib leaves the interpreter to others
            list(pool.map(unpack, np.array_split(np.arange(len(self._ends)), workers)))
        self._columns[name] = out
        return out


@dataclass(frozen=True)
class RankCalls:
    """The calls of a rank as they are stored, with the readings of its clock and the common numbers of its signatures.

    Attributes
    ----------
    blocks : PackedCalls
        The file's blocks, which have them in no certain order.
    where : slice
        Their place among the calls of the blocks, with start and stop.
    clock : sequence of (int, int, int)
        Each reading of its clock, how much it is ahead of the common clock, and a bound of the error, in ns. Without
        readings, its times are those of the common clock.
    numbers : sequence of int or None
        The common number of each of its signatures. None: its numbers are the common ones.
    """

    blocks: PackedCalls
    where: slice
    clock: Sequence[Sequence[int]] = ()
    numbers: Sequence[int] | None = None

    @cached_property
    def _order(self) -> NDArray[np.intp] | slice:
        """The places of the calls in the order of their begins."""
        begin = self._stored("begin")
        ordered = np.all(begin[1:] >= begin[:-1])
        return slice(None) if ordered else np.argsort(begin, kind="stable")

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, in the order of their begins."""
        return self._common(name).astype(_KINDS[name], copy=False)[self._order]

    def _stored(self, name: str) -> NDArray[np.int64]:
        return self.blocks.numbers(name)[self.where]

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
        """Return times by the common clock: between its readings, clocks run evenly."""
        if not self.clock:
            return times
        local, ahead, _ = np.array(self.clock, np.int64).T
        # float64 holds the differences to the nanosecond.
        more = np.interp((times - local[0]).astype(float), local - local[0], ahead - ahead[0])
        shown: NDArray[np.int64] = times - ahead[0] - np.rint(more).astype(np.int64)
        return shown


class StoredColumns(Mapping[str, NDArray[Any]]):
    """The columns of the calls of all ranks, each made when it is first asked for.

    Attributes
    ----------
    ranks : dict of int to RankCalls
        The calls of each rank that has some.
    """

    def __init__(self, ranks: Mapping[int, RankCalls]) -> None:
        self.ranks = dict(sorted(ranks.items()))
        self._columns: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column; raise as `PackedCalls.numbers` does."""
        if name not in self._columns:
            each = [np.empty(0, _KINDS[name]), *(one.column(name) for one in self.ranks.values())]
            self._columns[name] = np.concatenate(each)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(_KINDS)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(_KINDS)

    def read(self) -> None:
        """Make all columns now, and keep no other copy of them."""
        for name in self:
            _ = self[name]
        for each in self.ranks.values():
            each.blocks.forget()


def of_ranks(ranks: int, each: Mapping[int, RankCalls]) -> Calls:
    """Return the calls of all ranks, from those of each rank that has some."""
    wheres = [each[rank].where if rank in each else slice(0, 0) for rank in range(ranks)]
    starts = np.cumsum([0, *(where.stop - where.start for where in wheres)])
    return Calls(starts, StoredColumns(each))
