"""A stored training as a picture: what its communication took, step by step."""

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.training import Training
from hpccomm.results.training_text import spans
from hpccomm.schedules.draw.drawing import new_figure
from hpccomm.units import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 500
"""Of a line; of more steps, medians are drawn."""

_SECONDS = (
    ("seconds", "communication", "#1f77b4"),
    ("hidden_seconds", "hidden behind the computation", "#2ca02c"),
    ("blocked_seconds", "blocked", "#d62728"),
)
_BYTES = (("nbytes", "gradients", "#7f7f7f"), ("wire_nbytes", "sent", "#9467bd"))


def draw(training: Training) -> "Figure":
    """Return the picture.

    Raises
    ------
    ResultsError
        If it has no steps.
    ConfigurationError
        If matplotlib is missing.
    """
    if not len(training.steps):
        raise ResultsError(f"{training.path}: {training.name} has no steps to draw")
    figure = new_figure(9.0, 6.0)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    parts = spans(training.steps, MOST_POINTS)
    at = [np.median(part["step"]) for part in parts]
    mark = "." if len(parts) < MOST_POINTS // 10 else ""
    for axes, lines, factor in ((upper, _SECONDS, 1e3), (lower, _BYTES, 1e-6)):
        for name, label, color in lines:
            values = [factor * np.median(part[name]) for part in parts]
            if name == lines[0][0] and len(parts) > 1:  # the others are parts of it
                axes.fill_between(at, values, color=color, alpha=0.3, label=label)
            else:
                axes.plot(at, values, label=label, color=color, marker=mark, linewidth=1)
        axes.set_ylim(0, 1.15 * axes.dataLim.ymax or 1)
        axes.grid(alpha=0.3)
        for since in sorted({bucket.since for bucket in training.buckets} - {0}):
            axes.axvline(since, color="black", linestyle=":", linewidth=1)
        axes.legend(frameon=False, fontsize="small")
    skipped = training.steps["step"][training.steps["skipped"] > 0]
    if len(skipped):
        upper.plot(skipped, np.zeros(len(skipped)), "x", color="black", label="skipped")
        upper.legend(frameon=False, fontsize="small")
    upper.set_ylabel("ms a step")
    lower.set_ylabel("MB a step")
    lower.set_xlabel("step")
    ranks = training.facts.ranks
    upper.set_title(f"{training.name} of {training.path.name}, {counted(ranks, 'rank')}")
    figure.tight_layout()
    return figure
