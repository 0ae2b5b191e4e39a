"""The hardware of a node, and NCCL's graphs, as pictures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpccomm.hardware.nccl_files import NcclGraph
from hpccomm.hardware.node import Component, NodeHardware, NumaDomain
from hpccomm.hardware.words import graph_lines, is_closed, known, numbered, summary
from hpccomm.schedules.draw.drawing import new_figure
from hpccomm.units import ranges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"gpu": "#b7d7a8", "nic": "#9fc5e8", "bridge": "#eeeeee", "home": "#fbf6ea"}
WIDTH, HEIGHT, GAP, STEP, WIDEST = 1.25, 0.62, 0.25, 0.45, 17.0
"""Inches: of a component's box, between two, between bridges, and of a row of NUMA nodes."""

LINK = "#38761d"
"""Colour of NVLink."""


def draw(node: NodeHardware) -> "Figure":
    """Return a figure of a node: a frame for each NUMA node, the bridges and components in it, and NVLink.

    Of the bridges, those are drawn that lead to several components.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    """
    homes = [(_title(each), node.inside(each.number)) for each in node.domains]
    if unknown := node.inside(None):
        homes.append(("NUMA node unknown", unknown))
    rows: list[list[tuple[str, list[Component]]]] = [[]]
    for home in homes:
        if rows[-1] and sum(_width(parts) for _, parts in [*rows[-1], home]) > WIDEST:
            rows.append([])
        rows[-1].append(home)
    heights = [max(_height(parts) for _, parts in row) for row in rows]
    width = max(6.0, *(sum(_width(parts) for _, parts in row) for row in rows)) + 0.3
    height = sum(heights) + 0.2 * len(rows) + 0.6
    figure, axes = _blank(width, height)
    axes.text(0.2, height - 0.3, f"{node.name}: {summary(node)}", fontsize=10, va="center")
    places: dict[str, tuple[float, float]] = {}
    top = height - 0.55
    for row, tall in zip(rows, heights, strict=True):
        left = 0.2
        for title, parts in row:
            wide = _width(parts) - 0.2
            _box(axes, (left, top - tall), (wide, tall), COLOURS["home"], "", 0)
            axes.text(left + 0.1, top - 0.2, title, fontsize=8, va="center")
            places |= _inside(axes, node, parts, left + GAP, top - 0.5)
            left += wide + 0.2
        top -= tall + 0.2
    _links(axes, node, places)
    return figure


def _title(domain: NumaDomain) -> str:
    socket = "" if domain.socket is None else f"socket {domain.socket}, "
    return f"{socket}NUMA {domain.number}: CPUs {ranges(domain.cpus) or 'none'}"


def _width(parts: Sequence[Component]) -> float:
    return max(len(parts), 2) * (WIDTH + GAP) + GAP + 0.2


def _height(parts: Sequence[Component]) -> float:
    deep = max((len(way) for way in _ways(parts).values()), default=0)
    return 0.5 + deep * STEP + (HEIGHT + 0.5 if parts else 0.0)


def _ways(parts: Sequence[Component]) -> dict[str, list[tuple[str, ...]]]:
    """Return for each component its host bridge, and the bridges above it that lead to several; each by its path."""
    below: dict[tuple[str, ...], set[str]] = {}
    for each in parts:
        for end in range(1, len(each.path)):
            below.setdefault(each.path[:end], set()).add(each.path[end])
    return {
        each.name: [
            each.path[:end]
            for end in range(1, len(each.path))
            if end == 1 or len(below[each.path[:end]]) > 1
        ]
        for each in parts
    }


