"""Which collective on how many ranks has the printed bus bandwidth.

A printed figure stands for all numbers that round to it. A row fits a collective on some ranks if
there are a time, an algorithm bandwidth and a bus bandwidth within these bounds that agree
(``GetBw`` of each of nccl-tests' programs).

`hpccomm.bench.logs.identifying` asks it for each row of a table.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.bench.perf.names import TYPES
from hpccomm.contracts.collectives import OF_NCCL_TESTS

ITEMSIZES = {name: dtype.itemsize for name, dtype in TYPES.items()} | {
    "char": 1,
    "int": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,  # of old versions, and of rccl-tests
}
"""Bytes of an element, by the name of its type."""

_EXACT = 1e-6
"""Relative error of figures that are printed in full: nccl-tests' JSON has six decimals."""

MOST_RANKS = 1 << 16
"""More are not looked for."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A printed number: its text's value, and the least and largest numbers that print the same."""

    low: float
    high: float
    value: float

    def times(self, factor: float) -> "Figure":
        """Return it in another unit."""
        return Figure(self.low * factor, self.high * factor, round(self.value * factor, 9))

    def refined(self, exact: float) -> float:
        """Return a number that was computed if it prints so, else the printed one."""
        return exact if self.low <= exact <= self.high else self.value


def figure(text: str) -> Figure:
    """Return a printed number.

    Raises
    ------
    ValueError
        If the text is not a number.
    """
    value = float(text)
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    half = 0.5 * 10.0 ** (int(exponent or 0) - decimals) + abs(value) * 1e-9
    return Figure(max(0.0, value - half), value + half, value)


def exact(value: float) -> Figure:
    """Return a number of JSON, which has at least six decimals."""
    slack = _EXACT + abs(value) * _EXACT
    return Figure(max(0.0, value - slack), value + slack, value)


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """Half a line of a table, as it is printed.

    Attributes
    ----------
    line : int
        Of the log, from 1.
    dtype, op : str
        As printed; empty if not printed.
    root : int
        -1 without one.
    size, count : int
        Bytes, and elements; `count` is -1 if not printed.
    in_place : bool
        Whether it is the half in place.
    time, algbw, busbw : Figure
        Microseconds, and 1e9 B/s.
    wrong : int
        -1 if it is not printed.
    finished : float
        When it was measured, since 1970 in seconds; 0 if it is not printed.
    iterations : int
        Repetitions; 0 if they are not printed.
    repetitions : dict or None
        Times of repetitions, as nccl-tests' JSON has them.
    """

    line: int
    dtype: str
    op: str
    root: int
    size: int
    count: int
    in_place: bool
    time: Figure
    algbw: Figure
    busbw: Figure
    wrong: int
    finished: float = 0.0
    iterations: int = 0
    repetitions: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TableKind:
    """The measurement and its ranks; `carried` is the size's part in algorithm bandwidth."""

    collective: str
    ranks: int
    carried: float = 1.0

    @property
    def factor(self) -> float:
        """Bus bandwidth over size / time."""
        benchmark = COLLECTIVES[self.collective]
        return benchmark.carried(self.ranks) * benchmark.what.bus_factor(self.ranks)


def kinds(collective: str, ranks: int) -> list[TableKind]:
    """Return a collective on some ranks, in each way of its bandwidth."""
    carried = [COLLECTIVES[collective].carried(ranks)]
    if collective in ("all_gather", "reduce_scatter"):  # until June 2020 all but the rank's own
        carried.append((ranks - 1) / ranks)
    return [TableKind(collective, ranks, each) for each in carried]


