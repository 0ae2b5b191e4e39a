"""Pairs of ranks as heat maps: latency and bandwidth, each beside its expected level.

`hpccomm plot --pairs` and `page` draw it.
"""

import numpy as np

from hpccomm.charts.pictures import number, tips
from hpccomm.drawing import Chart, chart, encoding, layer
from hpccomm.results.pairs import MeasuredPairs, PairDiagnosis, matrices, parts
from hpccomm.units import counted, few, ranges

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
        way: encoding(field, "ordinal", f"{field} rank", scale={"domain": names}, axis=axis)
        for way, field in (("x", "to"), ("y", "from"))
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
            layer(rule, {way: {**each, "bandPosition": 0}}, data={"values": borders})
            for way, each in axes.items()
        ]
    size = pixels * cells
    return chart(name, [record], size, size, view={"fill": "#dddddd"}, layer=layers)
