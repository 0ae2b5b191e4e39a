"""Times of rows: statistics over repetitions, and the sizes at which one curve gets faster than another.

Samples are the seconds of each repetition on each rank. A repetition takes the time of its slowest rank. perf and
simulate, stored results, and the commands that show them use this module.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hpccomm.results.schema import Column, Row, Timing

SUMMARY: tuple[Column, ...] = (
    Column("repetitions", "<i8", "repetitions in the statistics, without those that -K skips"),
    Column("min", "<f8", "fastest repetition, each by its slowest rank", "us"),
    Column("median", "<f8", "median of the repetitions", "us"),
    Column("p95", "<f8", "95th percentile, the nearest rank", "us"),
    Column("p99", "<f8", "99th percentile, the nearest rank", "us"),
    Column("max", "<f8", "slowest repetition", "us"),
    Column("cv", "<f8", "standard deviation over mean", "%"),
)
"""The statistics that `summary` returns for a row."""


def iteration_times(samples: np.ndarray) -> np.ndarray:
    """Return each repetition's seconds on its slowest rank, from samples [repetition, rank]."""
    times: np.ndarray = samples.max(axis=1)
    return times


def iteration_statistics(samples: np.ndarray | None, skip: int) -> dict[str, float]:
    """Summarise repetitions as nccl-tests does (nearest-rank percentiles).

    Parameters
    ----------
    samples : ndarray or None
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    skip : int
        First repetitions to leave out.

    Returns
    -------
    dict of str to float
        The keys are those of nccl-tests' JSON: ``_us`` are microseconds, ``_pct`` a percentage. Empty if no
        repetition is left.
    """
    if samples is None or len(samples) <= skip:
        return {}
    ordered = np.sort(iteration_times(samples[skip:])) * 1e6
    count, mean, deviation = len(ordered), float(ordered.mean()), float(ordered.std())
    places = 0, -1, count // 2, *((count * percent + 99) // 100 - 1 for percent in (95, 99))
    least, most, middle, p95, p99 = ordered[list(places)].tolist()
    return {
        "min_us": least,
        "max_us": most,
        "avg_us": mean,
        "p50_us": middle,
        "p95_us": p95,
        "p99_us": p99,
        "stdev_us": deviation,
        "cv_pct": deviation / mean * 100.0 if mean > 0 else 0.0,
    }


def summary(samples: np.ndarray | None, skip: int) -> tuple[float, ...]:
    """Return the values of `SUMMARY` for a row. The tuple is empty if no repetition is left.

    If the number of repetitions is even, the median is the mean of the two in the middle. nccl-tests' ``p50_us`` is the
    larger of these two. The parameters are those of `iteration_statistics`.
    """
    statistics = iteration_statistics(samples, skip)
    if samples is None or not statistics:
        return ()
    times = iteration_times(samples[skip:])
    figures = (statistics[key] for key in ("p95_us", "p99_us", "max_us", "cv_pct"))
    return len(times), statistics["min_us"], float(np.median(times)) * 1e6, *figures


def typical(row: Row, timing: Timing) -> Row:
    """Return a row with the median of its repetitions in place of their mean, if the median is less.

    A single repetition that other work delays can multiply the mean. It hardly changes the median.
    """
    ratio = timing.median / row.time if 0 < timing.median < row.time else 1.0
    time, algbw, busbw = row.time * ratio, row.algbw / ratio, row.busbw / ratio
    return replace(row, time=time, algbw=algbw, busbw=busbw)


def timing(
    samples: np.ndarray,
    skip: int,
    isolated: np.ndarray,
    *,
    sync: str = "",
    late: int = 0,
    clock_error: float = math.nan,
    variant: str = "",
) -> Timing:
    """Return how a row was timed.

    Parameters
    ----------
    samples : ndarray
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    skip : int
        First repetitions to leave out.
    isolated : ndarray
        Start and end of each isolated repetition on each rank, in seconds, shape ``(repetitions, ranks, 2)``.
    sync, late, clock_error, variant
        Fields of `Timing`. `clock_error` is in seconds.
    """
    times = isolated_times(isolated)
    least, most = median_interval(times)
    slowest = samples[skip:].max(axis=1, initial=-math.inf)
    times_us = (*_quantiles(slowest), sync, *_quantiles(times), least * 1e6, most * 1e6)
    return Timing(*times_us, late, clock_error * 1e6, variant)


