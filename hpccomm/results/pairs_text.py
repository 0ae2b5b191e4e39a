"""Pairs of ranks as text: matrices where they fit, and the slow nodes, ranks and pairs.

`hpccomm perf pairs` and `hpccomm show` print it.
"""

import json
from collections.abc import Sequence

import numpy as np

from hpccomm.results.pairs import MeasuredPairs, PairDiagnosis, SlowFinding, matrices
from hpccomm.units import counted

MOST_COLUMNS = 16
"""A larger matrix is not printed."""

JSON_VERSION = 1


def text(measured: MeasuredPairs, verdict: PairDiagnosis) -> str:
    """Return everything that is printed, with line ends."""
    ranks, nodes = len(measured.nodes), len(set(measured.nodes))
    lines = [
        f"# {len(measured.links)} of {measured.pairs} pairs of {ranks} ranks on {counted(nodes, 'node')} in "
        f"{measured.seconds:.1f} s",
        *_levels(measured, verdict),
        *measured.others.line.splitlines(),
    ]
    latency, bandwidth = matrices(measured)
    names, what = [str(rank) for rank in range(ranks)], "ranks"
    if ranks > MOST_COLUMNS:
        latency, bandwidth = (_by_node(each, measured.nodes) for each in (latency, bandwidth))
        names, what = [measured.host(node) for node in dict.fromkeys(measured.nodes)], "nodes"
    if 1 < len(names) <= MOST_COLUMNS:
        lines += _matrix(f"Latency of {measured.small} B between {what}, us", names, latency * 1e6)
        lines += _matrix(
            f"Bandwidth of {measured.large} B from {what} (lines) to {what} (columns), GB/s",
            names,
            bandwidth / 1e9,
        )
    quiet = [] if verdict.undecided else ["# Nothing is slow"]
    lines += ["#", *(map(_sentence, verdict.findings) if verdict.findings else quiet)]
    lines += [f"# UNDECIDED {host}: busy" for host in verdict.undecided]
    lines += [f"# DRAIN {host}" for host in verdict.drain]
    return "".join(f"{line}\n" for line in lines)


def _levels(measured: MeasuredPairs, verdict: PairDiagnosis) -> list[str]:
    lines = []
    for inside, (latency, bandwidth) in sorted(verdict.levels.items()):
        links = [link for link in measured.links if measured.inside(link) == inside]
        least, most = (
            float(pick([link.bandwidth for link in links])) / 1e9 for pick in (np.min, np.max)
        )
        middle = float(np.median([link.latency for link in links])) * 1e6
        lines.append(
            f"# {'inside of nodes' if inside else 'between nodes'}: {len(links)} pairs; latency {middle:.2f} us "
            f"(median; expected {latency * 1e6:.2f}), bandwidth {least:.3g} to {most:.3g} GB/s (expected "
            f"{bandwidth / 1e9:.3g})"
        )
    return lines


def _by_node(matrix: np.ndarray, nodes: Sequence[int]) -> np.ndarray:
    """Return the medians over the ranks of each two nodes; NaN where nothing was measured."""
    groups = [np.flatnonzero(np.array(nodes) == node) for node in dict.fromkeys(nodes)]

    def middle(part: np.ndarray) -> float:
        return float(np.nanmedian(part)) if np.isfinite(part).any() else np.nan

    return np.array([[middle(matrix[np.ix_(one, other)]) for other in groups] for one in groups])


def _matrix(title: str, names: Sequence[str], matrix: np.ndarray) -> list[str]:
    cells = [["" if np.isnan(value) else f"{value:.3g}" for value in row] for row in matrix]
    width = max(map(len, [*names, *(cell for row in cells for cell in row)]))
    lead = max(map(len, names))
    heading = " ".join(name.rjust(width) for name in names)
    rows = [
        f"# {name.rjust(lead)}  {' '.join(cell.rjust(width) for cell in row)}"
        for name, row in zip(names, cells, strict=True)
    ]
    return ["#", f"# {title}", f"# {' ' * lead}  {heading}", *rows]


def _sentence(found: SlowFinding) -> str:
    share = "" if found.kind == "pair" else f", in {found.slow} of {found.pairs} pairs"
    level = f"{found.part:.0%} of what it should be" if found.what == "bandwidth" else ""
    level = level or f"{1 / found.part:.1f} times what it should be"
    unclear = "; two nodes do not show which" if found.kind == "nodes" else ""
    return f"# SLOW {found.kind} {found.name}: {found.what} {level}{share}{unclear}"


def as_json(measured: MeasuredPairs, verdict: PairDiagnosis) -> str:
    """Return figures and slow pairs as JSON; docs/how_to/links.rst describes it."""
    document = {
        "version": JSON_VERSION,
        "healthy": None if verdict.undecided and not verdict.findings else not verdict.findings,
        "drain": list(verdict.drain),
        "undecided": list(verdict.undecided),
        "findings": [each._asdict() for each in verdict.findings],
        "hosts": list(measured.hosts),
        "pairs": measured.pairs,
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "latency_us": float(link.latency) * 1e6,
                "there_GBps": float(link.there) / 1e9,
                "back_GBps": float(link.back) / 1e9,
            }
            for link in measured.links
        ],
    }
    return json.dumps(document, indent=1) + "\n"
