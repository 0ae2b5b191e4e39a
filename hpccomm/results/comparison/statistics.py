"""Tests two samples of launches against each other: pure functions, by SciPy.

The methods are the recommended ones for running times, which are skewed and have outliers: medians
and ranks instead of means and normal distributions (T. Hoefler and R. Belli, "Scientific
benchmarking of parallel computing systems", SC 2015; S. Hunold and A. Carpen-Amarie, "Reproducible
MPI benchmarking is still not as easy as you think", IEEE TPDS 2016).

`hpccomm.results.comparison.verdict` applies them to each case.

Finds the sizes at which one curve of times overtakes another.

`hpccomm simulate` and the charts mark them.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import ConfigurationError
from hpccomm.spelling import install_command

Times = Mapping[int, float]
"""Time by size."""


class Crossover(NamedTuple):
    """Where the fastest curve changes.

    Attributes
    ----------
    before, after : str
        The fastest for smaller sizes, and for larger ones.
    lower, upper : int
        The sizes that were measured on either side.
    size, time : float
        An estimate of the size, and of the time that both take there.
    """

    before: str
    after: str
    lower: int
    upper: int
    size: float
    time: float


def crossovers(curves: Mapping[str, Times]) -> list[Crossover]:
    """Return where the fastest curve changes, by size.

    Only sizes that all curves have are looked at. Curves that are the fastest at none of them have no part in it.
    Between two sizes, the logarithm of times is taken as linear in that of the size.
    """
    crossings: list[Crossover] = []
    leaders: set[str] = set()
    last = 0
    for size in sorted(set.intersection(*map(set, curves.values()))) if curves else ():
        row = {name: times[size] for name, times in curves.items()}
        # Imported logs can have times of 0, which have no logarithm.
        if size <= 0 or min(row.values()) <= 0:
            continue
        best = fastest(row)
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


Launches = NDArray[np.float64]

RESAMPLES = 5000
"""Samples of the bootstrap."""


def require_scipy(what: str) -> None:
    """Raise if SciPy, which `what` needs, is missing.

    Raises
    ------
    ConfigurationError
        If it cannot be imported.
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{what} needs SciPy ({error}): {install_command('stats')}"
        ) from None


class Ratio(NamedTuple):
    """The relative difference of the sides' times.

    Attributes
    ----------
    value : float
        Median of the new launches over that of the base.
    low, high : float
        Its 95 % confidence interval; NaN where a side has one launch.
    """

    value: float
    low: float
    high: float


def ratio(base: Launches, new: Launches) -> Ratio:
    """Return the ratio of medians, with a bootstrap confidence interval (percentiles; B. Efron, 1979).

    Parameters
    ----------
    base, new : ndarray of float64
        Times of launches, positive.
    """
    from scipy.stats import bootstrap

    value = float(np.median(new) / np.median(base))
    if min(len(base), len(new)) < 2:
        return Ratio(value, math.nan, math.nan)
    # Seeded: the same files give the same verdict.
    interval = bootstrap(
        (new, base),
        lambda new, base, axis: np.median(new, axis=axis) / np.median(base, axis=axis),
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high))


def slower(base: Launches, new: Launches, minimum: float) -> float:
    """Return the p value of launches being no more than `minimum` slower than the base.

    It is the one-sided rank-sum test (H. B. Mann and D. R. Whitney, 1947) of the new times against
    the base's, each made `minimum` longer: a real difference that is too small to matter does not
    count.

    Parameters
    ----------
    base, new : ndarray of float64
        Times of launches.
    minimum : float
        The least effect that matters, as a part of the time: 0.02 is 2 %.
    """
    from scipy.stats import mannwhitneyu

    # A difference of exactly the minimum does not count; otherwise rounding would decide.
    longer = base * (1 + minimum) * (1 + 1e-9)
    both = np.concatenate([new, longer])
    exact = len(np.unique(both)) == len(both) and len(new) * len(longer) <= 2500
    method = "exact" if exact else "asymptotic"
    return float(mannwhitneyu(new, longer, alternative="greater", method=method).pvalue)


def least_p(base: int, new: int) -> float:
    """Return the smallest p value for these numbers of launches: that of disjoint sides."""
    return 1 / math.comb(base + new, new)


def launches_needed(level: float, tests: int) -> int:
    """Return the launches a side that can show a difference at a level, with a number of tests."""
    return next(number for number in count(2) if least_p(number, number) <= level / tests)


def holm(p: Sequence[float]) -> list[float]:
    """Return p values adjusted for multiple tests.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
    1979.
    """
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    scaled = np.asarray(p, float)[order] * np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(each) for each in adjusted]
