"""Pairs of ranks as a heat map: latency and bandwidth, each beside what it should be. Needs matplotlib."""

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.results.pairs import Measured, Verdict, parts
from hpccomm.schedules.draw.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 5.5


def draw(measured: Measured, verdict: Verdict) -> "Figure":
    """Return the picture: of each pair, what it has as a part of what pairs of its kind should have."""
    speed, bandwidth = parts(measured, verdict)
    figure = new_figure(2 * _INCHES, _INCHES)
    figure.set_layout_engine("constrained")
    for place, part, name in (
        (1, speed, "speed of small messages (inverse latency)"),
        (2, bandwidth, "bandwidth from row to column"),
    ):
        axes = figure.add_subplot(1, 2, place)
        shown = np.ma.masked_invalid(part * 100)
        image = axes.imshow(shown, cmap="RdYlBu", vmin=0, vmax=120, interpolation="nearest")
        figure.colorbar(image, ax=axes, shrink=0.8, label="% of what it should be", extend="max")
        axes.set_title(name)
        axes.set_xlabel("rank")
        axes.set_ylabel("rank")
        changes = np.flatnonzero(np.diff(measured.nodes)) + 0.5
        for change in changes if len(changes) <= 32 else ():
            axes.axhline(change, color="black", linewidth=0.5)
            axes.axvline(change, color="black", linewidth=0.5)
    slow = ", ".join(f"{each.kind} {each.name}" for each in verdict.findings[:3])
    more = len(verdict.findings) - 3
    title = (
        f"slow: {slow}" + (f" and {more} more" if more > 0 else "") if slow else "nothing is slow"
    )
    ranks = f"{len(measured.nodes)} ranks on {len(set(measured.nodes))} nodes"
    figure.suptitle(f"{ranks}, {len(measured.links)} of {measured.pairs} pairs: {title}")
    return figure
