"""Tests two samples of launches against each other: pure functions, by SciPy.

The methods are the recommended ones for running times, which are skewed and have outliers: medians
and ranks instead of means and normal distributions (T. Hoefler and R. Belli, "Scientific
benchmarking of parallel computing systems", SC 2015; S. Hunold and A. Carpen-Amarie, "Reproducible
MPI benchmarking is still not as easy as you think", IEEE TPDS 2016).

`hpccomm.results.comparison.verdict` applies them to each case.
"""

import math
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import ConfigurationError
from hpccomm.extras import install_command

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
