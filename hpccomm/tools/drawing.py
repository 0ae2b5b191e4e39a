"""Pictures: drawings with lines, boxes and text, as SVG; charts, by Vega-Lite; and their files, as SVG or PNG.

Lengths of drawings are inches from the upper left corner; type sizes are points. They need no library. Charts are
specifications of Vega-Lite, turned into SVG, or into parts of an HTML page; its library is loaded on the first chart.

The verbs with ``--output`` draw by it, and the page of a report.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.results.files import check_output, no_folder
from hpccomm.spelling import install_command
from hpccomm.units import xml_text

Color = str | tuple[float, float, float]
"""A color of SVG; or red, green and blue, from 0 to 1."""

Place = tuple[float, float]
"""Inches to the right, and downwards."""

_POINTS = 72
_LINE = 1.25
"""From one line of text to the next, as a multiple of its size."""

_HEAD = 0.09, 0.032
"""Length and half width of an arrow's head."""


class Canvas:
    """A picture in the making.

    Parameters
    ----------
    width, height : float
        Inches.
    """

    def __init__(self, width: float, height: float) -> None:
        self._size = width, height
        self._elements: list[tuple[int, str]] = []

    def svg(self) -> str:
        """Return the document; the same picture gives the same document."""
        width, height = map(_points, self._size)
        elements = "\n".join(text for _, text in sorted(self._elements, key=lambda each: each[0]))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt" '
            f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n{elements}\n</svg>\n'
        )

    def text(
        self,
        at: Place,
        text: str,
        size: float,
        color: Color = "black",
        *,
        bold: bool = False,
        centred: bool = False,
    ) -> None:
        """Write lines of text, the middle of their height at a place: above all else."""
        style = f'font-size="{size}" fill="{_hex(color)}"'
        style += ' font-weight="bold"' * bold + ' text-anchor="middle"' * centred
        lines = text.split("\n")
        for number, line in enumerate(lines):
            # Not all programs know how to centre type on a height.
            shift = (0.36 + _LINE * (number - (len(lines) - 1) / 2)) * size / _POINTS
            x, y = _points(at[0]), _points(at[1] + shift)
            self._add(9, f'<text x="{x}" y="{y}" {style}>{escape(line)}</text>')

    def line(
        self,
        places: Sequence[Place],
        color: Color,
        width: float,
        *,
        level: int = 3,
        dashes: str = "none",
        arrow: bool = False,
        bow: float = 0.0,
        name: str = "",
    ) -> None:
        """Draw a line.

        Parameters
        ----------
        places : sequence of (float, float)
            The points of the line.
        width : float
            Points.
        level : int
            It hides what has a lower one.
        dashes : str
            Points that are drawn and left out in turn.
        arrow : bool
            Whether its end has a head.
        bow : float
            How far a line of two points bends to the right, as a part of its length.
        name : str
            The id of the element.
        """
        (x0, y0), bend, (x1, y1) = places[0], places[-2], places[-1]
        if bow:
            bend = (x0 + x1) / 2 - bow * (y1 - y0), (y0 + y1) / 2 + bow * (x1 - x0)
        shaft, head = [*places], ""
        if arrow:
            (long, half), angle = _HEAD, math.atan2(y1 - bend[1], x1 - bend[0])
            back = x1 - long * math.cos(angle), y1 - long * math.sin(angle)
            aside = half * math.sin(angle), -half * math.cos(angle)
            sides = [(back[0] + sign * aside[0], back[1] + sign * aside[1]) for sign in (1, -1)]
            head = f'<path d="{_path([(x1, y1), *sides])} Z" fill="{_hex(color)}"/>'
            shaft[-1] = back
        path = f"M {_at(shaft[0])} Q {_at(bend)} {_at(shaft[-1])}" if bow else _path(shaft)
        style = f'fill="none" stroke="{_hex(color)}" stroke-width="{width:g}"'
        style += f' stroke-dasharray="{dashes}"' if dashes != "none" else ""
        named = f' id="{escape(name)}"' if name else ""
        self._add(level, f'<g{named}><path d="{path}" {style}/>{head}</g>')

    def box(
        self,
        corner: Place,
        size: Place,
        fill: Color,
        edge: Color = "none",
        *,
        width: float = 1.0,
        level: int = 2,
        rounded: float = 0.0,
    ) -> None:
        """Draw a box from its upper left corner, with rounded corners of a radius in inches."""
        (x, y), (wide, high), radius = map(_points, corner), map(_points, size), _points(rounded)
        style = f'rx="{radius}" fill="{_hex(fill)}" stroke="{_hex(edge)}" stroke-width="{width:g}"'
        self._add(level, f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" {style}/>')

    def circle(self, at: Place, radius: float, fill: Color, edge: Color = "none") -> None:
        """Draw a circle."""
        (x, y), style = map(_points, at), f'fill="{_hex(fill)}" stroke="{_hex(edge)}"'
        self._add(6, f'<circle cx="{x}" cy="{y}" r="{_points(radius)}" {style}/>')

    def _add(self, level: int, text: str) -> None:
        self._elements.append((level, xml_text(text)))


def _points(inches: float) -> str:
    return f"{round(inches * _POINTS, 2):g}"


def _at(place: Place) -> str:
    return f"{_points(place[0])} {_points(place[1])}"


def _path(places: Sequence[Place]) -> str:
    return "M " + " L ".join(map(_at, places))


def _hex(color: Color) -> str:
    if isinstance(color, str):
        return color
    return "#" + "".join(f"{round(255 * part):02x}" for part in color)


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
"""The style of all charts."""

Chart = Mapping[str, Any]
"""A specification of Vega-Lite, with its data."""


def library(extra: str = "plot") -> Any:
    """Return the library that draws charts, and that turns SVG into PNG; it comes with `extra`.

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
            f"install it: {install_command(extra)}"
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


FORMATS = ("svg", "png")

PIXELS = 2
"""Pixels of a PNG for each pixel of the SVG."""


def file_format(path: Path) -> str:
    """Return the format that a file's name ends in.

    Raises
    ------
    UsageError
        If it is not one of `FORMATS`.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise UsageError(f"{path} does not say what to draw; let its name end in .svg or .png")
    return ending


def check_place(path: Path) -> None:
    """Raise what `save` would raise for this path, as far as that is known before the work.

    Raises
    ------
    UsageError
        If the name ends in neither .svg nor .png, its folder does not exist, or the file cannot be
        written there.
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    if file_format(path) == "png":
        library()
    if why := no_folder(path):
        raise UsageError(why)
    try:
        check_output(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another path") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"cannot write {path}: permission denied; choose another path for the picture"
        )


def rendered(svg: str, ending: str) -> bytes:
    """Return a picture as the bytes of a file.

    Parameters
    ----------
    svg : str
        The picture, a document of SVG.
    ending : str
        One of `FORMATS`.

    Raises
    ------
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    if ending == "svg":
        return svg.encode()
    return bytes(library().svg_to_png(svg, scale=PIXELS))


def save(svg: str, path: Path) -> None:
    """Write a picture, a document of SVG, over an older one of that name.

    Raises
    ------
    UsageError
        If the name ends in neither .svg nor .png, or it cannot be written there.
    ConfigurationError
        If it is to be a PNG, and the library is missing.
    """
    content = rendered(svg, file_format(path))
    try:
        check_output(path)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}; choose another path for the picture"
        ) from error