def _inside(
    axes: Any, node: NodeHardware, parts: Sequence[Component], left: float, top: float
) -> dict[str, tuple[float, float]]:
    """Draw the components of a NUMA node and the bridges above them; return where NVLink reaches each, by name."""
    ordered = sorted(parts, key=lambda each: (each.path, each.name))
    ways = _ways(ordered)
    floor = top - max((len(way) for way in ways.values()), default=0) * STEP - HEIGHT
    middle = {each.name: left + at * (WIDTH + GAP) + WIDTH / 2 for at, each in enumerate(ordered)}
    spans: dict[tuple[str, ...], list[float]] = {}
    level = {}
    for name, way in ways.items():
        for at, bridge in enumerate(way):
            spans.setdefault(bridge, []).append(middle[name])
            level[bridge] = top - at * STEP
    for bridge, span in spans.items():
        label = f"{'host bridge' if len(bridge) == 1 else 'bridge'} {bridge[-1]}"
        corner, wide = (min(span) - WIDTH / 2, level[bridge] - 0.1), max(span) - min(span) + WIDTH
        _box(axes, corner, (wide, 0.2), COLOURS["bridge"], label, 6)
    for each in ordered:
        points = [
            ((min(spans[bridge]) + max(spans[bridge])) / 2, level[bridge])
            for bridge in ways[each.name]
        ]
        points.append((middle[each.name], floor + HEIGHT))
        axes.plot(*zip(*points, strict=True), color="#666666", lw=0.8, zorder=1)
        text = "\n".join((each.name, *known(node, each)))
        corner = (middle[each.name] - WIDTH / 2, floor)
        _box(axes, corner, (WIDTH, HEIGHT), COLOURS[each.kind], text, 6.5)
    return {name: (place, floor) for name, place in middle.items()}


def _links(axes: Any, node: NodeHardware, places: dict[str, tuple[float, float]]) -> None:
    """Draw NVLink: arcs between GPUs that it connects directly, a foot under those that switches connect."""
    pairs = ((one, *to) for one, ends in node.links.items() for to in ends.items())
    for one, other, count in pairs:
        if places[one] < places[other]:
            far = abs(places[one][0] - places[other][0]) / (WIDTH + GAP)
            bow = {"connectionstyle": f"arc3,rad={0.35 / far**0.7:.2f}"}
            style = {"arrowstyle": "-", "color": LINK, "lw": 0.5 + 0.3 * count, **bow}
            axes.annotate("", places[other], places[one], arrowprops=style, zorder=3)
    for name in node.switched:
        x, y = places[name]
        axes.plot([x, x], [y, y - 0.2], color=LINK, lw=2.5)


def draw_graphs(graphs: Sequence[NcclGraph]) -> "Figure":
    """Return a figure of graphs of NCCL: a row for each way through the node, from left to right.

    Raises
    ------
    ConfigurationError
        If matplotlib is missing.
    """
    ways = [(graph, graph.alike()) for graph in graphs]
    longest = max((len(way) for _, alike in ways for way in alike), default=1)
    rows = sum(len(alike) + 1.2 for _, alike in ways)
    width, height = 1.6 + longest * 0.95, 0.5 + rows * 0.55
    figure, axes = _blank(width, height)
    y = height - 0.35
    for graph, alike in ways:
        axes.text(0.2, y, next(iter(graph_lines([graph]))), fontsize=9, va="center")
        y -= 0.6
        for way, channels in alike.items():
            axes.text(0.2, y, numbered(channels), fontsize=7, va="center")
            for at, part in enumerate(way):
                x = 1.5 + at * 0.95
                kind = "nic" if part.startswith("NIC") else "gpu"
                _box(axes, (x, y - 0.15), (0.68, 0.3), COLOURS[kind], part, 7)
                if at:
                    _arrow(axes, (x - 0.27, y), (x, y), 0.0)
            if is_closed(graph, way):
                end = 1.84 + (len(way) - 1) * 0.95
                _arrow(axes, (end, y - 0.15), (1.84, y - 0.15), -0.5 / len(way))
            y -= 0.55
        y -= 0.06
    return figure


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], bow: float) -> None:
    style = {"arrowstyle": "->", "color": "#444444", "connectionstyle": f"arc3,rad={bow}"}
    axes.annotate("", end, start, arrowprops=style)


def _blank(width: float, height: float) -> tuple["Figure", Any]:
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return figure, axes


def _box(
    axes: Any,
    corner: tuple[float, float],
    size: tuple[float, float],
    colour: str,
    text: str,
    points: float,
) -> None:
    """Draw a box with a text; one without text is behind all."""
    from matplotlib.patches import Rectangle

    behind = 2 if text else 0
    axes.add_patch(Rectangle(corner, *size, fc=colour, ec="#555555", lw=0.7, zorder=behind))
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(x, y, text, fontsize=points, ha="center", va="center", zorder=3)
