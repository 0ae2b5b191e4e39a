"""The report: one page of HTML with everything in it, by Bokeh. It needs no network."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpccomm.charts import content, curves
from hpccomm.charts.curves import Curve
from hpccomm.comparison.verdict import Comparison
from hpccomm.errors import ConfigurationError
from hpccomm.extras import install_command
from hpccomm.results import pairs
from hpccomm.results.run import Run
from hpccomm.results.table import TIME_FORMAT
from hpccomm.units import counted, few

MOST_CURVES, MOST_CASES, MOST_ROWS, MOST_RUNS = 20, 20, 5_000, 20
"""What a chart, the history, the table and the list of runs show at most; the page says what it leaves out."""

_SIZE = """
const units = [[30, 'GiB'], [20, 'MiB'], [10, 'KiB']];
for (const [bits, unit] of units) { if (tick >= 2 ** bits) return (tick / 2 ** bits).toPrecision(3) * 1 + ' ' + unit; }
return tick + ' B';
"""

_FILTER = """
const words = text.value.toLowerCase().split(' ').filter(word => word.length);
const chosen = choice.value;
const kept = [];
const all = whole.data;
for (let row = 0; row < all.key.length; row++) {
  const fits = words.every(word => all.key[row].includes(word));
  if (fits && (chosen === 'all' || all.collective[row] === chosen)) kept.push(row);
}
const data = {};
for (const name in all) data[name] = kept.map(row => all[name][row]);
shown.data = data;
count.text = kept.length + ' of ' + all.key.length + ' rows';
"""


class Chart(NamedTuple):
    """Something that Bokeh draws.

    Attributes
    ----------
    title, note : str
        What stands above it.
    root : object
        Bokeh's model.
    """

    title: str
    note: str
    root: Any


def build(
    runs: Sequence[Run], damage: Sequence[str] = (), compared: Comparison | None = None
) -> str:
    """Return the page.

    Parameters
    ----------
    runs : sequence of Run
        What it shows, the oldest first.
    damage : sequence of str
        What of their files is damaged.
    compared : Comparison, optional
        With a base.

    Raises
    ------
    ConfigurationError
        If Bokeh is missing.
    """
    try:
        from bokeh.embed import components
        from bokeh.resources import Resources
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigurationError(
            f"reports are drawn by Bokeh, which cannot be loaded ({error}); install it: "
            f"{install_command('report')}"
        ) from error
    charts = [*_over_size(runs), *_history(runs), *_skew(runs), *_pairs(runs)]
    if any(run.rows for run in runs):
        charts.append(_table(runs))
    # Escaping is on: names of hosts and commands come from the file.
    template = Environment(autoescape=True).from_string(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    )
    files = list(dict.fromkeys(run.path.name for run in runs))
    now = datetime.now().astimezone().strftime(TIME_FORMAT + " %z")
    title = f"hpccomm: {few(files, 3)}"
    resources = Resources(mode="inline", components=["bokeh", "bokeh-widgets", "bokeh-tables"])
    script, places = components([chart.root for chart in charts]) if charts else ("", ())
    return template.render(
        title=title,
        subtitle=f"{counted(len(runs), 'run')}; made {now}",
        resources=Markup(resources.render()),
        script=Markup(script),
        verdicts=content.statements(runs, damage, compared),
        charts=[
            {"title": chart.title, "note": chart.note, "place": Markup(place)}
            for chart, place in zip(charts, places, strict=True)
        ],
        runs=[content.facts(run) for run in runs[-MOST_RUNS:]],
    )


def _figure(**words: Any) -> Any:
    from bokeh.plotting import figure

    return figure(
        height=380,
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools="pan,wheel_zoom,box_zoom,reset,save",
        **words,
    )


def _over_size(runs: Sequence[Run]) -> list[Chart]:
    """Return time and bandwidth of each collective."""
    charts = []
    for collective in dict.fromkeys(row.collective for run in runs for row in run.rows):
        chosen = []
        for run in runs:
            kept = [number for number, row in enumerate(run.rows) if row.collective == collective]
            rows = tuple(run.rows[number] for number in kept)
            if rows:
                chosen.append(
                    replace(run, rows=rows, timings=tuple(run.timings[number] for number in kept))
                )
        drawn = [each for each in curves.curves(chosen) if any(point.size for point in each.points)]
        if drawn:
            note = "Click a name to hide its curve; bands are the 5th to 95th percentile of the repetitions."
            drawn.sort(key=lambda each: -len(each.points))  # what says most comes first
            if len(drawn) > MOST_CURVES:
                note += f" {len(drawn) - MOST_CURVES} of {len(drawn)} curves are not drawn."
            charts.append(Chart(collective, note, _size_figures(drawn[:MOST_CURVES])))
    return charts


def _size_figures(drawn: Sequence[Curve]) -> Any:
    from bokeh.layouts import column
    from bokeh.models import (
        ColumnDataSource,
        CustomJSTickFormatter,
        HoverTool,
        Legend,
        LegendItem,
        LogTicker,
        Span,
    )
    from bokeh.palettes import Category20_20

    left = _figure(x_axis_type="log", y_axis_type="log", y_axis_label=drawn[0].points[0].statistic)
    left.height = max(left.height, 22 * len(drawn) + 60)  # the legend stands beside it
    right = _figure(x_axis_type="log", y_axis_label=curves.BANDWIDTH, x_range=left.x_range)
    items = []
    dots = []
    for number, curve in enumerate(drawn):
        points = [point for point in curve.points if point.size > 0]
        columns = np.array([point[:6] for point in points], float).T
        names = ("size", "time", "low", "high", "busbw", "isolated")
        source = ColumnDataSource(
            dict(zip(names, columns, strict=True)) | {"label": [curve.label] * len(points)}
        )
        colour = Category20_20[number % 20]
        renderers = [
            left.varea("size", "low", "high", source=source, color=colour, alpha=0.12),
            left.line("size", "time", source=source, color=colour, line_width=1.8),
            right.line("size", "busbw", source=source, color=colour, line_width=1.8),
            left.scatter("size", "time", source=source, color=colour, size=6),
            right.scatter("size", "busbw", source=source, color=colour, size=6),
        ]
        dots += renderers[-2:]
        items.append(LegendItem(label=curve.label, renderers=renderers))
    tips = [
        ("", "@label"),
        ("size", "@size{0,0} B"),
        ("time", "@time{0,0.00} us"),
        ("spread", "@low{0,0.00} to @high{0,0.00} us"),
        ("isolated", "@isolated{0,0.00} us"),
        ("bus bandwidth", "@busbw{0,0.000} GB/s"),
    ]
    for each in (left, right):
        each.add_tools(
            HoverTool(tooltips=tips, renderers=[dot for dot in dots if dot in each.renderers])
        )
        each.xaxis.formatter = CustomJSTickFormatter(code=_SIZE)
        each.xaxis.ticker = LogTicker(base=2, num_minor_ticks=1)
        each.xaxis.axis_label = "size"
    for crossing in curves.crossings(drawn) if len(drawn) > 1 else ():
        left.add_layout(
            Span(location=crossing.size, dimension="height", line_dash="dotted", line_color="gray")
        )
    left.add_layout(
        Legend(
            items=items,
            click_policy="hide",
            label_text_font_size="8pt",
            border_line_color=None,
        ),
        "right",
    )
    return column(left, right, sizing_mode="stretch_width")


def _history(runs: Sequence[Run]) -> list[Chart]:
    """Return what cases took over time."""
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.palettes import Category20_20

    if not (found := curves.history(runs)):
        return []
    statistic = next(iter(found.values()))[0].point.statistic
    shown = _figure(x_axis_type="datetime", y_axis_type="log", y_axis_label=statistic)
    dots = []
    for number, (case, moments) in enumerate(list(found.items())[:MOST_CASES]):
        source = ColumnDataSource(
            {
                "at": [moment.started for moment in moments],
                "time": [moment.point.time for moment in moments],
                "low": [moment.point.low for moment in moments],
                "high": [moment.point.high for moment in moments],
                "run": [moment.run for moment in moments],
                "case": [case] * len(moments),
            }
        )
        colour = Category20_20[number % 20]
        shown.line("at", "time", source=source, color=colour, line_width=1.5, legend_label=case)
        dots.append(
            shown.scatter("at", "time", source=source, color=colour, size=6, legend_label=case)
        )
    tips = [
        ("", "@case"),
        ("run", "@run"),
        ("time", "@time{0,0.00} us"),
        ("spread", "@low{0,0.00} to @high{0,0.00} us"),
    ]
    shown.add_tools(HoverTool(tooltips=tips, renderers=dots))
    shown.legend.click_policy = "hide"
    shown.legend.label_text_font_size = "8pt"
    shown.legend.background_fill_alpha = 0.6
    note = f"{len(found)} cases that several runs have measured."
    if len(found) > MOST_CASES:
        note += f" {len(found) - MOST_CASES} of them are not drawn."
    return [Chart("History", note, shown)]


def _skew(runs: Sequence[Run]) -> list[Chart]:
    """Return how late ranks start and end, of the first row of each run that was measured in isolation."""
    from bokeh.models import ColumnDataSource, HoverTool, Whisker

    charts = []
    for run in runs[-3:]:
        number = next(
            (
                number
                for number, timing in enumerate(run.timings)
                if timing is not None and timing.isolated == timing.isolated
            ),
            None,
        )
        if number is None:
            continue
        row, found = run.rows[number], curves.skew(run.isolated(number))
        shown = _figure(x_axis_label="rank", y_axis_label="us after the first rank")
        for late, name, colour in (
            (found.starts, "starts", "#1f77b4"),
            (found.ends, "ends", "#d62728"),
        ):
            source = ColumnDataSource(
                {
                    "rank": np.arange(len(late)),
                    "middle": late[:, 0],
                    "low": late[:, 1],
                    "high": late[:, 2],
                }
            )
            dots = shown.scatter(
                "rank", "middle", source=source, color=colour, size=7, legend_label=name
            )
            shown.add_layout(
                Whisker(base="rank", lower="low", upper="high", source=source, line_color=colour)
            )
            tips = [("rank", "@rank"), (name, "@middle{0.00} us (@low{0.00} to @high{0.00})")]
            shown.add_tools(HoverTool(tooltips=tips, renderers=[dots]))
        place = "in place" if row.in_place else "out of place"
        title = f"Skew of ranks: {run.title}"
        note = f"{row.collective} {row.dtype} {row.bytes} B {place}; medians, and 5th to 95th percentile."
        charts.append(Chart(title, note, shown))
    return charts


def _pairs(runs: Sequence[Run]) -> list[Chart]:
    """Return heat maps of pairs of ranks."""
    from bokeh.layouts import row as side_by_side
    from bokeh.models import ColorBar, ColumnDataSource, HoverTool, LinearColorMapper
    from bokeh.palettes import RdYlBu11

    charts = []
    for run in runs:
        if pairs.GROUP not in run.groups:
            continue
        measured, thresholds = pairs.read(run)
        verdict = pairs.blame(measured, thresholds)
        ranks = len(measured.nodes)
        parts = pairs.parts(measured, verdict)
        maps = []
        for matrix, part, name in (
            (pairs.matrices(measured)[0] * 1e6, parts[0], "latency, us"),
            (pairs.matrices(measured)[1] / 1e9, parts[1], "bandwidth from line to column, GB/s"),
        ):
            a, b = np.nonzero(np.isfinite(matrix))
            hosts = [
                f"{measured.hosts[i]} and {measured.hosts[j]}" for i, j in zip(a, b, strict=True)
            ]
            source = ColumnDataSource(
                {"a": a, "b": b, "value": matrix[a, b], "part": part[a, b] * 100, "hosts": hosts}
            )
            colours = LinearColorMapper(palette=RdYlBu11[::-1], low=0, high=120)
            shown = _figure(
                title=name,
                x_axis_label="rank",
                y_axis_label="rank",
                x_range=(-0.5, ranks - 0.5),
                y_range=(ranks - 0.5, -0.5),
            )
            cells = shown.rect(
                *("b", "a", 1, 1),
                source=source,
                line_color=None,
                fill_color={"field": "part", "transform": colours},
            )
            shown.add_layout(ColorBar(color_mapper=colours, width=10, title="%"), "right")
            tips = [
                ("ranks", "@a and @b"),
                ("hosts", "@hosts"),
                (name, "@value{0,0.000}"),
                ("of what it should be", "@part{0} %"),
            ]
            shown.add_tools(HoverTool(tooltips=tips, renderers=[cells]))
            maps.append(shown)
        charts.append(
            Chart(
                f"Pairs of ranks: {run.title}",
                f"{len(measured.links)} of {measured.pairs} pairs, of which {len(verdict.slow)} are slow.",
                side_by_side(*maps, sizing_mode="stretch_width"),
            )
        )
    return charts


def _table(runs: Sequence[Run]) -> Chart:
    """Return all rows, which can be sorted and filtered."""
    from bokeh.layouts import column, row
    from bokeh.models import (
        ColumnDataSource,
        CustomJS,
        DataTable,
        Div,
        NumberFormatter,
        Select,
        TableColumn,
        TextInput,
    )

    rows = [
        (run, each, timing)
        for run in runs
        for each, timing in zip(run.rows, run.timings, strict=True)
    ]
    total, rows = len(rows), rows[-MOST_ROWS:]
    texts: dict[str, list[Any]] = {
        "run": [run.title for run, _, _ in rows],
        **{
            name: [getattr(each, name) for _, each, _ in rows]
            for name in ("collective", "backend", "algorithm", "dtype", "op")
        },
        "place": ["in place" if each.in_place else "out of place" for _, each, _ in rows],
    }
    numbers: dict[str, list[Any]] = {
        "size": [each.bytes for _, each, _ in rows],
        "time": [each.time for _, each, _ in rows],
        "median": [timing.median if timing else float("nan") for _, _, timing in rows],
        "isolated": [timing.isolated if timing else float("nan") for _, _, timing in rows],
        "algbw": [each.algbw for _, each, _ in rows],
        "busbw": [each.busbw for _, each, _ in rows],
        "wrong": [each.wrong if each.wrong >= 0 else float("nan") for _, each, _ in rows],
    }
    data: dict[str, Any] = {
        **texts,
        **{name: np.array(values, float) for name, values in numbers.items()},
    }
    data["key"] = [
        " ".join(map(str, cells)).lower()
        for cells in zip(*texts.values(), numbers["size"], strict=True)
    ]
    whole, shown = ColumnDataSource(data), ColumnDataSource(dict(data))
    titles = {
        "size": "size, B",
        "time": "time, us",
        "median": "median, us",
        "isolated": "isolated, us",
        "algbw": "algbw, GB/s",
        "busbw": "busbw, GB/s",
    }
    whole_numbers = NumberFormatter(format="0,0", text_align="right", nan_format="")
    fractions = NumberFormatter(format="0,0.00", text_align="right", nan_format="")
    columns = [
        TableColumn(field=name, title=name, width=170 if name == "run" else 90) for name in texts
    ]
    columns += [
        TableColumn(
            field=name,
            title=titles.get(name, name),
            width=80,
            formatter=whole_numbers if name in ("size", "wrong") else fractions,
        )
        for name in numbers
    ]
    table = DataTable(
        source=shown,
        columns=columns,
        height=420,
        sizing_mode="stretch_width",
        index_position=None,
        reorderable=False,
    )
    text = TextInput(title="only rows with", placeholder="words, such as ring 1048576")
    choice = Select(
        title="collective", value="all", options=["all", *dict.fromkeys(data["collective"])]
    )
    count = Div(text=f"{len(rows)} of {len(rows)} rows")
    action = CustomJS(
        args={"text": text, "choice": choice, "whole": whole, "shown": shown, "count": count},
        code=_FILTER,
    )
    text.js_on_change(
        "value_input", CustomJS(args={"text": text}, code="text.value = text.value_input")
    )
    text.js_on_change("value", action)
    choice.js_on_change("value", action)
    note = "Click a heading to sort."
    if total > len(rows):
        note += f" The last {len(rows)} of {total} rows."
    return Chart(
        "All rows",
        note,
        column(row(text, choice), count, table, sizing_mode="stretch_width"),
    )
