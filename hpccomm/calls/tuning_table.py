"""A tuning table: for each collective, the algorithm from each size on.

`policy` looks up the row of a call, and `hpccomm.communicator.creation` compares shapes. ``hpccomm tune`` makes tables.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import UsageError

NATIVE_CASE = "native"
OWN_CASE = "own"
ORDERED_CASE = "ordered"
REGISTERED_CASE = "registered"

CASES: Mapping[str, str] = {
    NATIVE_CASE: "calls that the backend can carry out by itself",
    OWN_CASE: "calls that it cannot, such as a reduction that it lacks",
    ORDERED_CASE: "reductions with deterministic=True",
    REGISTERED_CASE: "calls that the backend can carry out by itself, on arrays of comm.empty on all ranks",
}
"""The kinds of calls of a collective that have their own rows, with their meaning in words."""


class Shape(NamedTuple):
    """The conditions of measurements: the ranks of a communicator, and their machine.

    Attributes
    ----------
    backend : str
        Name of the backend.
    library : str
        The MPI library and its version; empty without one.
    ranks, nodes : int
        Numbers of ranks and of nodes.
    ranks_per_node : int
        Most ranks on a node.
    memory : str
        The way in which the ranks of a node reach each other's plain arrays: ``"pages"``, ``"staging"``, or
        ``"off"`` if they do not.
    processor : str
        Model of the processor.
    cores : int
        Number of cores of a node.
    """

    backend: str
    library: str
    ranks: int
    nodes: int
    ranks_per_node: int
    memory: str
    processor: str
    cores: int

    def differences(self, other: "Shape") -> tuple[str, ...]:
        """Return, in words, each field in which `other`, the shape here, differs from this shape of a table."""
        return tuple(
            f"{name} is {current!r} here and {measured!r} in the table"
            for name, measured, current in zip(self._fields, self, other, strict=True)
            if measured != current
        )

    def __str__(self) -> str:
        where = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        how = "without shared memory" if self.memory == "off" else f"memory by {self.memory}"
        by = f" with {self.library}" if self.library else ""
        return f"{self.ranks} ranks on {where} over {self.backend}{by}, {how}, {self.processor}"


class Pick(NamedTuple):
    """An algorithm with its parameters.

    Attributes
    ----------
    algorithm : str
        Name of the algorithm, or ``"native"``.
    segment : int
        Bytes that it moves at a time; 0 for the default.
    channels : int
        Pieces under way at the same time; 0 for the default.
    """

    algorithm: str
    segment: int = 0
    channels: int = 0


class TableRow(NamedTuple):
    """The pick from `start` bytes of a rank's larger array on, up to the next row."""

    start: int
    pick: Pick


TableRows = tuple[TableRow, ...]


@dataclass(frozen=True)
class Table:
    """Picks by collective, case and bytes.

    Attributes
    ----------
    shape : Shape
        The measured ranks and machine.
    measured : str
        The day of the measurement, as an ISO 8601 date.
    rows : mapping of (str, str) to tuple of TableRow
        For a collective and one of ``CASES``, the rows, which ascend from 0 bytes. Some may be missing.

    Raises
    ------
    UsageError
        If rows do not ascend from 0.
    """

    shape: Shape
    measured: str
    rows: Mapping[tuple[str, str], TableRows] = field(repr=False)  # pages of them

    def __post_init__(self) -> None:
        for (collective, case), rows in self.rows.items():
            starts = [row.start for row in rows]
            if case not in CASES:
                raise UsageError(f"case is {case!r}; give one of {', '.join(map(repr, CASES))}")
            if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
                raise UsageError(
                    f"rows of {collective}, {case}, begin at {starts} bytes; "
                    "give at least one row, the first from 0, each from more bytes on"
                )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the table from its `document`.

        Raises
        ------
        TypeError, ValueError, LookupError
            If it is not the document of a table. `UsageError` is a ValueError.
        """
        shape, measured = Shape(**document["shape"]), document["measured"]
        rows = {
            (collective, case): tuple(TableRow(start, Pick(*pick)) for start, *pick in given)
            for collective, cases in document.items()
            if collective not in ("shape", "measured")
            for case, given in cases.items()
        }
        return cls(shape, measured, rows)

    def document(self) -> dict[str, Any]:
        """Return the table as plain data for JSON and TOML.

        Its keys are ``"measured"``, ``"shape"`` (with a key for each attribute of `Shape`), and the
        collectives. A collective has its cases, and a case has rows: bytes, algorithm, segment, channels. Defaults
        at the end of a row are left out.
        """
        content: dict[str, Any] = {"measured": self.measured, "shape": self.shape._asdict()}
        for (collective, case), rows in self.rows.items():
            content.setdefault(collective, {})[case] = [_row(row) for row in rows]
        return content

    def toml(self) -> str:
        """Return the document as TOML."""
        content = self.document()
        lines = [f"measured = {json.dumps(content.pop('measured'))}"]
        for name, section in content.items():
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in section.items()]
        return "\n".join(lines) + "\n"

    def find(self, collective: str, case: str, nbytes: int) -> TableRow | None:
        """Return the row for `nbytes`; None if the table lacks the case."""
        rows = self.rows.get((collective, case))
        if rows is None:
            return None
        return rows[bisect_right(rows, nbytes, key=lambda row: row.start) - 1]

    @cached_property
    def _edges(self) -> dict[str, list[int]]:
        powers = {edge for bits in range(64) for edge in (1 << bits, (1 << bits) + 1)}
        starts = {collective: set(powers) for collective in DESCRIPTIONS}
        for (collective, _), rows in self.rows.items():
            starts[collective].update(row.start for row in rows)
        return {collective: sorted(each) for collective, each in starts.items()}

    def size_class(self, collective: str, nbytes: int) -> int:
        """Return the class of a size. Sizes of one class have the same rows, and lie between the same powers of two."""
        return bisect_right(self._edges[collective], nbytes)

    def near(self, shape: Shape) -> bool:
        """Return whether the table's measurements apply to another shape.

        Tables of one node apply to one node, and tables of several nodes to half to twice their number of nodes. In
        both cases, they apply to half to twice the ranks per node.
        """
        own, other = self.shape, shape
        factors = (own.nodes / other.nodes, own.ranks_per_node / other.ranks_per_node)
        return (own.nodes == 1) == (other.nodes == 1) and all(
            1 / 2 <= factor <= 2 for factor in factors
        )

    def tuned(self, collective: str, cases: tuple[str, ...], algorithm: str, nbytes: int) -> Pick:
        """Return an algorithm that a call names with its best known parameters at a size.

        They are from the first of `cases` that has the algorithm: from the nearest row below the size, else above.
        """
        for case in cases:
            rows = self.rows.get((collective, case), ())
            known = [row for row in rows if row.pick.algorithm == algorithm]
            if known:
                return max((row for row in known if row.start <= nbytes), default=known[0]).pick
        return Pick(algorithm)


def _row(row: TableRow) -> list[Any]:
    pick = list(row.pick)
    while not pick[-1]:  # a default
        pick.pop()
    return [row.start, *pick]
