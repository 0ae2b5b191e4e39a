"""The columns of nccl-tests' table, from its heading, and the rows below it.

Versions differ. ``#wrong`` was once ``error`` and ``res``. Old tables lack ``root`` or ``redop``;
the oldest one has milliseconds. Statistics of repetitions and time stamps are optional.
mscclpp-test has neither type nor reduction, and prints in place first.

`hpccomm.bench.logs.nccl_text` reads each line by it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hpccomm.bench.logs.figures import PrintedRow, figure, possible
from hpccomm.results.schema import UNCHECKED
from hpccomm.results.table import TIME_FORMAT

_HEADING = re.compile(r"(?:size\s+count|bytes\s+N)\s.*\balgbw\s+busbw\b.*")
_NAMES = {"bytes": "size", "N": "count", "op": "redop", "cputime": "time", "wrong": "#wrong"}
"""Names of columns in some versions, and where ``#`` is lost; and the usual ones."""

_ABSENT = "N/A"
_NUMBER = r"(?:N/A|nan|inf|\d+(?:\.\d*)?(?:e[+-]?\d+)?)(?![\d.])"
_CELLS = {
    "size": r"\d+(?!\S)",
    "count": r"\d+(?!\S)",
    "type": r"(?:none|u?int|u?char|half|float|double|bfloat|fp?8|complex|bool)\w*(?!\S)",
    "redop": r"[a-z]\w*(?!\S)",
    "root": r"(?:-1|\d+)(?!\d)",
    "error": _NUMBER + r"\*?",
    "timestamp": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
}
_SIZED = re.compile(r"(?<![\w.-])\d+\s+\d+\s+" + _CELLS["type"])
"""The beginning of a row, at any place in a line."""

_BARE = re.compile(r"\s*\d+\s+\d+(?=\s)")
"""How one of mscclpp-test begins."""

