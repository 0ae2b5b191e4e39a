"""Compares the rows of a run with expectations (``--expect``), for `hpccomm perf` and ``show``."""

from hpccomm.results.expectations import Expectation, Target
from hpccomm.results.schema import REQUIRED_FRACTION, Row, RunInfo
from hpccomm.results.table import figure

MOST_LINES = 10


class Judge:
    """Compares the rows of a run with expectations, table by table.

    Parameters
    ----------
    expected : Expectation
        The expectations.
    info : RunInfo
        Facts of the run.
    near : float, optional
        The required fraction; by default `REQUIRED_FRACTION`.

    Attributes
    ----------
    failed : int
        Rows so far below their expectation.
    judged : int
        Rows so far with an expectation.
    """

    def __init__(self, expected: Expectation, info: RunInfo, near: float | None = None) -> None:
        self.failed = self.judged = 0
        self._expected, self._info, self._near = expected, info, near or REQUIRED_FRACTION
        self._rows: list[tuple[float, Target, Row]] = []  # below the required rate, or the worst
        self._best: dict[int, tuple[float, Target, Row]] = {}
        self._number = 0

    @property
    def failures(self) -> int:
        """Rows that have too little; 1 if nothing was expected of any row."""
        return self.failed if self.judged else 1

    def nothing(self) -> str:
        """Return a line of comment if nothing was expected of any row of the run, which is a failure; else nothing."""
        if self.judged:
            return ""
        return f"# Nothing of this run is expected by {self._expected.name}: FAILED, as it was not judged\n"

    def add(self, row: Row) -> None:
        """Take a row of the table."""
        for index, entry in enumerate(self._expected.entries):
            if not entry.fits(row, self._info):
                continue
            part = entry.part(row)
            if entry.of_best:
                if index not in self._best or part > self._best[index][0]:
                    self._best[index] = (part, entry, row)
            else:
                self._take(part, entry, row)
            return

    def _take(self, part: float, entry: Target, row: Row) -> None:
        self._number += 1
        self.judged += 1
        self.failed += part < self._near
        self._rows.append((part, entry, row))
        self._rows.sort(key=lambda each: each[0])
        del self._rows[MOST_LINES:]

    def finish(self, failed: str = "FAILED") -> str:
        """Return the verdict on the table's rows, as comments, and begin the next table. `failed` is the word for too little."""
        for best in self._best.values():
            self._take(*best)
        title = f"# {'Expected':20s} : "
        text = f"{title}nothing of this table, by {self._expected.name}\n"
        if self._number:
            worst, entry, _ = self._rows[0]
            verdict = f"{failed}, below {self._near:.0%}" if worst < self._near else "OK"
            number = f", the least of {self._number} rows" if self._number > 1 else ""
            text = f"{title}{worst:.0%} of {entry} by {self._expected.name}{number}: {verdict}\n"
            text += "".join(_line(*each) for each in self._rows if each[0] < self._near)
        self._rows, self._best, self._number = [], {}, 0
        return text


def _line(part: float, entry: Target, row: Row) -> str:
    """Return a row's shortfall, as a comment."""
    placement = "in place" if row.in_place else "out of place"
    has = [f"{figure(row.busbw, 7).strip()} GB/s"] if entry.busbw is not None else []
    has += [f"{figure(row.time, 7).strip()} us"] if entry.time is not None else []
    return f"#   {row.bytes} B {row.dtype} {row.op} {placement}: {' and '.join(has)}, {part:.0%} of {entry}\n"
