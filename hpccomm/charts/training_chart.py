"""A stored training as a chart: what its communication took, step by step."""

from typing import Any

import numpy as np

from hpccomm.charts.pictures import number
from hpccomm.drawing.vega import Chart, chart, encoding
from hpccomm.errors import ResultsError
from hpccomm.results.training import Training
from hpccomm.results.training_text import spans
from hpccomm.units import counted

MOST_POINTS = 500
"""The most points of a line. Of more steps, medians are drawn."""

_SECONDS = {
    "communication": ("seconds", "#1f77b4"),
    "hidden behind the computation": ("hidden_seconds", "#2ca02c"),
    "blocked": ("blocked_seconds", "#d62728"),
}
_BYTES = {"gradients": ("nbytes", "#7f7f7f"), "sent": ("wire_nbytes", "#9467bd")}


def training_chart(training: Training) -> Chart:
    """Return milliseconds and bytes of each step.

    Raises
    ------
    ResultsError
        If it has no steps.
    """
    if not len(training.steps):
        raise ResultsError(f"{training.path}: {training.name} has no steps to draw")
    skipped = training.steps["step"][training.steps["skipped"] > 0].tolist()
    changes = sorted({bucket.since for bucket in training.buckets} - {0})
    ranks = counted(training.facts.ranks, "rank")
    upper = _panel(training, _SECONDS, 1e3, "ms a step", 260)
    upper["layer"] += [_marks(changes, "rule", strokeDash=[2, 3])]
    upper["layer"] += [_marks(skipped, "text", text="skipped", angle=270, align="left", dx=4)]
    lower = _panel(training, _BYTES, 1e-6, "MB a step", 130)
    lower["layer"] += [_marks(changes, "rule", strokeDash=[2, 3])]
    return {
        "title": f"{training.name} of {training.path.name}, {ranks}",
        "vconcat": [upper, lower],
        "resolve": {"scale": {"color": "independent"}},
    }


def _panel(
    training: Training,
    curves: dict[str, tuple[str, str]],
    factor: float,
    title: str,
    height: int,
) -> dict[str, Any]:
    rows = [
        {
            "step": float(np.median(part["step"])),
            "what": what,
            "value": factor * float(np.median(part[name])),
        }
        for part in spans(training.steps, MOST_POINTS)
        for what, (name, _) in curves.items()
    ]
    first = next(iter(curves))
    scale = {"domain": list(curves), "range": [colour for _, colour in curves.values()]}
    axes = {
        "x": number("step", "step", axis={"tickMinStep": 1, "format": ",d"}),
        "y": number("value", title, scale={}, stack=None),
        "color": encoding("what", "nominal", scale=scale),
    }
    area = {  # the others are parts of it
        "transform": [{"filter": {"field": "what", "equal": first}}],
        "mark": {"type": "area", "opacity": 0.3},
        "encoding": axes,
    }
    line = {"type": "line", "point": len(rows) < MOST_POINTS // 10, "strokeWidth": 1.2}
    return chart("", rows, 720, height, layer=[area, {"mark": line, "encoding": axes}])


def _marks(steps: list[int], mark: str, **style: Any) -> dict[str, Any]:
    """Return marks at steps."""
    return {
        "data": {"values": [{"step": step} for step in steps]},
        "mark": {"type": mark, "color": "black", **style},
        "encoding": {"x": {"field": "step", "type": "quantitative"}},
    }
