"""The data of charts: curves over size, skew of ranks, and the history of a case.

`charts` draws them.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import compress
from typing import NamedTuple

import numpy as np

from hpccomm.results.comparison.matching import case_of
from hpccomm.results.files import as_utf8
from hpccomm.results.reader import Run

MEDIAN, MEAN = "time, us (median of repetitions)", "time, us (mean of repetitions)"
"""The axis of times: they are means where a row of the chart has no repetitions, as in an imported log."""

BANDWIDTH = "bus bandwidth in that time, GB/s"
"""The axis of bandwidths."""


class CurvePoint(NamedTuple):
    """One row of a curve.

    Attributes
    ----------
    size : int
        Bytes.
    time, low, high : float
        Microseconds: of one operation, and 5th and 95th percentile of the repetitions; NaN if unknown.
    busbw : float
        1e9 B/s in that time.
    isolated : float
        Microseconds of an isolated operation; NaN if unknown.
    wrong : int
        Wrong elements; negative if unchecked.
    statistic : str
        The statistic of the time: `MEDIAN` or `MEAN`, the same in a chart.
    """

    size: int
    time: float
    low: float
    high: float
    busbw: float
    isolated: float
    wrong: int
    statistic: str = MEDIAN


def _measured(runs: Sequence[Run]) -> Iterator[tuple[Run, int, CurvePoint]]:
    """Yield the rows of runs, by number, with their points, which all have the same statistic of the repetitions."""
    all_kept = all(each.median > 0 for run in runs for each in run.timings)
    statistic = MEDIAN if all_kept else MEAN
    for run in runs:
        cpu_time = run.info.config.report_cputime
        for index, (row, timing) in enumerate(zip(run.rows, run.timings, strict=True)):
            # With -C the time is that of the calls, and the bandwidths are those of the work.
            time = row.bytes / row.algbw / 1e3 if cpu_time and row.algbw > 0 else row.time
            busbw = row.busbw
            if all_kept:
                time, busbw = timing.median, busbw * time / timing.median
            figures = time, timing.low, timing.high, busbw, timing.isolated, row.wrong
            yield run, index, CurvePoint(row.bytes, *figures, statistic)


def curves(runs: Sequence[Run]) -> dict[str, tuple[CurvePoint, ...]]:
    """Return the points of each curve by size: the rows of a run that differ only in size; the launches of a series.

    The name of a curve has the parts that not all curves share. Sizes that were measured several times have the
    median of their times. Rows of size or time 0 are left out, since they have no logarithm.
    """
    files = {run.path for run in runs}
    short = len({path.name for path in files}) == len(files)
    by_key: dict[tuple[str, ...], dict[int, list[CurvePoint]]] = {}
    for run, index, point in _measured(runs):
        row = run.rows[index]
        if not (point.size > 0 and point.time > 0):
            continue
        key = (
            as_utf8(run.path.name if short else str(run.path)),
            run.info.series.get("name") or run.name,
            run.variant(index),
            *(row.collective, row.backend, row.algorithm, row.dtype, row.op),
            f"root {row.root}" if row.root >= 0 else "",
            row.placement,
        )
        by_key.setdefault(key, {}).setdefault(row.bytes, []).append(point)
    differing = [len(set(values)) > 1 for values in zip(*by_key, strict=True)]
    found = {}
    for words, sizes in by_key.items():
        name = ", ".join(filter(None, compress(words, differing)))
        points = tuple(_together(size, points) for size, points in sorted(sizes.items()))
        found[name or " ".join(filter(None, words[2:]))] = points
    return found


def _together(size: int, points: list[CurvePoint]) -> CurvePoint:
    if len(points) == 1:
        return points[0]
    columns = np.array([each[1:6] for each in points])
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # all may be unknown
        time, low, high, _, isolated = np.nanmedian(columns, axis=0).tolist()
    wrong = sum(max(0, each.wrong) for each in points)
    # If their number is even, the median of the bandwidths does not belong to the median time.
    busbw = float(np.median(columns[:, 0] * columns[:, 3])) / time
    return CurvePoint(size, time, low, high, busbw, isolated, wrong, points[0].statistic)


def skew(stamps: np.ndarray) -> np.ndarray:
    """Return the ranks' skew in isolated repetitions, in microseconds after the first rank.

    Parameters
    ----------
    stamps : ndarray
        Start and end of each repetition on each rank in seconds, shape ``(repetitions, ranks, 2)``, at least
        one repetition.

    Returns
    -------
    ndarray
        Float64 ``(2, ranks, 3)``: of starts and of ends, median, 5th and 95th percentile over the
        repetitions.
    """
    late = (stamps - stamps.min(axis=1, keepdims=True)) * 1e6
    quantiles: np.ndarray = np.percentile(late, (50, 5, 95), axis=0)
    return quantiles.transpose(2, 1, 0)


def first_skew(run: Run) -> tuple[str, np.ndarray] | None:
    """Return the skew of the first row with isolated repetitions, and its name; or None."""
    for number, (row, timing) in enumerate(zip(run.rows, run.timings, strict=True)):
        if not math.isnan(timing.isolated):
            what = f"{row.collective} {row.dtype} {row.bytes} B {row.placement}, started by {timing.sync}"
            return f"{run.title}: {what}", skew(run.isolated(number))
    return None


class Moment(NamedTuple):
    """One case in one run of a history.

    Attributes
    ----------
    started : datetime
        When the run started.
    run : str
        File and name.
    point : CurvePoint
        The time and the bandwidth of the case.
    """

    started: datetime
    run: str
    point: CurvePoint


def history(runs: Iterable[Run]) -> dict[str, list[Moment]]:
    """Return each case over time, if more than one run has it.

    Runs with different numbers of ranks are not mixed: the name of a case then has the number.
    """
    runs = sorted(runs, key=lambda each: each.info.started)
    numbers = {len(run.info.ranks) for run in runs}
    cases: dict[str, list[Moment]] = {}
    for run, index, point in _measured(runs):
        ranks = f" on {len(run.info.ranks)} ranks" if len(numbers) > 1 else ""
        case = f"{case_of(run.rows[index], run.variant(index))}{ranks}"
        cases.setdefault(case, []).append(Moment(run.info.started, run.title, point))
    return {
        case: moments
        for case, moments in cases.items()
        if len({moment.run for moment in moments}) > 1
    }
