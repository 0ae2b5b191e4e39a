"""A run as a picture: the speed of each contender over the library's own call, by size."""

from collections.abc import Sequence

from contest.contenders import LIBRARY, Contender
from contest.results import Line
from contest.tables import TIMES, size
from hpccomm.tools.drawing import Chart, chart, encoding

SHOWN = range(-4, 6)
"""Powers of two of the ratios that are shown: what is far slower or faster leaves the picture."""


def draw(tables: Sequence[Sequence[Line]], contenders: Sequence[Contender], title: str) -> Chart:
    """Return a chart with a panel for each collective."""
    scale = {"domain": [one.name for one in contenders]}
    contender = encoding("contender", "nominal", scale=scale, legend={"orient": "bottom"})
    return {
        "title": title,
        "columns": 2,
        "concat": [_panel(lines, contenders, contender) for lines in tables],
    }


def _panel(lines: Sequence[Line], contenders: Sequence[Contender], contender: Chart) -> Chart:
    rows = [
        {
            "size": size(line.nbytes),
            "ratio": line.faster(line.results[one.name]),
            "contender": one.name,
            "ours": one.ours,
        }
        for one in contenders
        for line in lines
        if one.name in line.results
    ]
    powers = [2.0**power for power in SHOWN]
    ratios = {"type": "log", "base": 2, "domain": [powers[0], powers[-1]], "nice": False}
    spelled = f"datum.value < 1 ? '1/' + 1 / datum.value : datum.value + '{TIMES}'"
    axis = {"values": powers, "labelExpr": spelled}
    sizes = {"domain": [size(line.nbytes) for line in lines]}
    dash = {"condition": {"test": "datum.ours", "value": [1, 0]}, "value": [4, 3]}
    return chart(
        *(lines[0].collective, rows, 400, 200),
        encoding={
            "x": encoding("size", "ordinal", scale=sizes, axis={"labelAngle": 0}),
            "y": encoding(
                "ratio", "quantitative", f"speed over {LIBRARY}", scale=ratios, axis=axis
            ),
            "color": contender,
        },
        layer=[
            {"mark": {"type": "line", "clip": True}, "encoding": {"strokeDash": dash}},
            {
                "transform": [{"filter": "datum.ours"}],
                "mark": {"type": "point", "filled": True, "clip": True},
            },
        ],
    )
