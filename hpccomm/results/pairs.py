"""Latency and bandwidth of pairs of ranks: the stored figures, the slow nodes and ranks, and both as text.

A pair is compared with others of its kind: inside of nodes, or between nodes. The best quarter of
the pairs is the healthy level, since one slow node of few can slow down more than half. Slow pairs
are then explained by as few causes as possible: by a node if most of its pairs with other nodes are
slow, then by a rank likewise; each remaining pair stands for itself. In the same way, operators
find the node to drain: the one that is in all slow pairs.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.facts import UNKNOWN, Others
from hpccomm.units import counted, grouped

ENTRY = "pairs"
"""The entry of a run's facts that holds them."""

_BEST = 0.25

_INSIDE = 0.5
"""Threshold inside a node over that between nodes: caches and sockets make healthy pairs differ."""

_MOST = 2 / 3
"""Part of the pairs of a node, or a rank, that are slow where the whole of it is slow."""

MOST_COLUMNS = 16
"""A larger matrix is not printed."""

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class PairLink:
    """The measurement of a pair of ranks.

    Attributes
    ----------
    a, b : int
        The ranks, the lower one first.
    latency : float
        Seconds of a small message, one way: half a round trip.
    there, back : float
        Bytes a second of large messages from `a` to `b`, and from `b` to `a`.
    """

    a: int
    b: int
    latency: float
    there: float
    back: float

    @property
    def bandwidth(self) -> float:
        """The worse direction, in bytes a second."""
        return min(self.there, self.back)

    def better(self, other: "PairLink") -> "PairLink":
        """Return the better figures of two measurements of the pair."""
        return replace(
            self,
            latency=min(self.latency, other.latency),
            there=max(self.there, other.there),
            back=max(self.back, other.back),
        )


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """All pairs that were measured.

    Attributes
    ----------
    nodes : tuple of int
        The node of each rank.
    hosts : tuple of str
        Its name.
    links : tuple of PairLink
        The pairs.
    pairs : int
        How many there are, measured or not.
    small, large : int
        Bytes of the messages.
    seconds : float
        Duration of all measurements.
    others : Others
        What other processes took of the cores meanwhile.
    """

    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    links: tuple[PairLink, ...]
    pairs: int
    small: int
    large: int
    seconds: float
    others: Others = UNKNOWN

    def inside(self, link: PairLink) -> bool:
        """Whether both ranks of a pair are on one node."""
        return self.nodes[link.a] == self.nodes[link.b]

    def host(self, node: int) -> str:
        """Return the name of a node."""
        return self.hosts[self.nodes.index(node)]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits below which a pair is slow.

    Attributes
    ----------
    bandwidth, latency : float
        Part of the healthy or expected level below which a pair is slow. For a latency it is the part of the speed:
        0.5 is twice the time.
    expected_bandwidth, expected_latency : float or None
        Bytes a second, and seconds, that pairs of different nodes should have (of all pairs, where
        there is one node). Without it, the best quarter is the healthy level. Inside of nodes the
        parts are half as large, as caches and sockets make healthy pairs differ.
    """

    bandwidth: float = 0.8
    latency: float = 0.5
    expected_bandwidth: float | None = None
    expected_latency: float | None = None


class SlowFinding(NamedTuple):
    """Something that is slow.

    Attributes
    ----------
    kind : str
        ``node``, ``nodes`` (two; nothing shows which one), ``rank`` or ``pair``.
    name : str
        Host name, rank, or both ranks.
    host : str
        Host to look at; empty for two.
    what : str
        ``bandwidth`` or ``latency``.
    part : float
        Its rate as a part of the healthy or expected one: the median over its slow pairs.
    slow, pairs : int
        Numbers of its slow pairs, and of all its pairs.
    """

    kind: str
    name: str
    host: str
    what: str
    part: float
    slow: int
    pairs: int


class PairDiagnosis(NamedTuple):
    """The slow nodes, ranks and pairs.

    Attributes
    ----------
    findings : tuple of SlowFinding
        Nodes first.
    slow : tuple of PairLink
        All slow pairs.
    levels : dict
        What pairs inside of nodes (True) and between nodes (False) should have: seconds and bytes a second.
    undecided : tuple of str
        Hosts that others kept busy: of their pairs, nothing is decided.
    """

    findings: tuple[SlowFinding, ...]
    slow: tuple[PairLink, ...]
    levels: Mapping[bool, tuple[float, float]]
    undecided: tuple[str, ...] = ()

    @property
    def drain(self) -> tuple[str, ...]:
        """Hosts that are slow as a whole."""
        return tuple(dict.fromkeys(each.host for each in self.findings if each.kind == "node"))


def locate_slow(measured: MeasuredPairs, thresholds: Thresholds) -> PairDiagnosis:
    """Return the slow nodes, ranks and pairs: a pure function of the measured figures."""
    levels = _levels(measured, thresholds)
    busy = {measured.nodes[rank] for rank in measured.others.busy}
    findings: list[SlowFinding] = []
    slow_links: dict[tuple[int, int], PairLink] = {}
    for what in ("bandwidth", "latency"):
        parts, slow = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
        for link in measured.links:
            if {measured.nodes[link.a], measured.nodes[link.b]} & busy:
                continue  # its time says nothing
            inside, pair = measured.inside(link), (link.a, link.b)
            latency, bandwidth = levels[inside]
            speeds = {"bandwidth": (link.bandwidth, bandwidth), "latency": (latency, link.latency)}
            rate, level = speeds[what]
            parts[pair] = rate / level if level else 1.0
            if parts[pair] < getattr(thresholds, what) * (_INSIDE if inside else 1):
                slow[pair], slow_links[pair] = parts[pair], link
        findings += _explained(measured, what, parts, slow)
    order = ("node", "nodes", "rank", "pair")
    findings.sort(key=lambda each: (order.index(each.kind), each.part))
    undecided = tuple(map(measured.host, sorted(busy)))
    return PairDiagnosis(tuple(findings), tuple(slow_links.values()), levels, undecided)


def _levels(measured: MeasuredPairs, thresholds: Thresholds) -> dict[bool, tuple[float, float]]:
    """Return latency and bandwidth that pairs of each kind should have."""
    levels = {}
    one_node = len(set(measured.nodes)) == 1
    for inside in (False, True):
        links = [link for link in measured.links if measured.inside(link) == inside]
        if not links:
            continue
        latencies, bandwidths = zip(
            *((link.latency, link.bandwidth) for link in links), strict=True
        )
        latency = float(np.quantile(latencies, _BEST, method="lower"))
        bandwidth = float(np.quantile(bandwidths, 1 - _BEST, method="higher"))
        if inside == one_node:
            latency = thresholds.expected_latency or latency
            bandwidth = thresholds.expected_bandwidth or bandwidth
        levels[inside] = latency, bandwidth
    return levels


_Parts = Mapping[tuple[int, int], float]


def _explained(
    measured: MeasuredPairs, what: str, parts: _Parts, slow: _Parts
) -> list[SlowFinding]:
    """Return the causes of the slow pairs."""
    nodes, findings = measured.nodes, list[SlowFinding]()
    left = dict(slow)
    outside = {pair: part for pair, part in parts.items() if nodes[pair[0]] != nodes[pair[1]]}

    def of_node(pair: tuple[int, int]) -> tuple[int, ...]:
        return (nodes[pair[0]], nodes[pair[1]]) if pair in outside else ()

    def add(kind: str, name: str, host: str, pairs: Iterable[tuple[int, int]]) -> None:
        among = list(pairs)
        own = [slow[pair] for pair in among if pair in slow]
        part = float(np.median(own))
        findings.append(SlowFinding(kind, name, host, what, part, len(own), len(among)))

    if len(set(nodes)) > 2:
        for node, pairs in _culprits(outside, left, of_node):
            add("node", measured.host(node), measured.host(node), pairs)
    elif outside and sum(pair in left for pair in outside) / len(outside) >= _MOST:
        one, other = dict.fromkeys(nodes)
        add("nodes", f"{measured.host(one)} and {measured.host(other)}", "", outside)
        left = {pair: part for pair, part in left.items() if pair not in outside}
    for rank, pairs in _culprits(parts, left, tuple, least=3):
        add("rank", f"{rank} ({measured.hosts[rank]})", measured.hosts[rank], pairs)
    for a, b in left:
        add("pair", f"{a} and {b} ({measured.hosts[a]}, {measured.hosts[b]})", "", [(a, b)])
    return findings


def _culprits(
    parts: _Parts,
    left: dict[tuple[int, int], float],
    ends: Callable[[tuple[int, int]], tuple[int, ...]],
    least: int = 2,
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the nodes or ranks with mostly slow pairs, the worst first, each with its pairs; remove these from `left`."""
    culprits: list[tuple[int, list[tuple[int, int]]]] = []
    pairs = dict.fromkeys(parts)
    while True:
        of_each = grouped((end, pair) for pair in pairs for end in ends(pair))
        slow = {end: sum(pair in left for pair in its) for end, its in of_each.items()}
        shares = {end: slow[end] / len(of_each[end]) for end in slow if slow[end] >= least}
        worst = max(shares, key=lambda end: shares[end], default=None)
        if worst is None or shares[worst] < _MOST:
            return culprits
        culprits.append((worst, [pair for pair in parts if worst in ends(pair)]))
        # An explained pair says nothing about its partners.
        for pair in of_each[worst]:
            left.pop(pair, None)
            del pairs[pair]


