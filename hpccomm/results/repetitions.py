"""Statistics over the repetitions of a row, from its samples."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.results.schema import Column

SUMMARY: tuple[Column, ...] = (
    Column("repetitions", "<i8", "repetitions that the statistics are over, without those of -K"),
    Column(
        "min", "<f8", "fastest repetition, of which each has the time of its slowest rank", "us"
    ),
    Column("median", "<f8", "median of the repetitions", "us"),
    Column("p95", "<f8", "95th percentile, the nearest rank", "us"),
    Column("p99", "<f8", "99th percentile, the nearest rank", "us"),
    Column("max", "<f8", "slowest repetition", "us"),
    Column("cv", "<f8", "standard deviation over mean", "%"),
)
"""What `summary` tells of a row."""


def iteration_times(samples: np.ndarray) -> list[float]:
    """Return each repetition's seconds on its slowest rank, from samples [repetition, rank]."""
    times: list[float] = samples.max(axis=1).tolist()
    return times


def iteration_statistics(times: Sequence[float]) -> dict[str, float]:
    """Summarise the seconds of repetitions the way nccl-tests does (nearest-rank percentiles).

    The keys are those of nccl-tests' JSON: ``_us`` are microseconds, ``_pct`` a percentage.
    """
    if not times:
        raise UsageError("statistics over repetitions need at least one; none were recorded")
    ordered = sorted(times)
    count = len(ordered)

    def percentile(percent: int) -> float:
        return ordered[min(count - 1, (count * percent + 99) // 100 - 1)]

    mean = sum(ordered) / count
    deviation = math.sqrt(sum((time - mean) ** 2 for time in ordered) / count)
    return {
        "min_us": ordered[0] * 1e6,
        "max_us": ordered[-1] * 1e6,
        "avg_us": mean * 1e6,
        "p50_us": ordered[count // 2] * 1e6,
        "p95_us": percentile(95) * 1e6,
        "p99_us": percentile(99) * 1e6,
        "stdev_us": deviation * 1e6,
        "cv_pct": deviation / mean * 100.0 if mean > 0 else 0.0,
    }


def summary(samples: np.ndarray | None, skip: int) -> tuple[float, ...]:
    """Return the values of `SUMMARY`, for rows of any number of repetitions.

    The median is the usual one, the mean of the two in the middle where there are two; nccl-tests'
    ``p50_us`` is the larger of these.

    Parameters
    ----------
    samples : ndarray or None
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    skip : int
        First repetitions to leave out.

    Returns
    -------
    tuple
        Empty if no repetition is left.
    """
    if samples is None or len(samples) <= skip:
        return ()
    times = iteration_times(samples)[skip:]
    found = iteration_statistics(times)
    return (
        len(times),
        found["min_us"],
        statistics.median(times) * 1e6,
        *(found[key] for key in ("p95_us", "p99_us", "max_us", "cv_pct")),
    )
