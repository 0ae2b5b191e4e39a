"""Charts as pictures, by matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.charts.curves import BANDWIDTH, Curve, Moment, Skew, crossings
from hpccomm.errors import ResultsError
from hpccomm.schedules.draw.drawing import new_figure
from hpccomm.units import rounded_size, size_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CURVES = 12
"""More of them cannot be told apart."""

_MARKS = "osD^vP*Xph<>"


def over_size(title: str, drawn: Sequence[Curve]) -> "Figure":
    """Return time and bus bandwidth over size, with the spread of repetitions, and where curves cross.

    Raises
    ------
    ResultsError
        If nothing can be drawn.
    ConfigurationError
        If matplotlib is missing.
    """
    shown = [each for each in drawn if any(point.size > 0 for point in each.points)][:MOST_CURVES]
    if not shown:
        raise ResultsError("no row has a size to draw over")
    figure = new_figure(11.0, 5.2)
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    for number, curve in enumerate(shown):
        points = [point for point in curve.points if point.size > 0]
        size = [point.size for point in points]
        style: dict[str, Any] = {
            "marker": _MARKS[number % len(_MARKS)],
            "markersize": 4,
            "linewidth": 1.2,
            "label": curve.label,
        }
        (line,) = left.plot(size, [point.time for point in points], **style)
        low, high = [point.low for point in points], [point.high for point in points]
        left.fill_between(size, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        right.plot(size, [point.busbw for point in points], **style)
        wrong = [point for point in points if point.wrong > 0]
        left.plot(
            [point.size for point in wrong], [point.time for point in wrong], "rx", markersize=12
        )
    for crossing in crossings(shown) if len(shown) > 1 else ():
        left.axvline(crossing.size, color="black", linestyle=":", linewidth=0.8)
        left.annotate(
            rounded_size(crossing.size),
            (crossing.size, crossing.time),
            textcoords="offset points",
            xytext=(3, -12),
            fontsize="x-small",
        )
    for axes, name in ((left, shown[0].points[0].statistic), (right, BANDWIDTH)):
        axes.set_xscale("log", base=2)
        axes.set_ylabel(name)
        axes.set_xlabel("size")
        axes.xaxis.set_major_formatter(
            lambda value, _: size_text(round(value)) if value >= 1 else ""
        )
        axes.tick_params(axis="x", labelrotation=45)
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    if len(shown) > 1:
        right.legend(frameon=False, fontsize="x-small")
    more = len(drawn) - len(shown)
    figure.suptitle(title + (f" ({more} more not drawn)" if more > 0 else ""), fontsize="medium")
    return figure


def skews(title: str, found: Skew) -> "Figure":
    """Return how late each rank starts and ends, with 5th and 95th percentile."""
    figure = new_figure(9.0, 4.5)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    ranks = np.arange(len(found.starts))
    for late, name, colour, mark in (
        (found.starts, "starts", "#1f77b4", "o"),
        (found.ends, "ends", "#d62728", "s"),
    ):
        middle, low, high = late.T
        spread = np.maximum(0, [middle - low, high - middle])
        axes.errorbar(
            ranks, middle, spread, label=name, color=colour, marker=mark, linestyle="", capsize=2
        )
    axes.set_xlabel("rank")
    axes.set_ylabel("us after the first rank")
    axes.set_title(title, fontsize="medium")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def histories(found: dict[str, list[Moment]]) -> "Figure":
    """Return what cases took over time.

    Raises
    ------
    ResultsError
        If there is nothing that two runs have measured.
    """
    if not found:
        raise ResultsError("no case was measured by two runs or more; name more files, or a folder")
    figure = new_figure(10.0, 5.0)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for number, (case, moments) in enumerate(list(found.items())[:MOST_CURVES]):
        at: Any = [moment.started for moment in moments]
        time = np.array([moment.point.time for moment in moments])
        low = np.array([moment.point.low for moment in moments])
        high = np.array([moment.point.high for moment in moments])
        mark = _MARKS[number % len(_MARKS)]
        (line,) = axes.plot(at, time, marker=mark, markersize=4, linewidth=1, label=case)
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_ylabel(next(iter(found.values()))[0].point.statistic)
    axes.set_yscale("log")
    for axis in ("set_major_formatter", "set_minor_formatter"):
        getattr(axes.yaxis, axis)(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="x-small")
    more = len(found) - MOST_CURVES
    axes.set_title(
        f"History of {len(found)} cases"
        + (f", {more} not drawn: name one by --case" if more > 0 else ""),
        fontsize="medium",
    )
    figure.autofmt_xdate()
    return figure