def matrices(measured: MeasuredPairs) -> tuple[np.ndarray, np.ndarray]:
    """Return latency (seconds) and bandwidth (bytes a second, from row to column) as matrices.

    Returns
    -------
    tuple of ndarray
        Float64 ``(ranks, ranks)``; NaN where nothing was measured.
    """
    ranks = len(measured.nodes)
    latency, bandwidth = np.full((2, ranks, ranks), np.nan)
    for link in measured.links:
        latency[link.a, link.b] = latency[link.b, link.a] = link.latency
        bandwidth[link.a, link.b], bandwidth[link.b, link.a] = link.there, link.back
    return latency, bandwidth


def parts(measured: MeasuredPairs, verdict: PairDiagnosis) -> tuple[np.ndarray, np.ndarray]:
    """Return inverse latency and bandwidth as parts of the level of their kind; see `matrices`."""
    latency, bandwidth = matrices(measured)
    nodes = np.array(measured.nodes)
    inside = nodes[:, None] == nodes[None, :]
    nothing = np.array([np.nan, np.nan])
    own, other = (np.array(verdict.levels.get(kind, nothing)) for kind in (True, False))
    level = np.where(inside[..., None], own, other)
    return level[..., 0] / latency, bandwidth / level[..., 1]


def entry(measured: MeasuredPairs, thresholds: Thresholds) -> dict[str, Any]:
    """Return the measurement as an entry of a run's facts: JSON."""
    return {
        **{name: getattr(measured, name) for name in ("pairs", "small", "large", "seconds")},
        "thresholds": asdict(thresholds),
        "links": [asdict(link) for link in measured.links],
    }


