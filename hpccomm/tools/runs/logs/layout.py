"""The columns of nccl-tests' table, from its heading, and the rows below it.

Versions differ: ``#wrong`` was once ``error``, old tables lack ``root`` or ``redop``, statistics of
repetitions and time stamps are optional. A row is printed in several writes (its case, each half,
...), and others may print between two of them.

`hpccomm.tools.runs.logs.nccl_text` reads each line by it.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from hpccomm.results.schema import UNCHECKED
from hpccomm.results.table import TIME_FORMAT
from hpccomm.tools.runs.logs.printed import PrintedRow, figure

_HEADING = re.compile(r"size\s+count\s.*\balgbw\s+busbw\b.*")
_NAMES = {"op": "redop", "cputime": "time", "wrong": "#wrong"}
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
_BLANK_HALF = r"[ ]{32}"
"""What nccl-tests prints where it has measured in place only (``writeBenchMarkLineNullBody``)."""

_PLACES = re.compile(r"out-of-place|in-place")


@dataclass(frozen=True, slots=True)
class Cells:
    """A row, or its beginning.

    Attributes
    ----------
    line : int
        Of the log, where it begins.
    texts : tuple of str or None
        Its cells; None where one is blank.
    writes : int
        How many of its writes are there.
    rest : str
        What stands behind them.
    """

    line: int
    texts: tuple[str | None, ...]
    writes: int
    rest: str


@dataclass(frozen=True)
class Columns:
    """The columns of a table.

    Attributes
    ----------
    names : tuple of str
        In their order.
    in_place : tuple of bool
        Whether each half is of arrays in place.
    host_time : bool
        Whether the time is the host's.
    """

    names: tuple[str, ...]
    in_place: tuple[bool, ...] = (False, True)
    host_time: bool = False

    @cached_property
    def _writes(self) -> list[re.Pattern[str]]:
        """The pattern of each write of a row."""
        writes: list[list[str]] = [[]]
        for name in self.names:
            if name in ("time", "i_min", "timestamp"):
                writes.append([])
            writes[-1].append(name)
        patterns = [r"(?<![\w.-])" + self._pattern(writes[0]).removeprefix(r"\s{1,20}")]
        for names in writes[1:]:
            blank = f"|{_BLANK_HALF}" if names[0] == "time" else ""
            patterns.append(f"(?:{self._pattern(names)}{blank})")
        return [re.compile(pattern) for pattern in patterns]

    @staticmethod
    def _pattern(names: list[str]) -> str:
        cells = {name: rf"\s{{1,20}}({_CELLS.get(name, _NUMBER)})" for name in names}
        # Some leave it blank.
        return "".join(f"(?:{cell})?" if name == "redop" else cell for name, cell in cells.items())

    def read(self, line: int, text: str) -> Cells | None:
        """Return the cells of a row, or of its beginning; None for any other line.

        Parameters
        ----------
        line : int
            Of the log.
        text : str
            The line. Words of others may stand before the row and behind it.
        """
        begin = self._writes[0].search(text)
        if begin is None or "#" in text[: begin.start()]:
            return None
        return self.go_on(Cells(line, begin.groups(), 1, ""), text, begin.end())

    def go_on(self, before: Cells, text: str, at: int = 0) -> Cells:
        """Return a row with the writes that a text goes on with, from a place in it."""
        texts, writes = before.texts, before.writes
        while writes < len(self._writes) and (found := self._writes[writes].match(text, at)):
            texts, writes, at = texts + found.groups(), writes + 1, found.end()
        return Cells(before.line, texts, writes, text[at:].strip())

    def whole(self, cells: Cells) -> bool:
        """Whether a row has all its writes."""
        return cells.writes == len(self._writes)

    def measured(self, cells: Cells, iterations: int) -> list[PrintedRow]:
        """Return the halves of a whole row that were measured.

        Raises
        ------
        ValueError, OverflowError
            If a number or time cannot be read, or there are more figures than columns.
        """
        if re.match(r"[\d.+-]+(?:\s|$)", cells.rest):
            raise ValueError("more figures than columns")
        named = list(zip(self.names, cells.texts, strict=True))
        begins = [at for at, name in enumerate(self.names) if name == "time"]
        lead = dict(named[: begins[0]])
        stamp = dict(named).get("timestamp")
        finished = datetime.strptime(stamp, TIME_FORMAT).astimezone().timestamp() if stamp else 0.0
        rows = []
        for begin, in_place in zip(begins, self.in_place, strict=True):
            half = {name: text or _ABSENT for name, text in named[begin : begin + 4]}
            if _ABSENT in (half["time"], half["algbw"], half["busbw"]):
                continue
            # An error's size, as old versions print, is not a count.
            wrong = half.get("#wrong", _ABSENT)
            case = lead["type"] or "", lead.get("redop") or "", int(lead.get("root") or -1)
            size = int(lead["size"] or 0), int(lead["count"] or 0), in_place
            rates = figure(half["time"]), figure(half["algbw"]), figure(half["busbw"])
            wrong_values = UNCHECKED if wrong == _ABSENT else int(float(wrong))
            rows.append(
                PrintedRow(cells.line, *case, *size, *rates, wrong_values, finished, iterations)
            )
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
    words = re.findall(r"[\w#%]+(?!\S)", match[0])
    names = tuple(_NAMES.get(word, word) for word in words)
    halves = names.count("time")
    if names[:3] != ("size", "count", "type") or not halves:
        return None
    if names.count("algbw") != halves or names.count("busbw") != halves:
        return None  # damaged
    places = tuple(place == "in-place" for place in _PLACES.findall(above))
    in_place = places if len(places) == halves else (False, True)[:halves]
    return Columns(names, in_place, "cputime" in words) if len(in_place) == halves else None


def places(text: str) -> bool:
    """Whether a line says which half is in place."""
    return _PLACES.search(text) is not None
