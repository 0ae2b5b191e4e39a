"""Charts of stored runs, of pairs of ranks, and of recordings, as specifications of Vega-Lite.

Runs are drawn as curves over size, histories and skews; pairs of ranks as heat maps; a recording as the parts of a
step, a timeline and lateness; a training as its steps. `hpccomm plot` and the page of a report show them. A page reacts
to the mouse (tooltips, names to click, zoom). A picture leaves that out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.pairs import MeasuredPairs, PairDiagnosis, matrices, parts
from hpccomm.results.recording import STEP, CallWaits, Lateness, Recording
from hpccomm.results.recording_text import spans
from hpccomm.results.timings import crossovers
from hpccomm.tools.drawing import Chart, chart, encoding, layer
from hpccomm.tools.programs.steps import (
    COMPUTE,
    EXPOSED,
    HIDDEN,
    PARTS,
    WAITING,
    ProgramSteps,
    StepShares,
)
from hpccomm.tools.runs.curves import BANDWIDTH, CurvePoint, Moment
from hpccomm.units import counted, few, ranges, rounded_size

MOST_CURVES = 20
"""The most curves of a chart. More could not be distinguished."""

MOST_MOMENTS = 5_000
"""The most points of a history, so that a page stays small."""

WIDTH = 505
"""Pixels of one of two charts beside each other."""

_WIDTH = 2 * WIDTH + 20

_CROSS = "M-0.8,-0.8L0.8,0.8M-0.8,0.8L0.8,-0.8"

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
_SIZE_LABEL = (
    "".join(
        f"datum.value >= {unit} ? format(datum.value / {unit}, '.4~r') + ' {name}' : "
        for name, unit in _UNITS.items()
    )
    + "format(datum.value, '.4~r') + ' B'"
)
_DATES = {
    **dict.fromkeys(("year", "quarter", "month"), "%b %Y"),
    **dict.fromkeys(("week", "date", "day"), "%b %d"),
    **dict.fromkeys(("hours", "minutes"), "%b %d %H:%M"),
    "seconds": "%H:%M:%S",
}
_SHOWN = {"name": "shown", "select": {"type": "point", "fields": ["curve"]}, "bind": "legend"}
# The wheel alone scrolls the page.
ZOOM: dict[str, Any] = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]"},
    "bind": "scales",
}
"""Drag to move; a double click goes back."""


def number(field: str, title: str | list[str], **more: Any) -> dict[str, Any]:
    """Return an axis of numbers, which need not begin at 0."""
    return encoding(field, "quantitative", title, **{"scale": {"zero": False}, **more})


def logarithmic(field: str, title: str) -> dict[str, Any]:
    """Return a logarithmic axis of numbers."""
    scale = {"type": "log", "nice": False, "padding": 12}
    return number(field, title, scale=scale, axis={"format": ",.4~r"})


SIZE = number(
    "size",
    "size",
    scale={"type": "log", "base": 2, "nice": False, "padding": 12},
    axis={"labelExpr": _SIZE_LABEL, "labelFlush": False, "tickCount": 8},
)
"""The axis of sizes."""


def tips(**titles: str) -> list[dict[str, Any]]:
    """Return the tooltips of fields, with their titles."""
    return [encoding(field, "nominal", title) for field, title in titles.items()]


def _text(name: str) -> str:
    return f"(isValid(datum.{name}) ? format(datum.{name}, ',.4~r') : 'unknown')"


_TEXTS = {
    "time, us": _text("time"),
    "5th to 95th percentile, us": f"{_text('low')} + ' to ' + {_text('high')}",
    "isolated, us": _text("isolated"),
    "bus bandwidth, GB/s": _text("busbw"),
    "wrong elements": "datum.wrong < 0 ? 'not checked' : datum.wrong",
}
"""The tooltips of a point: titles, and expressions of Vega."""

_CALCULATED = [{"calculate": text, "as": title} for title, text in _TEXTS.items()]
_TIPS = tips(**{title: title for title in _TEXTS})


def _columns(point: CurvePoint) -> dict[str, Any]:
    """Return a point as a row of a chart's data."""
    names = "time", "low", "high", "isolated", "busbw", "wrong"
    return {name: getattr(point, name) for name in names}


def _seen(opacity: float) -> dict[str, Any]:
    """Return the opacity of marks; those hidden by a click on another name are faint."""
    return {"condition": {"param": "shown", "value": opacity}, "value": 0.07 * opacity}


