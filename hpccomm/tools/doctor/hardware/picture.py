"""Pictures of a node's hardware and of NCCL's graphs, for ``hpccomm topo --output``."""

from collections.abc import Sequence

from hpccomm.tools.doctor.hardware.facts import Component, NodeHardware, NumaDomain
from hpccomm.tools.doctor.hardware.nccl_files import NcclGraph
from hpccomm.tools.doctor.hardware.words import graph_lines, is_closed, known, numbered, summary
from hpccomm.tools.drawing.pictures import Canvas, Place
from hpccomm.units import ranges

COLORS = {"gpu": "#b7d7a8", "nic": "#9fc5e8", "bridge": "#eeeeee", "home": "#fbf6ea"}
WIDTH, HEIGHT, GAP, STEP, WIDEST = 1.25, 0.62, 0.25, 0.45, 17.0
"""Inches: of a component's box, between two, between bridges, and of a row of NUMA nodes."""

LINK, EDGE, ARROW = "#38761d", "#555555", "#444444"
"""Colors of NVLink, of the edges of boxes, and of arrows."""


def draw(node: NodeHardware) -> str:
    """Return a picture of a node: a frame for each NUMA node, the bridges and components in it, and NVLink.

    Of the bridges, those are drawn that lead to several components.

    Returns
    -------
    str
        A document of SVG.
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
    canvas = Canvas(width, height)
    canvas.text((0.2, 0.3), f"{node.name}: {summary(node)}", 10)
    places: dict[str, Place] = {}
    top = 0.55
    for row, tall in zip(rows, heights, strict=True):
        left = 0.2
        for title, parts in row:
            wide = _width(parts) - 0.2
            canvas.box((left, top), (wide, tall), COLORS["home"], EDGE, width=0.7, level=0)
            canvas.text((left + 0.1, top + 0.2), title, 8)
            places |= _inside(canvas, node, parts, left + GAP, top + 0.5)
            left += wide + 0.2
        top += tall + 0.2
    _links(canvas, node, places)
    return canvas.svg()


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
    ways = {}
    for each in parts:
        above = (each.path[:end] for end in range(1, len(each.path)))
        ways[each.name] = [way for way in above if len(way) == 1 or len(below[way]) > 1]
    return ways


def _inside(
    canvas: Canvas, node: NodeHardware, parts: Sequence[Component], left: float, top: float
) -> dict[str, Place]:
    """Draw the components of a NUMA node and the bridges above them; return where NVLink reaches each, by name."""
    ordered = sorted(parts, key=lambda each: (each.path, each.name))
    ways = _ways(ordered)
    floor = top + max((len(way) for way in ways.values()), default=0) * STEP + HEIGHT
    middle = {each.name: left + at * (WIDTH + GAP) + WIDTH / 2 for at, each in enumerate(ordered)}
    spans: dict[tuple[str, ...], list[float]] = {}
    level = {}
    for name, way in ways.items():
        for at, bridge in enumerate(way):
            spans.setdefault(bridge, []).append(middle[name])
            level[bridge] = top + at * STEP
    for bridge, span in spans.items():
        label = f"{'host bridge' if len(bridge) == 1 else 'bridge'} {bridge[-1]}"
        corner, wide = (min(span) - WIDTH / 2, level[bridge] - 0.1), max(span) - min(span) + WIDTH
        _box(canvas, corner, (wide, 0.2), COLORS["bridge"], label, 6)
    for each in ordered:
        points = [
            ((min(spans[bridge]) + max(spans[bridge])) / 2, level[bridge])
            for bridge in ways[each.name]
        ]
        points.append((middle[each.name], floor - HEIGHT))
        canvas.line(points, "#666666", 0.8, level=1)
        text = "\n".join((each.name, *known(node, each)))
        corner = (middle[each.name] - WIDTH / 2, floor - HEIGHT)
        _box(canvas, corner, (WIDTH, HEIGHT), COLORS[each.kind], text, 6.5)
    return {name: (place, floor) for name, place in middle.items()}


def _links(canvas: Canvas, node: NodeHardware, places: dict[str, Place]) -> None:
    """Draw NVLink: arcs between directly connected GPUs, a bar below GPUs connected by switches."""
    pairs = ((one, *to) for one, ends in node.links.items() for to in ends.items())
    for one, other, count in pairs:
        if places[one] < places[other]:
            far = abs(places[one][0] - places[other][0]) / (WIDTH + GAP)
            ends = sorted((places[one], places[other]))
            canvas.line(ends, LINK, 0.5 + 0.3 * count, bow=0.35 / far**0.7)
    for name in node.switched:
        x, y = places[name]
        canvas.line([(x, y), (x, y + 0.2)], LINK, 2.5)


def draw_graphs(graphs: Sequence[NcclGraph]) -> str:
    """Return a picture of graphs of NCCL: a row for each way through the node, from left to right.

    Returns
    -------
    str
        A document of SVG.
    """
    ways = [(graph, graph.alike()) for graph in graphs]
    longest = max((len(way) for _, alike in ways for way in alike), default=1)
    rows = sum(len(alike) + 1.2 for _, alike in ways)
    width, height = 1.6 + longest * 0.95, 0.5 + rows * 0.55
    canvas = Canvas(width, height)
    y = 0.35
    for graph, alike in ways:
        canvas.text((0.2, y), next(iter(graph_lines([graph]))), 9)
        y += 0.6
        for way, channels in alike.items():
            canvas.text((0.2, y), numbered(channels), 7)
            for at, part in enumerate(way):
                x = 1.5 + at * 0.95
                kind = "nic" if part.startswith("NIC") else "gpu"
                _box(canvas, (x, y - 0.15), (0.68, 0.3), COLORS[kind], part, 7)
                if at:
                    canvas.line([(x - 0.25, y), (x - 0.02, y)], ARROW, 1.0, arrow=True)
            if is_closed(graph, way):
                end = 1.84 + (len(way) - 1) * 0.95
                ends = [(end, y + 0.15), (1.84, y + 0.15)]
                canvas.line(ends, ARROW, 1.0, arrow=True, bow=-0.5 / len(way))
            y += 0.55
        y += 0.06
    return canvas.svg()


def _box(canvas: Canvas, corner: Place, size: Place, color: str, text: str, points: float) -> None:
    """Draw a box with a text."""
    canvas.box(corner, size, color, EDGE, width=0.7)
    canvas.text((corner[0] + size[0] / 2, corner[1] + size[1] / 2), text, points, centred=True)