_PLACES = re.compile(r"out-of-place|in-place")


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a row that are there.

    Attributes
    ----------
    line : int
        Of the log, where the row begins.
    texts : tuple of (str, str)
        The name of each column, and what stands there.
    ends : tuple of int
        Where each ends in its line.
    following : int
        The first column that is not there.
    whole : bool
        Whether they are a whole row.
    rest : str
        What stands behind them.
    """

    line: int
    texts: tuple[tuple[str, str], ...] = ()
    ends: tuple[int, ...] = ()
    following: int = 0
    whole: bool = False
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table.

    Attributes
    ----------
    columns : tuple of str
        Their names, in their order.
    ends : tuple of int
        Where each ends in the heading's line; empty without a heading.
    in_place : tuple of bool
        Whether each half is of arrays in place.
    host_time : bool
        Whether the time is the host's.
    """

    columns: tuple[str, ...]
    ends: tuple[int, ...] = ()
    in_place: tuple[bool, ...] = (False, True)
    host_time: bool = False

    @property
    def of_mscclpp(self) -> bool:
        """Whether rows lack type and reduction."""
        return self.columns[2:3] == ("time",)

    @property
    def milliseconds(self) -> bool:
        """Whether the time is in milliseconds."""
        return "res" in self.columns

    def candidates(self, rows: Sequence[PrintedRow], backend: str) -> list[str]:
        """Return the candidates for a table without a name.

        Before nccl-tests 2.13 (2022) each program had its own columns. mscclpp-test's measure in place or not,
        as their source has it. nccl-tests' all-to-all-v has always named itself.
        """
        if self.of_mscclpp:
            in_place = ("all_gather",) if rows[0].in_place else ("all_to_all", "send_recv")
            return [*in_place, "all_reduce"]
        if "redop" not in self.columns:
            if "root" in self.columns:
                return ["broadcast", "gather", "scatter"]
            # Before there was hypercube (2021) the column was narrower; all_gather had its bandwidth then.
            narrow = not self.ends or self.ends[2] - self.ends[1] <= 8
            return ["all_gather", *(() if narrow else ("send_recv", "hypercube"))]
        unlike = {"all_to_all_v"} if backend == "nccl" else set()
        if "root" not in self.columns:
            unlike |= {"send_recv", "all_gather", "hypercube"}
        return [each for each in possible(rows) if each not in unlike]

    def read(self, line: int, text: str) -> Cells | None:
        """Return the cells of a row, or of its beginning; None for any other line.

        Parameters
        ----------
        line : int
            Of the log.
        text : str
            The line. Words of others may stand before the row and behind it.
        """
        begin = (_BARE if self.of_mscclpp else _SIZED).search(text)
        if begin is None or "#" in text[: begin.start()] or (self.of_mscclpp and begin.start()):
            return None
        return self._cells(Cells(line), text, begin.start())

    def go_on(self, before: Cells, text: str) -> Cells | None:
        """Return a row continued by a later line; None if that line does not continue it.

        A row is printed in a few writes, and others print between. Within one it is cut.
        """
        if before.following not in self._writes or not text[:1].isspace() or _SIZED.search(text):
            return None
        cells = self._cells(before, text, 0)
        if cells is None or cells.following not in self._writes or cells.texts == before.texts:
            return None
        return cells

    @property
    def _writes(self) -> set[int]:
        """Columns that begin a write of nccl-tests, and the end."""
        begins = ("time", "i_min", "timestamp")
        return {len(self.columns), *(at for at, name in enumerate(self.columns) if name in begins)}

    def _cells(self, before: Cells, text: str, at: int) -> Cells | None:
        """Return the cells with those from a place in a line on."""
        texts, ends, following = [*before.texts], [*before.ends], before.following
        for name in self.columns[following:]:
            cell = re.compile(rf"\s*({_CELLS.get(name, _NUMBER)})").match(text, at)
            if cell is not None:
                texts.append((name, cell[1]))
                at = cell.end()
                ends.append(at)
            elif name != "redop":  # which some leave blank
                break
            following += 1
        rest = text[at:].strip()
        whole = self._whole(texts, ends)
        if whole and re.match(r"[\d.+-]+(?:\s|$)", rest):
            return None  # more figures than columns: which is which?
        return Cells(before.line, tuple(texts), tuple(ends), following, whole, rest)

    def _whole(self, texts: Sequence[tuple[str, str]], ends: Sequence[int]) -> bool:
        names = [name for name, _ in texts]
        full = [name for name in self.columns if name != "redop" or "redop" in names]
        if names == full:
            return True
        halves = names.count("busbw")
        one = halves == 1 and names[-1] in ("busbw", "#wrong")
        return one and (self.of_mscclpp or self._behind(names, ends))

    def _behind(self, names: Sequence[str], ends: Sequence[int]) -> bool:
        """Whether the only half of a row stands where the second one would."""
        times = [end for name, end in zip(self.columns, self.ends, strict=False) if name == "time"]
        if len(times) < 2:
            return False
        end = ends[names.index("time")] - ends[0] + self.ends[0]
        return abs(end - times[1]) < abs(end - times[0])

    def measured(self, cells: Cells) -> list[PrintedRow]:
        """Return the halves of a whole row that were measured.

        Raises
        ------
        ValueError, OverflowError
            If a number or time cannot be read.
        """
        names = [name for name, _ in cells.texts]
        lead = dict(cells.texts[: names.index("time")])
        size, count = int(lead["size"]), int(lead["count"])
        stamp = dict(cells.texts).get("timestamp")
        finished = datetime.strptime(stamp, TIME_FORMAT).astimezone().timestamp() if stamp else 0.0
        begins = [at for at, name in enumerate(names) if name == "time"]
        places = self.in_place
        if len(begins) == 1 and len(places) > 1 and self._behind(names, cells.ends):
            places = places[1:]
        rows = []
        for begin, end, in_place in zip(begins, [*begins[1:], len(names)], places, strict=False):
            half = dict(cells.texts[begin:end])
            if _ABSENT in (half["time"], half["algbw"], half["busbw"]):
                continue
            # An error's size, as old versions print, is not a count.
            wrong = half.get("#wrong", _ABSENT)
            # mscclpp-test's rows have no type.
            case = lead.get("type", "int32"), lead.get("redop", ""), int(lead.get("root", -1))
            time = figure(half["time"]).times(1e3 if self.milliseconds else 1.0)
            rates = time, figure(half["algbw"]), figure(half["busbw"])
            wrong_values = UNCHECKED if wrong == _ABSENT else int(float(wrong))
            where = cells.line, *case, size, count, in_place
            rows.append(PrintedRow(*where, *rates, wrong_values, finished))
        return rows


_HALF = "time", "algbw", "busbw", "#wrong"
MODERN = Columns(("size", "count", "type", "redop", "root", *_HALF, *_HALF))
"""The columns of most versions, for rows whose heading is lost."""


def heading(text: str, above: str) -> Columns | None:
    """Return the columns that a line names; None if it is not a heading.

    Parameters
    ----------
    text : str
        The line.
    above : str
        The last line that says which half is in place.
    """
    match = _HEADING.search(text)
    if match is None:
        return None
    words = list(re.finditer(r"[\w#%]+(?!\S)", text[match.start() :]))
    columns = tuple(_NAMES.get(word[0], word[0]) for word in words)
    places = [place == "in-place" for place in _PLACES.findall(above)]
    halves = columns.count("time")
    if "size" not in columns or not halves or columns.index("time") < 2:
        return None
    if columns.count("algbw") != halves or columns.count("busbw") != halves:
        return None  # damaged
    return Columns(
        columns,
        tuple(match.start() + word.end() for word in words),
        tuple(places) if len(places) == halves else (False, True)[:halves],
        any(word[0] == "cputime" for word in words),
    )


def places(text: str) -> bool:
    """Whether a line says which half is in place."""
    return _PLACES.search(text) is not None