def _curves(
    x: Chart, y: Chart, names: Sequence[str], told: Sequence[Chart], view: str
) -> dict[str, Any]:
    """Return curves with marks at the points and a legend below; `view` is what answers the mouse."""
    columns = max(1, 2 * WIDTH // (7 * max(map(len, names)) + 40))
    legend = {"orient": "bottom", "columns": columns}
    # What differs, differs in color and in shape.
    scale = {"domain": list(names)}
    scheme = {"scheme": "tableau10" if len(names) <= 10 else "tableau20"}
    color = encoding("curve", "nominal", scale=scale | scheme, legend=legend)
    shape = encoding("curve", "nominal", scale=scale, legend=legend)
    line = layer("line", {"opacity": _seen(1)})
    point = {"type": "point", "filled": True, "size": 40}
    points = layer(point, {"shape": shape, "opacity": _seen(1), "tooltip": told}, name=view)
    return {"encoding": {"x": x, "y": y, "color": color}, "layer": [line, points]}


def _band(y: Chart, rows: Sequence[Mapping[str, Any]], curves: int) -> list[Chart]:
    """Return the spread of repetitions around curves, where it is known; paler where there are many."""
    opacity = _seen(0.15 * min(1.0, 6 / curves))
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "opacity": opacity}
    band = layer("area", ends, transform=[{"filter": "isValid(datum.low)"}])
    return [band] if any(each["low"] == each["low"] for each in rows) else []


def over_size(title: str, curves: Mapping[str, Sequence[CurvePoint]]) -> Chart:
    """Return time and bus bandwidth over size, with the spread of repetitions, and where curves cross.

    Raises
    ------
    ResultsError
        If there is nothing to draw.
    """
    if not curves:
        raise ResultsError("there is nothing to draw: all sizes or all times are 0")
    # Those with the most points, and of these the newest.
    shown = dict(sorted(curves.items(), key=lambda each: len(each[1]))[-MOST_CURVES:])
    rows = [
        {"curve": name, "size": point.size, **_columns(point)}
        for name, points in shown.items()
        for point in points
    ]
    names = list(shown)
    time = logarithmic("time", shown[names[0]][0].statistic)
    busbw = number("busbw", BANDWIDTH, scale={"nice": False, "padding": 8})
    tooltips = tips(curve="curve", size="size, B") + _TIPS
    left = _curves(SIZE, time, names, tooltips, "times")
    cross = {"type": "point", "shape": _CROSS, "size": 160, "strokeWidth": 2}
    red = {"color": {"value": "red"}, "opacity": _seen(1)}
    wrong = layer(cross, red, transform=[{"filter": "datum.wrong > 0"}])
    left["layer"] = [*_band(time, rows, len(shown)), *_crossings(shown), *left["layer"]]
    if any(each["wrong"] > 0 for each in rows):
        left["layer"].append(wrong)
    right = _curves(SIZE, busbw, names, tooltips, "bandwidths")
    more = len(curves) - len(shown)
    return {
        "title": title + (f" ({more} of {len(curves)} curves are not drawn)" if more else ""),
        "data": {"values": rows},
        "transform": _CALCULATED,
        "hconcat": [{"width": WIDTH, "height": 320, **each} for each in (left, right)],
        "params": [each | {"views": ["times", "bandwidths"]} for each in (_SHOWN, ZOOM)],
    }


def _crossings(curves: Mapping[str, Sequence[CurvePoint]]) -> list[Chart]:
    """Return where the fastest curve changes, with the size."""
    times = {name: {each.size: each.time for each in points} for name, points in curves.items()}
    rows = [
        {"size": each.size, "time": each.time, "name": rounded_size(each.size, 3)}
        for each in crossovers(times)
    ]
    text = {"type": "text", "align": "left", "dx": 4, "dy": 12, "fontSize": 10}
    grey = {"color": {"value": "#555555"}}
    rule = layer({"type": "rule", "strokeDash": [2, 3]}, {"y": None, **grey})
    named = layer(text, {"text": {"field": "name"}, **grey})
    return [{"data": {"values": rows}, **each} for each in (rule, named)] if rows else []


def histories(cases: Mapping[str, Sequence[Moment]]) -> Chart:
    """Return the times of cases over runs.

    Raises
    ------
    ResultsError
        If no case was measured by two runs.
    """
    if not cases:
        raise ResultsError("no case was measured by two runs or more; name more files, or a folder")
    shown = dict(list(cases.items())[:MOST_CURVES])
    most = MOST_MOMENTS // len(shown)
    rows = [
        {"curve": case, "at": each.started.isoformat(), "run": each.run, **_columns(each.point)}
        for case, moments in shown.items()
        for each in moments[-most:]
        if each.point.time > 0
    ]
    axis = {"format": _DATES, "tickCount": 8}
    started = encoding("at", "temporal", "start of the run", scale={"padding": 12}, axis=axis)
    time = logarithmic("time", next(iter(cases.values()))[0].point.statistic)
    tooltips = tips(curve="case", run="run") + _TIPS
    drawn = _curves(started, time, list(shown), tooltips, "times")
    drawn["layer"] = [*_band(time, rows, len(shown)), *drawn["layer"]]
    title = f"History of {counted(len(cases), 'case')}"
    if more := len(cases) - len(shown):
        title += f", {more} of them not drawn: name one by --case"
    if any(len(moments) > most for moments in shown.values()):
        title += f"; the last {most} runs of each"
    params = [each | {"views": ["times"]} for each in (_SHOWN, ZOOM)]
    return chart(title, rows, _WIDTH, 340, params=params, transform=_CALCULATED, **drawn)