def isolated_times(stamps: np.ndarray) -> np.ndarray:
    """Return the seconds of each isolated repetition, from its earliest start to its latest end.

    Parameters
    ----------
    stamps : ndarray
        The parameter `isolated` of `timing`.

    Returns
    -------
    ndarray of float64, shape ``(repetitions,)``
    """
    times: np.ndarray = stamps[:, :, 1].max(axis=1) - stamps[:, :, 0].min(axis=1)
    return times


def median_interval(times: np.ndarray) -> tuple[float, float]:
    """Return a confidence interval of at least 95 % of a median, whatever the distribution.

    Both ends are measured times. The number of times below the true median is binomial with probability 1/2; this gives
    the places of the ends in the sorted times (H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1).

    Parameters
    ----------
    times : ndarray, shape ``(repetitions,)``
        Independent measurements.

    Returns
    -------
    tuple of float
        The ends, in the unit of `times`. They are NaN for fewer than 6 times: even the least and the largest of these
        have the true median between them with less than 95 %.
    """
    count = len(times)
    ordered = np.sort(times)
    # The place of the lower end, from 1. It is the largest below which the true median lies with at most 2.5 %.
    factorials = np.array([math.lgamma(number + 1) for number in range(count + 1)])
    arrangements = factorials[-1] - factorials - factorials[::-1]
    below = np.cumsum(np.exp(arrangements - count * math.log(2)))
    place = int(np.searchsorted(below, 0.025, side="right"))
    if place == 0:
        return math.nan, math.nan
    return float(ordered[place - 1]), float(ordered[count - place])


def _quantiles(times: np.ndarray) -> tuple[float, float, float]:
    if not len(times):
        return math.nan, math.nan, math.nan
    median, low, high = (np.percentile(times, (50, 5, 95)) * 1e6).tolist()
    return median, low, high


Times = Mapping[int, float]
"""Time by size."""


class Crossover(NamedTuple):
    """Where the fastest curve changes.

    Attributes
    ----------
    before, after : str
        The fastest for smaller sizes, and for larger ones.
    lower, upper : int
        The measured sizes on both sides of it.
    size, time : float
        An estimate of the size at which both curves take the same time, and of that time.
    """

    before: str
    after: str
    lower: int
    upper: int
    size: float
    time: float


def crossovers(curves: Mapping[str, Times]) -> list[Crossover]:
    """Return where the fastest curve changes, by size.

    Only sizes that all curves have are compared. Curves that are the fastest at none of them do not matter.
    Between two sizes, a curve is taken as a straight line in the logarithms of size and time.
    """
    crossings: list[Crossover] = []
    leaders: set[str] = set()
    last = 0
    for size in sorted(set.intersection(*map(set, curves.values()))) if curves else ():
        times = {name: curve[size] for name, curve in curves.items()}
        # Imported logs can have times of 0, which have no logarithm.
        if size <= 0 or min(times.values()) <= 0:
            continue
        best = fastest(times)
        if leaders and not leaders & set(best):
            before = next(name for name in curves if name in leaders)
            crossings.append(_between(before, best[0], last, size, curves))
        leaders, last = leaders & set(best) or set(best), size
    return crossings


def fastest(times: Mapping[str, float]) -> list[str]:
    """Return the name with the least time; several if they tie."""
    least = min(times.values())
    return [name for name, time in times.items() if math.isclose(time, least, rel_tol=1e-9)]


def _between(
    before: str, after: str, lower: int, upper: int, curves: Mapping[str, Times]
) -> Crossover:
    one, other = curves[before], curves[after]
    gaps = [math.log(one[size] / other[size]) for size in (lower, upper)]
    share = gaps[0] / (gaps[0] - gaps[1])
    size, time = lower * (upper / lower) ** share, one[lower] * (one[upper] / one[lower]) ** share
    return Crossover(before, after, lower, upper, size, time)