def fits(row: PrintedRow, kind: TableKind, *, timed: bool = True, counted: bool = True) -> bool:
    """Whether a row can be of this kind.

    Parameters
    ----------
    timed : bool
        Whether the bandwidth is that of the printed time, which may be the host's.
    counted : bool
        Whether reduction, root and count are as nccl-tests prints them.
    """
    if counted and not _belongs(row, kind):
        return False
    of_algbw = kind.factor / kind.carried if kind.carried else 0.0
    if not _overlap(row.busbw, row.algbw.times(of_algbw)):
        return False
    # nccl-tests' all-to-all-v counts what the busiest rank has.
    if not timed or kind.collective == "all_to_all_v":
        return True
    size = row.size / 1e3
    low, high = (size / each if each else math.inf for each in (row.time.high, row.time.low))
    base = Figure(low, high, 0.0)
    rates = (row.algbw, kind.carried), (row.busbw, kind.factor)
    return all(_overlap(rate, base.times(part)) for rate, part in rates)


def _belongs(row: PrintedRow, kind: TableKind) -> bool:
    """Whether reduction, root, and size against count can be of this kind."""
    benchmark = COLLECTIVES[kind.collective]
    named = row.op not in ("", "none") and not benchmark.names_op
    if row.op == "none" if benchmark.what.reduces else named:
        return False
    if benchmark.what.rooted != (row.root >= 0):
        return False
    itemsize = ITEMSIZES.get(row.dtype, 0)
    if not itemsize or row.count <= 0 or kind.collective == "all_to_all_v":
        return True
    return row.size == row.count * itemsize * (kind.ranks if benchmark.what.blockwise else 1)


def _overlap(one: Figure, other: Figure) -> bool:
    return one.low <= other.high and other.low <= one.high


NOT_IN_PLACE = ("all_to_all", "all_to_all_v")
"""The collectives that cannot be in place, and are measured as if."""


def possible(rows: Sequence[PrintedRow]) -> list[str]:
    """Return the collectives of nccl-tests whose rows name a reduction and a root, and are verified, as these are."""
    op = any(row.op not in ("", "none") for row in rows)
    root = any(row.root >= 0 for row in rows)
    names = [
        name
        for name in OF_NCCL_TESTS
        if (COLLECTIVES[name].what.reduces or COLLECTIVES[name].names_op) == op
        and COLLECTIVES[name].what.rooted == root
    ]
    # hypercube leaves the reduction blank; since September 2022 all-to-all in place is not verified.
    if not op and any(row.op for row in rows):
        names = [name for name in names if name != "hypercube"]
    verified = {row.in_place for row in rows if row.wrong >= 0}
    if verified == {False} and any(row.in_place for row in rows):
        return [name for name in names if name in NOT_IN_PLACE]
    if True in verified:
        return [name for name in names if name not in NOT_IN_PLACE]
    return names


def numbers_of_ranks(rows: Sequence[PrintedRow], collective: str) -> Sequence[int]:
    """Return the numbers of ranks that a table may be of, from sizes and counts, or from the bandwidths."""
    benchmark = COLLECTIVES[collective]
    if benchmark.what.blockwise and collective != "all_to_all_v":
        sizes = {
            row.size // (row.count * ITEMSIZES[row.dtype])
            for row in rows
            if row.count > 0 and row.size and row.dtype in ITEMSIZES
        }
        if sizes:
            return sorted(each for each in sizes if each)
    informative = [row for row in rows if row.algbw.low > 0]
    if not informative or benchmark.what.bus_factor(2) == benchmark.what.bus_factor(3):
        return ()  # whatever their number
    # The sharpest row; whether the others fit is looked at afterwards.
    row = min(informative, key=lambda row: (row.busbw.high - row.busbw.low) / row.busbw.high)
    low, high = row.busbw.low / row.algbw.high, row.busbw.high / row.algbw.low
    top = benchmark.what.bus_factor(2) * 2  # (ranks - 1) / ranks is a half of it on 2 ranks
    least = math.ceil(top / (top - low) - 1e-9) if low < top else MOST_RANKS + 1
    most = math.floor(top / (top - high) + 1e-9) if high < top else MOST_RANKS
    return range(max(1, least), min(most, MOST_RANKS) + 1)