def skews(title: str, skew: np.ndarray) -> Chart:
    """Return how late each rank starts and ends, with 5th and 95th percentile, from what `skew` returns."""
    # The marks of a rank lie beside each other, since both are often at one height.
    rows = [
        {"rank": rank, "at": rank + shift, "what": what, "late": late, "low": low, "high": high}
        for what, shift, times in zip(("starts", "ends"), (-0.12, 0.12), skew, strict=True)
        for rank, (late, low, high) in enumerate(times.tolist())
    ]
    ranks = skew.shape[1]
    ticks = list(range(0, ranks, -(-ranks // 32)))
    late = number("late", "us after the first rank", scale={"nice": False, "padding": 8})
    tooltips = tips(rank="rank", what="what")
    tooltips += [number(name, f"{name}, us", format=",.3~f") for name in ("late", "low", "high")]
    across = {"zero": False, "nice": False, "padding": 12}
    axis = {"values": ticks, "format": "d", "grid": False}
    axes = {
        "x": number("at", "rank", scale=across, axis=axis),
        "color": _colored("what", {"starts": "#1f77b4", "ends": "#d62728"}),
    }
    rules = layer("rule", {"y": {**late, "field": "low"}, "y2": {"field": "high"}})
    point = {"type": "point", "filled": True, "size": 45, "opacity": 1}
    points = layer(point, {"y": late, "tooltip": tooltips}, params=[ZOOM])
    return chart(title, rows, _WIDTH, 300, encoding=axes, layer=[rules, points])


MOST_CELLS = 128
"""The most rows of a map. With more ranks, a cell is the slowest pair of a block."""

_PIXELS = 420


def pairs_of_ranks(measured: MeasuredPairs, verdict: PairDiagnosis) -> Chart:
    """Return each pair's figure as a part of the level of its kind."""
    latency, bandwidth = matrices(measured)
    speed_part, bandwidth_part = parts(measured, verdict)
    findings = [f"{each.kind} {each.name}" for each in verdict.findings]
    quiet = "undecided: busy" if verdict.undecided else "nothing is slow"
    said = f"slow: {few(findings, 3)}" if findings else quiet
    return {
        "title": {
            "text": f"{len(measured.nodes)} ranks on {counted(len(set(measured.nodes)), 'node')}, "
            f"{len(measured.links)} of {measured.pairs} pairs: {said}",
            "anchor": "middle",
        },
        "hconcat": [
            _map(measured, "latency, us", latency * 1e6, speed_part, np.fmax),
            _map(measured, "bandwidth, GB/s", bandwidth / 1e9, bandwidth_part, np.fmin),
        ],
    }


def _map(
    measured: MeasuredPairs, name: str, values: np.ndarray, part: np.ndarray, worse: np.ufunc
) -> Chart:
    ranks = len(measured.nodes)
    edges = np.arange(0, ranks, -(-ranks // MOST_CELLS))
    cells = len(edges)
    blocks = np.split(np.arange(ranks), edges[1:])

    def worst(matrix: np.ndarray, kind: np.ufunc) -> list[float]:
        rows = kind.reduceat(kind.reduceat(matrix, edges, axis=0), edges, axis=1)
        return [float(f"{value:.4g}") for value in rows.ravel()]

    names = [ranges(block.tolist()) for block in blocks]
    record = {
        "value": worst(values, worse),
        "part": worst(part * 100, np.fmin),
        "names": names,
        "hosts": [
            few(dict.fromkeys(measured.hosts[rank] for rank in block), 1) for block in blocks
        ],
    }
    pixels = max(1, _PIXELS // cells)
    axis = {"labelAngle": 0, "labelOverlap": "parity", "ticks": False}
    axes = {
        axis_name: encoding(field, "ordinal", f"{field} rank", scale={"domain": names}, axis=axis)
        for axis_name, field in (("x", "to"), ("y", "from"))
    }
    tooltips = tips(**{"from": "from rank", "to": "to rank", "of": "from host", "at": "to host"})
    tooltips += [number("value", name), number("part", "% of the expected level", format=".0f")]
    scale = {"scheme": "redyellowblue", "domain": [0, 120], "clamp": True}
    color = number("part", ["% of what", "it should be"], scale=scale)
    looked_up = {"from": "names[datum.row]", "to": "names[datum.column]"}
    looked_up |= {"of": "hosts[datum.row]", "at": "hosts[datum.column]"}
    cell = [
        {"flatten": ["value", "part"]},
        {"window": [{"op": "row_number", "as": "number"}]},
        {"calculate": f"floor((datum.number - 1) / {cells})", "as": "row"},
        {"calculate": f"(datum.number - 1) % {cells}", "as": "column"},
        *({"calculate": f"datum.{text}", "as": field} for field, text in looked_up.items()),
    ]
    layers = [layer("rect", {**axes, "color": color, "tooltip": tooltips}, transform=cell)]
    nodes = [measured.nodes[edge] for edge in edges.tolist()]
    borders = [
        {"to": names[at], "from": names[at]} for at in range(1, cells) if nodes[at] != nodes[at - 1]
    ]
    if len(borders) <= 32:
        rule = {"type": "rule", "color": "black", "opacity": 0.6}
        layers += [
            layer(rule, {axis_name: {**each, "bandPosition": 0}}, data={"values": borders})
            for axis_name, each in axes.items()
        ]
    size = pixels * cells
    return chart(name, [record], size, size, view={"fill": "#dddddd"}, layer=layers)


MOST_RANKS = 64
"""The most ranks of a chart. If there are more, this number is drawn, evenly spread."""

MOST_BARS = 5_000
"""The most bars of a timeline, so that a page stays small. If a step has many calls, fewer ranks are drawn."""

COLORS = dict(zip(PARTS, ("#9fb8d1", "#2ca02c", "#d62728", "#ff7f0e", "#9467bd"), strict=True))
"""The colors of the parts of a step."""


def _ranks(number: int, most: int = MOST_RANKS) -> list[int]:
    return [*map(int, np.linspace(0, number - 1, max(1, min(number, most))))]


def _by_rank(
    title: str, rows: Sequence[Any], ranks: Sequence[Any], mark: str, axes: Chart, **more: Any
) -> Chart:
    """Return a chart with a row of marks for each of `ranks`."""
    domain = {"axis": {"labelOverlap": "parity", "ticks": False}, "scale": {"domain": ranks}}
    axes = {**axes, "y": encoding("rank", "ordinal", "rank", **domain)}
    return chart(title, rows, _WIDTH, {"step": 22 - len(ranks) // 6}, **layer(mark, axes, **more))


def _colored(field: str, colors: Mapping[str, str]) -> dict[str, Any]:
    """Return the colors of a field's values, with a legend below."""
    scale = {"domain": list(colors), "range": list(colors.values())}
    return encoding(field, "nominal", scale=scale, legend={"orient": "bottom"})


def shares_chart(shares: StepShares) -> Chart:
    """Return the five numbers of a typical step, of each rank and as the mean of all."""
    of_ranks = {str(rank): shares.typical[rank] for rank in _ranks(len(shares.typical))}
    each = {"mean": shares.mean, **of_ranks}
    rows = [
        {"rank": rank, "part": PARTS[at], "order": at, "ms": ns / 1e6}
        | {"percent": 100 * ns / max(1, parts.sum())}
        for rank, parts in each.items()
        for at, ns in enumerate(parts.tolist())
    ]
    axes = {
        "x": number("ms", "ms of a step", scale={}, stack="zero"),
        "color": _colored("part", COLORS),
        "order": {"field": "order"},
        "tooltip": [*tips(rank="rank", part="part"), number("ms", "ms"), number("percent", "%")],
    }
    title = f"Where the {shares.mean.sum() / 1e6:.4g} ms of a step go"
    return _by_rank(title, rows, list(each), "bar", axes)


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
    scale = {"zero": False, "nice": False}
    under_way = {"test": f"datum.part === '{PARTS[HIDDEN]}'", "value": 5}
    axes = {
        "x": number("begin", "ms since the first rank began the step", scale=scale),
        "x2": {"field": "end"},
        "color": _colored("part", dict([*COLORS.items()][:4])),
        "size": {"condition": under_way, "value": 14},
        "tooltip": [*tips(rank="rank", part="part", call="call"), number("ns", "ns", format=",d")],
    }
    title = f"Step {step + 1} of {len(steps)}, of median duration"
    across = {**ZOOM, "select": {**ZOOM["select"], "encodings": ["x"]}}
    return _by_rank(title, rows, ranks, "bar", axes, params=[across])


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
    axes = {
        "x": number("since", "s since the first call", scale={"nice": False}),
        "x2": {"field": "until"},
        "color": number("ms", "ms", scale={"scheme": "orangered", "type": "sqrt"}),
        "tooltip": [
            *tips(rank="rank"),
            number("since", "s"),
            number("ms", "ms that others waited"),
        ],
    }
    return _by_rank("How long each rank kept others waiting", rows, ranks, "rect", axes)


MOST_POINTS = 500
"""The most points of a line. If there are more steps, medians are drawn."""

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
