"""Finds the sizes at which one curve of times overtakes another.

`hpccomm simulate` and the charts mark them.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

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
