"""Algorithms side by side: their times, where one overtakes another, and what bounds them."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpccomm.results.table import figure


@dataclass(frozen=True, slots=True)
class Point:
    """What one algorithm does with one size.

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


Curves = Mapping[str, Sequence[Point]]
"""For each algorithm its points, by size, the same sizes for all."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where two algorithms take the same time.

    Attributes
    ----------
    below, above : str
        The faster one for smaller sizes, and for larger ones.
    lower, upper : int
        The sizes that were simulated on either side.
    nbytes : float
        An estimate of the size.
    """

    below: str
    above: str
    lower: int
    upper: int
    nbytes: float


def crossovers(curves: Curves) -> list[Crossover]:
    """Return where each pair of algorithms changes places, by size.

    Between two sizes, the logarithm of the ratio of times is taken as linear in that of the size.
    """
    result = [
        crossover
        for (one, points), (other, others) in itertools.combinations(curves.items(), 2)
        for crossover in _between(one, points, other, others)
    ]
    return sorted(result, key=lambda each: each.nbytes)


def _between(
    one: str, points: Sequence[Point], other: str, others: Sequence[Point]
) -> Iterator[Crossover]:
    before: tuple[int, float] | None = None  # size, and logarithm of the ratio
    for mine, its in zip(points, others, strict=True):
        if mine.nbytes <= 0 or min(mine.seconds, its.seconds) <= 0:
            continue
        ratio = math.log(mine.seconds / its.seconds)
        if math.isclose(ratio, 0, abs_tol=1e-9):
            continue
        if before is not None and before[1] * ratio < 0:
            lower, last = before
            part = last / (last - ratio)
            at = math.exp(math.log(lower) + part * math.log(mine.nbytes / lower))
            below, above = (one, other) if last < 0 else (other, one)
            yield Crossover(below, above, lower, mine.nbytes, at)
        before = (mine.nbytes, ratio)


def text(title: str, curves: Curves) -> str:
    """Return the comparison as lines of comment.

    Parameters
    ----------
    title : str
        What was simulated.
    curves : mapping of str to sequence of Point
        By algorithm.
    """
    first = any(not math.isnan(point.first) for points in curves.values() for point in points)
    lines = [f"# {title}: time of the last rank{' (and of the first one done)' * first} in us"]
    width = max(20, *(len(name) + 2 for name in curves))
    lines.append("# " + f"{'size (B)':>12s}" + "".join(f"{name:>{width}s}" for name in curves))
    for row in zip(*curves.values(), strict=True):
        fastest = min(point.seconds for point in row)
        cells = (f"{_times(point):>{width}s}" for point in row)
        names = [
            name
            for name, point in zip(curves, row, strict=True)
            if math.isclose(point.seconds, fastest, rel_tol=1e-9)
        ]
        best = f"  {' = '.join(names)}" if len(curves) > 1 else ""
        lines.append("# " + f"{row[0].nbytes:12d}" + "".join(cells) + best)
    if len(curves) > 1:
        lines += [
            f"# Crossover: {each.below} up to {in_words(each.lower)}, {each.above} from "
            f"{in_words(each.upper)} on; about {in_words(each.nbytes, 2)}"
            for each in crossovers(curves)
        ] or ["# Crossover: none between these sizes"]
    lines += [line for name, points in curves.items() if (line := _limit(name, points[-1]))]
    return "".join(f"{line}\n" for line in [*lines, "#"])


def _times(point: Point) -> str:
    first = "" if math.isnan(point.first) else f" ({figure(point.first * 1e6, 7).strip()})"
    return figure(point.seconds * 1e6, 7).strip() + first


def _limit(name: str, point: Point) -> str:
    """Return a line on what bounds an algorithm at its largest size."""
    if not point.bottleneck or point.seconds <= 0:
        return ""
    part = point.busy / point.seconds
    limit = f"; alone it would allow busbw {point.busbw / part:.2f}" if point.busbw else ""
    return (
        f"# Bottleneck: {name} at {in_words(point.nbytes)}: {point.bottleneck}, "
        f"taken {100 * part:.1f}% of the time{limit}"
    )


def in_words(nbytes: float, digits: int = 4) -> str:
    """Return a size in words, rounded to `digits` digits."""
    # By the rounded value: just below a MiB is 1 MiB, not 1024 KiB.
    rounded = (float(f"{nbytes / 1024**power:.{digits}g}") for power in range(len(_UNITS)))
    values = zip(rounded, _UNITS, strict=True)
    return next((f"{value:g} {unit}" for value, unit in values if value < 1024), f"{nbytes:g} B")


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
