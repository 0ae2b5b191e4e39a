"""A recording as charts: where the time of a step goes, its timeline, and lateness; and the steps of a training.

`page` and `hpccomm.tools.runs.plot` draw them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.recording import STEP, CallWaits, Lateness, Recording
from hpccomm.results.recording_text import spans
from hpccomm.tools.drawing.pictures import Chart, chart, encoding, layer
from hpccomm.tools.programs.steps import (
    COMPUTE,
    EXPOSED,
    HIDDEN,
    PARTS,
    WAITING,
    ProgramSteps,
    StepShares,
)
from hpccomm.tools.runs.charts.pictures import WIDTH, ZOOM, number, tips
from hpccomm.units import counted, rounded_size

MOST_RANKS = 64
"""The most ranks of a chart. Of more ranks, this number is drawn, evenly spread."""

MOST_BARS = 5_000
"""The most bars of a timeline, so that a page stays small. There are fewer ranks of a step of many calls."""

COLORS = ("#9fb8d1", "#2ca02c", "#d62728", "#ff7f0e", "#9467bd")
"""Of the parts of a step, by their places."""

_WIDTH = 2 * WIDTH + 20


def _ranks(number: int, most: int = MOST_RANKS) -> list[int]:
    return [*map(int, np.linspace(0, number - 1, max(1, min(number, most))))]


def _rows(ranks: list[Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the axis of ranks, and the height of their rows."""
    axis = {"axis": {"labelOverlap": "parity", "ticks": False}, "scale": {"domain": ranks}}
    return encoding("rank", "ordinal", "rank", **axis), {"step": 22 - len(ranks) // 6}


def shares_chart(shares: StepShares) -> Chart:
    """Return the five numbers of a typical step, of each rank and as the mean of all."""
    ranks: list[Any] = _ranks(len(shares.typical))
    each = [("mean", shares.mean), *((str(rank), shares.typical[rank]) for rank in ranks)]
    rows = [
        {"rank": rank, "part": PARTS[at], "order": at, "ms": ns / 1e6}
        | {"percent": 100 * ns / max(1, parts.sum())}
        for rank, parts in each
        for at, ns in enumerate(parts.tolist())
    ]
    axis, height = _rows([rank for rank, _ in each])
    color = {"scale": {"domain": PARTS, "range": COLORS}, "legend": {"orient": "bottom"}}
    encodings = {
        "x": number("ms", "ms of a step", scale={}, stack="zero"),
        "y": axis,
        "color": encoding("part", "nominal", **color),
        "order": {"field": "order"},
        "tooltip": [*tips(rank="rank", part="part"), number("ms", "ms"), number("percent", "%")],
    }
    title = f"Where the {shares.mean.sum() / 1e6:.4g} ms of a step go"
    return chart(title, rows, _WIDTH, height, **layer("bar", encodings))


def timeline(recording: Recording, steps: ProgramSteps, waits: CallWaits) -> Chart:
    """Return the step of median duration: a row a rank, and a bar for each part of its calls."""
    step = steps.median
    calls = [steps.calls(recording, step, rank) for rank in range(recording.ranks)]
    most = max(each.stop - each.start for each in calls)
    ranks = _ranks(recording.ranks, min(MOST_RANKS, MOST_BARS // (2 * most + 1)))
    origin = int(steps.bounds[step].min())
    rows = []
    for rank in ranks:
        first, last = steps.bounds[step : step + 2, rank].tolist()
        bars = [(PARTS[COMPUTE], first, last, ""), *_bars(recording, waits, calls[rank])]
        rows += [
            {"rank": rank, "part": part, "call": call, "ns": end - begin}
            | {"begin": (begin - origin) / 1e6, "end": (end - origin) / 1e6}
            for part, begin, end, call in bars[: MOST_BARS // len(ranks)]
            if end > begin
        ]
    parts = [PARTS[each] for each in (COMPUTE, HIDDEN, WAITING, EXPOSED)]
    color = {"scale": {"domain": parts, "range": COLORS[:4]}, "legend": {"orient": "bottom"}}
    axis, height = _rows(ranks)
    scale = {"zero": False, "nice": False}
    under_way = {"test": f"datum.part === '{PARTS[HIDDEN]}'", "value": 5}
    encodings = {
        "x": number("begin", "ms since the first rank began the step", scale=scale),
        "x2": {"field": "end"},
        "y": axis,
        "color": encoding("part", "nominal", **color),
        "size": {"condition": under_way, "value": 14},
        "tooltip": [*tips(rank="rank", part="part", call="call"), number("ns", "ns", format=",d")],
    }
    title = f"Step {step + 1} of {len(steps)}, of median duration"
    across = {**ZOOM, "select": {**ZOOM["select"], "encodings": ["x"]}}
    return chart(title, rows, _WIDTH, height, params=[across], **layer("bar", encodings))


def _bars(
    recording: Recording, waits: CallWaits, chosen: slice
) -> Iterator[tuple[str, int, int, str]]:
    """Yield the part, the begin, the end and the name of each bar of calls."""
    names = "signature", "begin", "end", "waited"
    columns = *(recording.calls[name] for name in names), waits.since, waits.blocked
    each = (column[chosen].tolist() for column in columns)
    for signature, begin, end, waited, since, waiting in zip(*each, strict=True):
        one = recording.signatures[signature]
        if one.operation == STEP:
            continue
        call = f"{one.operation} {rounded_size(one.nbytes)} {one.site}".strip()
        if not one.blocks:
            yield PARTS[HIDDEN], begin, end, call
        if waited:
            yield PARTS[WAITING], since, since + waiting, call
            yield PARTS[EXPOSED], since + waiting, since + waited, call


def lateness_chart(lateness: Lateness) -> Chart:
    """Return how long each rank kept others waiting, over the time."""
    ranks = np.sort(np.argsort(-lateness.kept_waiting, kind="stable")[:MOST_RANKS]).tolist()
    edges = ((lateness.edges - lateness.edges[0]) / 1e9).tolist()
    rows = [
        {"rank": rank, "since": since, "until": until, "ms": ns / 1e6}
        for rank in ranks
        for since, until, ns in zip(edges, edges[1:], lateness.map[rank].tolist(), strict=False)
        if ns
    ]
    axis, height = _rows(ranks)
    encodings = {
        "x": number("since", "s since the first call", scale={"nice": False}),
        "x2": {"field": "until"},
        "y": axis,
        "color": number("ms", "ms", scale={"scheme": "orangered", "type": "sqrt"}),
        "tooltip": [
            *tips(rank="rank"),
            number("since", "s"),
            number("ms", "ms that others waited"),
        ],
    }
    title = "How long each rank kept others waiting"
    return chart(title, rows, _WIDTH, height, **layer("rect", encodings))


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
