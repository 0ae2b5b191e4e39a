"""A stored training as a chart: the time of its communication, step by step.

`hpccomm plot` draws it.
"""

from typing import Any

import numpy as np

from hpccomm.charts.pictures import number
from hpccomm.drawing.vega import Chart, chart, encoding, layer
from hpccomm.errors import ResultsError
from hpccomm.results.recording import Recording
from hpccomm.results.recording_text import spans
from hpccomm.units import counted

MOST_POINTS = 500
"""The most points of a line. Of more steps, medians are drawn."""

_SECONDS = {
    "communication": ("seconds", "#1f77b4"),
    "hidden behind the computation": ("hidden_seconds", "#2ca02c"),
    "blocked": ("blocked_seconds", "#d62728"),
}
_BYTES = {"gradients": ("nbytes", "#7f7f7f"), "sent": ("wire_nbytes", "#9467bd")}


def training_chart(training: Recording) -> Chart:
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
    changed = _marks(changes, "rule", strokeDash=[2, 3])
    marked = _marks(skipped, "text", text="skipped", angle=270, align="left", y="height")
    panels = [
        _panel(training, _SECONDS, 1e3, "ms a step", 260, [changed, marked]),
        _panel(training, _BYTES, 1e-6, "MB a step", 130, [changed]),
    ]
    ranks = counted(training.ranks, "rank")
    title = f"{training.name} of {training.path.name}, {ranks}"
    independent = {"scale": {"color": "independent"}}
    return {"title": title, "vconcat": panels, "resolve": independent}


def _panel(
    training: Recording,
    curves: dict[str, tuple[str, str]],
    factor: float,
    title: str,
    height: int,
    marks: list[Chart],
) -> Chart:
    rows = [
        {
            "step": round(float(np.median(part["step"]))),
            "what": what,
            "value": factor * float(np.median(part[name])),
        }
        for part in spans(training.steps, MOST_POINTS)
        for what, (name, _) in curves.items()
    ]
    scale = {"domain": list(curves), "range": [color for _, color in curves.values()]}
    steps = {"tickMinStep": 1, "format": ",d"}
    axes = {
        "x": number("step", "step", scale={"zero": False, "nice": False}, axis=steps),
        "y": number("value", title, scale={}, stack=None),
        "color": encoding("what", "nominal", scale=scale),
    }
    # The others are parts of the first.
    first = [{"filter": {"field": "what", "equal": next(iter(curves))}}]
    area = layer({"type": "area", "opacity": 0.3}, transform=first)
    point = len(rows) < MOST_POINTS // 10
    line = layer({"type": "line", "point": point, "strokeWidth": 1.2})
    return chart("", rows, 720, height, encoding=axes, layer=[area, line, *marks])


def _marks(steps: list[int], mark: str, **style: Any) -> Chart:
    """Return marks at steps."""
    black = {"y": None, "color": {"value": "black"}}
    return layer({"type": mark, **style}, black, data={"values": [{"step": at} for at in steps]})
