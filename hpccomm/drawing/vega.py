"""Charts: specifications of Vega-Lite, turned into SVG, or into parts of an HTML page.

`hpccomm.charts` and the verbs that plot draw by it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpccomm.drawing.xml import xml_text
from hpccomm.errors import ConfigurationError
from hpccomm.extras import install_command

STYLE = {
    "aria": False,  # a description of each mark makes a document twice as long
    "background": "white",
    "axis": {
        "gridColor": "#e8e8e8",
        "labelOverlap": "greedy",
        "labelSeparation": 8,
        "titleFontWeight": "normal",
    },
    "legend": {"labelLimit": 0, "symbolLimit": 0, "symbolOpacity": 1},
    "title": {"anchor": "start", "fontWeight": "normal", "fontSize": 14},
}
"""Of all charts."""

Chart = Mapping[str, Any]
"""A specification of Vega-Lite, with its data."""


def library() -> Any:
    """Return the library that draws charts, and that turns SVG into PNG.

    Raises
    ------
    ConfigurationError
        If it is missing.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigurationError(
            f"pictures are drawn by vl-convert, which cannot be loaded ({error}); "
            f"install it: {install_command('plot')}"
        ) from error
    return vl_convert


def encoding(field: str, kind: str, title: Any = None, **more: Any) -> dict[str, Any]:
    """Return how a field of the data is shown: ``quantitative``, ``nominal``, ``ordinal`` or ``temporal``."""
    return {"field": field, "type": kind, "title": title, **more}


def chart(title: str, rows: Sequence[Any], width: int, height: Any, **more: Any) -> dict[str, Any]:
    """Return a chart of rows, with its pixels."""
    return {"title": title, "data": {"values": rows}, "width": width, "height": height, **more}


def layer(mark: str | Chart, encodings: Chart | None = None, **more: Any) -> dict[str, Any]:
    """Return marks of a chart."""
    return {"mark": mark, "encoding": encodings or {}, **more}


def as_json(chart: Chart) -> str:
    """Return a chart as JSON that may stand in HTML: numbers with six digits, null for NaN.

    The library that draws ends the process at a character that XML does not allow. The result has
    none.
    """
    text = json.dumps(_fit(chart), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _fit(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_fit(name): _fit(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_fit, value)]
    if isinstance(value, str):
        return xml_text(value)
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def svg(chart: Chart) -> str:
    """Return a chart as a document of SVG; the same chart gives the same document.

    Raises
    ------
    ConfigurationError
        If the library is missing.
    """
    return str(library().vegalite_to_svg(as_json({"config": STYLE, **chart})))