def read(run: Any) -> tuple[MeasuredPairs, PairDiagnosis]:
    """Return the pairs of a run of a results file (`hpccomm.results.reader.Run`), and what of them is slow.

    Raises
    ------
    ResultsError
        If the run has no pairs.
    """
    stored = run.entries.get(ENTRY)
    if stored is None:
        raise ResultsError(
            f"{run.name} of {run.path} has no pairs; hpccomm perf pairs measures them"
        )
    measured = MeasuredPairs(
        nodes=tuple(rank.node for rank in run.info.ranks),
        hosts=tuple(rank.host for rank in run.info.ranks),
        links=tuple(PairLink(**link) for link in stored["links"]),
        **{name: stored[name] for name in ("pairs", "small", "large", "seconds")},
        others=run.others,
    )
    return measured, locate_slow(measured, Thresholds(**stored["thresholds"]))


def text(measured: MeasuredPairs, verdict: PairDiagnosis) -> str:
    """Return everything that is printed, with line ends."""
    ranks, nodes = len(measured.nodes), len(set(measured.nodes))
    lines = [
        f"# {len(measured.links)} of {measured.pairs} pairs of {ranks} ranks on {counted(nodes, 'node')} in "
        f"{measured.seconds:.1f} s",
        *_level_lines(measured, verdict),
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


def _level_lines(measured: MeasuredPairs, verdict: PairDiagnosis) -> list[str]:
    lines = []
    for inside, (latency, bandwidth) in sorted(verdict.levels.items()):
        links = [link for link in measured.links if measured.inside(link) == inside]
        rates = [link.bandwidth / 1e9 for link in links]
        middle = float(np.median([link.latency for link in links])) * 1e6
        lines.append(
            f"# {'inside of nodes' if inside else 'between nodes'}: {len(links)} pairs; latency {middle:.2f} us "
            f"(median; expected {latency * 1e6:.2f}), bandwidth {min(rates):.3g} to {max(rates):.3g} GB/s (expected "
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
