"""Algorithms side by side: their times, where one overtakes another, and what bounds them.

`runs` collects what it compares, and `hpccomm.cli.simulate` prints it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccomm.comparison.crossovers import crossovers, fastest
from hpccomm.results.table import figure
from hpccomm.units import rounded_size


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one algorithm at one size.

    Attributes
    ----------
    nbytes : int
        The size.
    seconds : float
        Until the last rank is done.
    first : float
        Until the first rank is done; not a number where that is not known.
    busbw : float
        Bus bandwidth in 1e9 B/s.
    bottleneck : str
        What was taken for longest; empty where that is not known.
    busy : float
        Seconds that it was taken for.
    """

    nbytes: int
    seconds: float
    first: float
    busbw: float
    bottleneck: str
    busy: float


Curves = Mapping[str, Sequence[Cost]]
"""For each algorithm its points, by size, the same sizes for all."""


def text(title: str, curves: Curves) -> str:
    """Return the comparison as lines of comment.

    Parameters
    ----------
    title : str
        What was simulated.
    curves : mapping of str to sequence of Cost
        By algorithm.
    """
    first = any(not math.isnan(point.first) for points in curves.values() for point in points)
    lines = [f"# {title}: time of the last rank{' (and of the first one done)' * first} in us"]
    width = max(20, *(len(name) + 2 for name in curves))
    lines.append("# " + f"{'size (B)':>12s}" + "".join(f"{name:>{width}s}" for name in curves))
    for row in zip(*curves.values(), strict=True):
        cells = (f"{_times(point):>{width}s}" for point in row)
        seconds = {name: each.seconds for name, each in zip(curves, row, strict=True)}
        best = f"  {' = '.join(fastest(seconds))}" if len(curves) > 1 else ""
        lines.append("# " + f"{row[0].nbytes:12d}" + "".join(cells) + best)
    if len(curves) > 1:
        times = {name: {each.nbytes: each.seconds for each in its} for name, its in curves.items()}
        lines += [
            f"# Crossover: {each.before} up to {rounded_size(each.lower)}, {each.after} from "
            f"{rounded_size(each.upper)} on; about {rounded_size(each.size, 2)}"
            for each in crossovers(times)
        ] or ["# Crossover: none between these sizes"]
    lines += [line for name, points in curves.items() if (line := _limit(name, points[-1]))]
    return "".join(f"{line}\n" for line in [*lines, "#"])


def _times(point: Cost) -> str:
    first = "" if math.isnan(point.first) else f" ({figure(point.first * 1e6, 7).strip()})"
    return figure(point.seconds * 1e6, 7).strip() + first


def _limit(name: str, point: Cost) -> str:
    """Return a line on what bounds an algorithm at its largest size."""
    if not point.bottleneck or point.seconds <= 0:
        return ""
    part = point.busy / point.seconds
    limit = f"; alone it would allow busbw {point.busbw / part:.2f}" if point.busbw else ""
    taken = f"{point.bottleneck}, taken {100 * part:.1f}% of the time"
    return f"# Bottleneck: {name} at {rounded_size(point.nbytes)}: {taken}{limit}"
