"""From runs to what is compared: a value for each launch and each case."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import reader, repetitions
from hpccomm.results.reader import Run
from hpccomm.results.schema import Row, Timing

AUTO, ALONE, MEDIAN, TIME = "auto", "alone", "median", "time"

MEASURES = (AUTO, ALONE, MEDIAN, TIME)
"""Values of ``--measure``, beside ``auto`` from the soundest on."""


class Case(NamedTuple):
    """What must be equal in both sides for times to be compared."""

    collective: str
    backend: str
    algorithm: str
    dtype: str
    op: str
    root: int
    bytes: int
    in_place: bool

    def __str__(self) -> str:
        root = f" root {self.root}" if self.root >= 0 else ""
        place = "in place" if self.in_place else "out of place"
        return (
            f"{self.collective} {self.backend} {self.algorithm} {self.dtype} {self.op}{root} "
            f"{self.bytes} B {place}"
        )


def case_of(row: Row) -> Case:
    """Return the case of a row."""
    return Case(
        *(row.collective, row.backend, row.algorithm, row.dtype, row.op, row.root, row.bytes),
        in_place=row.in_place,
    )


class Side(NamedTuple):
    """One side of a comparison.

    Attributes
    ----------
    runs : tuple of Run
        One for each launch.
    left_out : tuple of str
        Why others are not among them.
    """

    runs: tuple[Run, ...]
    left_out: tuple[str, ...]


def side(
    paths: Sequence[Path], series: str | None = None, chosen: Sequence[str] | None = None
) -> Side:
    """Read the launches of one side.

    Parameters
    ----------
    paths : sequence of Path
        Results files, and folders of them.
    series : str, optional
        Only launches of the series of this name.
    chosen : sequence of str, optional
        Only these runs of each file, by name or number.

    Raises
    ------
    ResultsError
        If a file cannot be read or is damaged, or no launch is left.
    """
    found: list[Run] = []
    left_out: list[str] = []
    for path in _files(paths):
        runs = reader.read(path)
        if chosen is not None:
            runs = [reader.choose(runs, each) for each in chosen]
        for run in runs:
            if series is not None and run.info.series.get("name") != series:
                continue
            if run.status == "completed":
                found.append(run)
            else:
                left_out.append(f"{path} {run.name}: {run.status}")
    if not found:
        names = ", ".join(map(str, paths))
        asked = f" of series {series!r}" if series is not None else ""
        ended = f" ({len(left_out)} did not complete)" if left_out else ""
        raise ResultsError(
            f"{names} holds no completed run{asked}{ended}; name files that hpccomm perf --output has written"
        )
    return Side(tuple(found), tuple(left_out))


def _files(paths: Sequence[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.rglob("*.h5"))
        if not inside:
            raise ResultsError(
                f"{path} holds no file *.h5; name a results file or a folder of them"
            )
        yield from inside


class Values(NamedTuple):
    """The values of one case.

    Attributes
    ----------
    measure : str
        What they are: one of `MEASURES` but ``auto``.
    base, new : ndarray of float64
        Microseconds, one for each launch that has the case.
    wrong : int
        Wrong elements in the new launches.
    """

    measure: str
    base: np.ndarray
    new: np.ndarray
    wrong: int


class _Found(NamedTuple):
    """A row of a run, with its timing."""

    run: Run
    number: int
    row: Row
    timing: Timing | None


def _median(found: _Found) -> float:
    if found.timing is not None:
        return found.timing.median
    samples = found.run.samples(found.number)  # of before there were timings
    return repetitions.spread(samples, found.run.info.config.per_iter_skip)[0]


def _alone(found: _Found) -> float:
    return np.nan if found.timing is None else found.timing.alone


_READ: dict[str, Callable[[_Found], float]] = {
    ALONE: _alone,
    MEDIAN: _median,
    TIME: lambda found: found.row.time,
}


def values(base: Side, new: Side, measure: str = AUTO) -> dict[Case, Values]:
    """Return the values of each case that both sides have.

    The value of a launch is the median of its repetitions alone; where a launch has none, the median of those
    back to back; where it has no samples, the printed time. All launches of a case take the same. If a launch
    has several rows of a case, its value is their median.

    Parameters
    ----------
    base, new : Side
        The sides.
    measure : str
        One of `MEASURES`.

    Raises
    ------
    UsageError
        If a launch lacks the measure.
    """
    there = _rows(base.runs), _rows(new.runs)
    return {
        case: _values(case, there[0][case], there[1][case], measure)
        for case in there[0]
        if case in there[1]
    }


def _rows(runs: Sequence[Run]) -> dict[Case, list[list[_Found]]]:
    """Return the rows of each case, launch by launch."""
    found: dict[Case, list[list[_Found]]] = {}
    for run in runs:
        own: dict[Case, list[_Found]] = {}
        timings = run.timings or (None,) * len(run.rows)
        for index, (row, timing) in enumerate(zip(run.rows, timings, strict=True)):
            own.setdefault(case_of(row), []).append(_Found(run, index, row, timing))
        for case, rows in own.items():
            found.setdefault(case, []).append(rows)
    return found


def _values(case: Case, base: list[list[_Found]], new: list[list[_Found]], measure: str) -> Values:
    wrong = sum(max(0, each.row.wrong) for rows in new for each in rows)
    for name in MEASURES[1:] if measure == AUTO else (measure,):
        read = _READ[name]
        one, other = (
            np.array([np.median([read(each) for each in rows]) for rows in launches])
            for launches in (base, new)
        )
        if np.isfinite(one).all() and np.isfinite(other).all() and min(one.min(), other.min()) > 0:
            return Values(name, one, other, wrong)
    raise UsageError(
        f"--measure {measure}: a launch has none of {case}; take another of {', '.join(MEASURES)}"
    )
