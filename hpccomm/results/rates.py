"""Rows of ``hpccomm perf memory`` and ``hpccomm perf copy`` as text.

Bandwidth counts the bytes that are read and written, as STREAM does (McCalpin, stream.c 5.10): a
copy within a memory and an update in place count twice, a sum of two arrays into a third one three
times. A cache's reads of an array that is only written are not counted. A copy over a link counts
once, in its own direction.

`hpccomm.tools.perf.links` prints it while it measures, and `hpccomm show` later.

Statistics over the repetitions of a row, from its samples.

Tables, CSV and JSON show them.
"""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.results import facts as placement
from hpccomm.results.schema import Column, Row, RunInfo, Timing
from hpccomm.units import figure

SUMMARY: tuple[Column, ...] = (
    Column("repetitions", "<i8", "repetitions in the statistics, without those of -K"),
    Column("min", "<f8", "fastest repetition; a repetition has the time of its slowest rank", "us"),
    Column("median", "<f8", "median of the repetitions", "us"),
    Column("p95", "<f8", "95th percentile, the nearest rank", "us"),
    Column("p99", "<f8", "99th percentile, the nearest rank", "us"),
    Column("max", "<f8", "slowest repetition", "us"),
    Column("cv", "<f8", "standard deviation over mean", "%"),
)
"""The statistics that `summary` returns for a row."""


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
    each = iteration_statistics(times)
    return (
        len(times),
        each["min_us"],
        statistics.median(times) * 1e6,
        *(each[key] for key in ("p95_us", "p99_us", "max_us", "cv_pct")),
    )


def typical(row: Row, timing: Timing) -> Row:
    """Return a row with the median of its repetitions, if that is less than its time, which is a mean.

    A single repetition that other work has held up makes the mean many times as long.
    """
    part = timing.median / row.time if 0 < timing.median < row.time else 1.0
    time, algbw, busbw = row.time * part, row.algbw / part, row.busbw / part
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
        Fields of `Timing`; the error in seconds.
    """
    times = isolated_times(isolated)
    least, most = median_interval(times)
    slowest = samples[skip:].max(axis=1, initial=-math.inf)
    both = (*_quantiles(slowest), sync, *_quantiles(times), least * 1e6, most * 1e6)
    return Timing(*both, late, clock_error * 1e6, variant)


def isolated_times(stamps: np.ndarray) -> np.ndarray:
    """Return the seconds of each isolated repetition, from its earliest start to its latest end.

    Parameters
    ----------
    stamps : ndarray
        As of `timing`.

    Returns
    -------
    ndarray of float64, shape ``(repetitions,)``
    """
    times: np.ndarray = stamps[:, :, 1].max(axis=1) - stamps[:, :, 0].min(axis=1)
    return times


def median_interval(times: np.ndarray) -> tuple[float, float]:
    """Return a confidence interval of at least 95 % of a median, whatever the distribution.

    Its ends are two of the sorted times: how many times lie below the true median is binomial with
    probability 1/2 (H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1).

    Parameters
    ----------
    times : ndarray, shape ``(repetitions,)``
        Independent measurements.

    Returns
    -------
    tuple of float
        In the unit of `times`; NaN if there are fewer than 6: even their extremes are too close.
    """
    count = len(times)
    ordered = np.sort(times)
    # The rank of the lower end: the most that leaves at most 2.5 % below it.
    factorials = np.array([math.lgamma(number + 1) for number in range(count + 1)])
    ways = factorials[-1] - factorials - factorials[::-1]
    below = np.cumsum(np.exp(ways - count * math.log(2)))
    rank = int(np.searchsorted(below, 0.025, side="right"))
    if rank == 0:
        return math.nan, math.nan
    return float(ordered[rank - 1]), float(ordered[count - rank])


def _quantiles(times: np.ndarray) -> tuple[float, float, float]:
    if not len(times):
        return math.nan, math.nan, math.nan
    median, low, high = (np.percentile(times, (50, 5, 95)) * 1e6).tolist()
    return median, low, high


COUNTED = {
    "memory_copy": 2,
    "memory_add": 3,
    "memory_update": 2,
    "host_to_device": 1,
    "device_to_host": 1,
    "device_copy": 2,
    "device_to_device": 1,
}
"""The rates, and how often each counts its bytes."""

_LINE = "{:<16}  {:<34}  {:>11}  {:>10}  {:>7}  {:>6}  {:>7}  {}"
_HEADING = ("what", "where", "bytes", "us", "GB/s", "#wrong", "of peak", "path")

_LIMIT = """\
#
# An all_reduce of n ranks in shared memory reads and writes n arrays. Where these are larger than the
# caches, its busbw is at most (n-1)/n^2 of the best memory_update or memory_copy, {:.4g} GB/s:
#   {} GB/s"""
"""The memory's bound of an all-reduce, which reads and writes equally much."""

_RANKS = (2, 4, 8, 16, 32, 64)


def path_fact(what: str, where: str) -> str:
    """Return the name under which a run's facts of the machine hold the path of a copy, and its peak: ``NAME: 63 GB/s``.

    Parameters
    ----------
    what : str
        A name of `COUNTED`.
    where : str
        Such as ``GPU 0, pinned``, or ``GPU 0 to GPU 1, both ways``.
    """
    return f"path {'host to ' * ('host' in what)}{where.split(',')[0]}"


def are_rates(rows: Sequence[Row]) -> bool:
    """Whether rows are of memory or links, and not of collectives."""
    return bool(rows) and all(row.collective in COUNTED for row in rows)


def text(info: RunInfo, rows: Sequence[Row], samples: Callable[[int], np.ndarray | None]) -> str:
    """Return the rows of a run as a table.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : sequence of Row
        What was measured.
    samples : callable
        Gives the seconds of a row's repetitions, shape ``(repetitions, ranks)``, or None, by its index. From them each
        line names the slowest rank, if there are several nodes.
    """
    facts = [f"{name} {fact}" for name, fact in sorted(info.machine.items()) if name[:4] != "path"]
    versions = [f"{name}={version}" for name, version in sorted(info.versions.items())]
    lines = [f"# {', '.join(facts)}", f"# {' '.join(versions)}"]
    lines += placement.folded(info) if len(info.ranks) > 1 else []
    lines.append(f"# {_LINE.format(*_HEADING)}")
    for index, row in enumerate(rows):
        path = info.machine.get(path_fact(row.collective, row.algorithm), "")
        peak = re.search(r": (\S+) GB/s$", path)
        share = f"{row.busbw / float(peak[1]):.0%}" if peak else ""
        if info.nodes > 1 and (seconds := samples(index)) is not None:
            slowest = info.ranks[int(np.argmax(np.median(seconds, axis=0)))]
            path = f"{path} slowest: rank {slowest.rank} on {slowest.host}".strip()
        figures = f"{row.time:.1f}", figure(row.busbw, 7).strip(), row.wrong, share, path
        line = _LINE.format(row.collective, row.algorithm, row.bytes, *figures)
        lines.append(f"  {line}".rstrip())
    alike = ("memory_copy", "memory_update")
    best = max((row.busbw for row in rows if row.collective in alike), default=0.0)
    limits = (f"{n} ranks {best * (n - 1) / n**2:.3g}" for n in _RANKS)
    lines += _LIMIT.format(best, ", ".join(limits)).splitlines() if best else []
    return "".join(f"{line}\n" for line in lines)
