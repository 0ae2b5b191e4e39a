"""Pairs of ranks as a heat map: latency and bandwidth, each beside what it should be. Needs matplotlib."""

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.results.pairs import Measured, Verdict, matrices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = 5.5


def draw(measured: Measured, verdict: Verdict) -> "Figure":
    """Return the picture; red is worse than it should be."""
    from matplotlib.figure import Figure

    latency, bandwidth = matrices(measured)
    figure = Figure(figsize=(2 * _INCHES, _INCHES), layout="constrained")
    for axes, matrix, name, scale, colours in (
        (figure.add_subplot(1, 2, 1), latency * 1e6, "latency, us", 1, "RdYlGn_r"),
        (
            figure.add_subplot(1, 2, 2),
            bandwidth / 1e9,
            "bandwidth from row to column, GB/s",
            1,
            "RdYlGn",
        ),
    ):
        shown = np.ma.masked_invalid(matrix * scale)
        image = axes.imshow(shown, cmap=colours, interpolation="nearest")
        figure.colorbar(image, ax=axes, shrink=0.8)
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
