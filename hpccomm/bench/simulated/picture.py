"""Algorithms side by side, drawn: time and bus bandwidth against size."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpccomm.bench.simulated.comparison import Curves, Point
from hpccomm.errors import UsageError
from hpccomm.schedules.draw.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(groups: Mapping[str, Curves]) -> "Figure":
    """Return a figure with a row for each group of algorithms: time on the left, busbw on the right.

    Parameters
    ----------
    groups : mapping of str to Curves
        By title. Sizes and times of 0 have no place on logarithmic axes: points with them are left
        out, and groups of nothing else, as of barriers.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    UsageError
        If nothing is left to draw.
    """
    shown = {
        title: drawn
        for title, curves in groups.items()
        if any((drawn := {name: _drawable(points) for name, points in curves.items()}).values())
    }
    if not shown:
        raise UsageError(
            "there is nothing to draw: all sizes or all times are 0; give a larger -e/--maxbytes, or "
            "leave --plot out"
        )
    figure = new_figure(11.0, 4.2 * len(shown))
    for row, (title, curves) in enumerate(shown.items()):
        left: Axes = figure.add_subplot(len(shown), 2, 2 * row + 1)
        right: Axes = figure.add_subplot(len(shown), 2, 2 * row + 2)
        for name, points in curves.items():
            sizes = [point.nbytes for point in points]
            left.plot(sizes, [point.seconds * 1e6 for point in points], marker="o", label=name)
            right.plot(sizes, [point.busbw for point in points], marker="o", label=name)
        left.set_yscale("log")
        left.set_ylabel("time (us)")
        right.set_ylabel("bus bandwidth (GB/s)")
        right.set_ylim(bottom=0)
        left.set_title(title, loc="left", fontsize="medium")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("size (B)")
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
    figure.set_layout_engine("tight")
    return figure


def _drawable(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.nbytes > 0 and point.seconds > 0]
