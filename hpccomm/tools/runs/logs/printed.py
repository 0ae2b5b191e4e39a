"""Printed rows of a table, checked against its collective and its number of ranks, and stored.

The log names these two, or the caller does. A printed figure stands for all numbers that round to
it: the bus bandwidth has to be one that size, time and ranks can give (``GetBw`` of each of
nccl-tests' programs).

The readers `nccl_text`, `nccl_json` and `records` make the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpccomm.results.schema import Row
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.perf.patterns import TYPES
from hpccomm.tools.runs.logs.imported import LIMIT, LogDefaults, lacking

ITEMSIZES = {name: dtype.itemsize for name, dtype in TYPES.items()} | {
    "char": 1,
    "int": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,  # of old versions, and of rccl-tests
}
"""Bytes of an element, by the name of its type."""

_EXACT = 1e-6
"""Error of figures that are printed in full: nccl-tests' JSON has six decimals."""


class Unfit(Exception):
    """Why a table is not stored; caught where tables are read, never seen outside.

    Parameters
    ----------
    why : str
        The reason, and what to do.
    unlike : bool
        As of `LeftOutTable`.
    """

    def __init__(self, why: str, *, unlike: bool = False) -> None:
        super().__init__(why)
        self.unlike = unlike


class Figure(NamedTuple):
    """A printed number, and half a unit of its last digit; 0 for one that is printed in full."""

    value: float
    half: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest number that may print so."""
        slack = self.half + _EXACT * (1 + abs(self.value))
        return self.value - slack, self.value + slack

    def refined(self, exact: float) -> float:
        """Return a number that was computed if it prints so, else the printed one."""
        return exact if abs(exact - self.value) <= self.half else self.value


def figure(text: str) -> Figure:
    """Return a printed number.

    Raises
    ------
    ValueError
        If the text is not a number.
    """
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Figure(float(text), 0.5 * 10.0 ** (int(exponent or 0) - decimals))


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
class Measured:
    """What a table is of, as its log says, or else the caller.

    Attributes
    ----------
    collective : str
        The collective.
    ranks : int
        How many took part in a call: those of a group.
    stated : bool
        Whether the log says both.
    notes : tuple of str
        What the caller says and the log says otherwise.
    """

    collective: str
    ranks: int
    stated: bool
    notes: tuple[str, ...]

    def rows(
        self,
        printed: Sequence[PrintedRow],
        backend: str,
        algorithm: str = "auto",
        *,
        host_time: bool = False,
        own: bool = False,
    ) -> list[Row]:
        """Return the rows of a results file: printed figures, with the decimals that follow from the time.

        Parameters
        ----------
        printed : sequence of PrintedRow
            The rows.
        backend, algorithm : str
            Of all rows.
        host_time : bool
            Whether the time is the host's, of which the bandwidth is not.
        own : bool
            Whether hpccomm has printed them, whose counts and roots are not those of nccl-tests.

        Raises
        ------
        Unfit
            If a row is not of this collective on so many ranks.
        """
        # nccl-tests' all-to-all-v counts what the busiest rank has.
        timed = not host_time and self.collective != "all_to_all_v"
        rows = []
        for row in printed:
            numbers = row.root, row.size, row.count, row.wrong
            if max(len(row.dtype), len(row.op)) > 32 or max(map(abs, numbers)) >= LIMIT:
                raise Unfit("has names or numbers that no program prints")
            if not self._fits(row, timed=timed) or not (own or self._belongs(row)):
                raise Unfit(self._contradiction(row))
            carried, factor = self._factors
            algbw, busbw = row.algbw.value, row.busbw.value
            if row.time.value and not host_time:
                base = row.size / row.time.value / 1e3
                algbw, busbw = row.algbw.refined(base * carried), row.busbw.refined(base * factor)
            op = row.op or ("sum" if COLLECTIVES[self.collective].what.reduces else "none")
            case = self.collective, backend, algorithm, row.dtype, op, row.root, row.size
            figures = row.count, row.in_place, row.time.value, algbw, busbw, row.wrong
            rows.append(Row(*case, *figures, row.iterations, row.finished))
        return rows

    @property
    def _factors(self) -> tuple[float, float]:
        """Algorithm and bus bandwidth over size / time."""
        benchmark = COLLECTIVES[self.collective]
        carried = benchmark.carried(self.ranks)
        return carried, carried * benchmark.what.bus_factor(self.ranks)

    def _fits(self, row: PrintedRow, *, timed: bool) -> bool:
        """Whether the bus bandwidth may be that of size and time, or else of the algorithm bandwidth."""
        if timed:
            factor = row.size / 1e3 * self._factors[1]
            least, most = row.time.bounds
            low, high = factor / most, factor / max(least, _EXACT)
        else:
            factor = COLLECTIVES[self.collective].what.bus_factor(self.ranks)
            low, high = (each * factor for each in row.algbw.bounds)
        least, most = row.busbw.bounds
        return low <= most and least <= high

    def _belongs(self, row: PrintedRow) -> bool:
        """Whether nccl-tests prints such a reduction, root and count for such a size."""
        benchmark = COLLECTIVES[self.collective]
        named = row.op not in ("", "none") and not benchmark.names_op
        if (row.op == "none" if benchmark.what.reduces else named) or (
            benchmark.what.rooted != (row.root >= 0)
        ):
            return False
        itemsize = ITEMSIZES.get(row.dtype, 0)
        if not itemsize or row.count <= 0 or self.collective == "all_to_all_v":
            return True
        return row.size == row.count * itemsize * (self.ranks if benchmark.what.blockwise else 1)

    def _contradiction(self, row: PrintedRow) -> str:
        base = row.size / row.time.value / 1e3 if row.time.value else 0.0
        return (
            f"contradicts {'itself' if self.stated else 'the flags'}: {row.size} B with a count of {row.count} in "
            f"{row.time.value:g} us and a bus bandwidth of {row.busbw.value:g} GB/s (line {row.line}) are not "
            f"{self.collective}'s on {self.ranks} ranks, which would be {base * self._factors[1]:.2f}"
        )


def measured(name: str, ranks: int, defaults: LogDefaults) -> Measured:
    """Return what a table is of.

    Parameters
    ----------
    name : str
        The collective that the log names; empty if it names none.
    ranks : int
        How many ranks the log lists; 0 if it lists none.
    defaults : LogDefaults
        What the caller says.

    Raises
    ------
    Unfit
        If neither says it, or hpccomm has no such collective.
    """
    collective, number = name or defaults.collective, ranks or defaults.ranks
    if not collective or not number:
        raise Unfit(lacking(collective, number))
    if collective not in COLLECTIVES:
        raise Unfit(f"{collective} has no counterpart in hpccomm", unlike=True)
    asked = ("--collective", defaults.collective, name), ("--ranks", defaults.ranks, ranks)
    notes = (
        f"{flag} {value} contradicts the log, and is not used"
        for flag, value, said in asked
        if value and said and value != said
    )
    return Measured(collective, number, bool(name and ranks), tuple(notes))
