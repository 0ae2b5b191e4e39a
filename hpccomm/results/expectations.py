"""The bus bandwidth that a run's links allow, and the rates that a run is expected to reach (``--expect``).

**Links.** ``links.toml`` has the links of today's machines. On one node, the link of a device bounds bus bandwidth: bus
bandwidth is defined so that it can be compared with the link's rate (nccl-tests, doc/PERFORMANCE.md). Between N nodes
of L ranks each, n = N L, the link of a node has to carry these bytes, in one direction and for a size of S bytes:

- all-reduce: 2 S (N-1) / N, since a node's data are folded with the data of the others, and the result comes back,
- reduce-scatter, all-gather, gather and scatter: S (N-1) / N,
- broadcast and reduce: S,
- all-to-all: L S (N-1) / N, since a rank's part for its own node stays there,
- send-receive: S times the number of the node's ranks that send to another node.

The time that the link takes for these bytes, put into the definition of bus bandwidth, gives the bound.

**Expectations** are a file in TOML, or the name of a link. An entry of a file looks as follows. Only the collective,
and one of ``busbw`` and ``time``, are required::

    [[expect]]
    collective = "all_reduce"
    busbw = 370.0        # at least, in 1e9 B/s
    time = 25.0          # at most, in microseconds
    from = "1M"          # sizes, both included
    to = "1G"
    ranks = 64           # only for this number of ranks and nodes
    nodes = 8
    type = "float"       # only for this type, reduction, backend, algorithm, placement
    op = "sum"
    backend = "nccl"
    algorithm = "ring"
    in_place = false

An entry with ``from`` or ``to`` applies to each row in that range. An entry without both applies to the best row of
each table.

``hpccomm perf``, ``show``, ``export``, ``report`` and ``slurm`` use this module.
"""

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hpccomm.contracts.collectives import ALIASES, MEASURED
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.results.schema import REQUIRED_FRACTION, DeviceInfo, RankInfo, Row, RunInfo
from hpccomm.units import counted, figure, size

DEVICE, NODE = "device", "node"
"""Places of links: between the devices of a node, and between nodes."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published bus bandwidth.

    Attributes
    ----------
    collective : str
        Name of the collective.
    busbw : float
        The bus bandwidth, in 1e9 B/s.
    where : str
        The machine, in words.
    source, url : str
        The publication, in words and as a URL.
    ports : int
        Number of used ports of each node.
    """

    collective: str
    busbw: float
    where: str
    source: str
    url: str
    ports: int = 1

    def __str__(self) -> str:
        ports = f", {self.ports} ports a node" if self.ports > 1 else ""
        return f"{self.busbw:g} GB/s, {self.where}{ports} ({self.source})"


@dataclass(frozen=True, slots=True)
class LinkType:
    """A kind of link.

    Attributes
    ----------
    name : str
        Name of the link, such as ``infiniband-ndr``.
    what : str
        The link in words.
    place : str
        `DEVICE` or `NODE`.
    rate : float
        Rate of a device or port in one direction, in 1e9 B/s.
    source, url : str
        The source of the rate, in words and as a URL.
    payload : float
        The fraction of the rate that is left for data.
    published : tuple of Published
        Published measurements over such links.
    """

    name: str
    what: str
    place: str
    rate: float
    source: str
    url: str
    payload: float = 1.0
    published: tuple[Published, ...] = ()

    @property
    def data_rate(self) -> float:
        """The rate of data of a device or port in one direction, in 1e9 B/s."""
        return self.rate * self.payload


@cache
def links() -> dict[str, LinkType]:
    """Return the links of ``links.toml``, by name."""
    table = tomllib.loads(Path(__file__).with_name("links.toml").read_text(encoding="utf-8"))
    for facts in table.values():
        facts["published"] = tuple(Published(**each) for each in facts.get("published", ()))
    return {name: LinkType(name, **facts) for name, facts in table.items()}


def bounding_link(info: RunInfo) -> DeviceInfo | None:
    """Return the device whose link bounds bus bandwidth; None if that is not known.

    It is the device with the slowest link. It is known only on one node where each rank has a device to itself. NVML
    does not know the rate that several ranks on one device reach, nor a network between nodes.
    """
    of_their_own = len({device.uuid for device in info.devices}) == len(info.ranks) > 1
    if not (of_their_own and info.nodes == 1 and all(device.peak > 0 for device in info.devices)):
        return None
    return min(info.devices, key=lambda device: device.peak)


def bound(info: RunInfo, collective: str) -> float | None:
    """Return the largest bus bandwidth that a run's links allow a collective, in 1e9 B/s; None if unknown.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    collective : str
        Name of the collective.
    """
    device = bounding_link(info)
    if device is not None:
        return device.peak
    rate, share = fabric_rate(info), share_of_node(info.ranks, collective)
    return None if rate is None or share is None else rate * share


_PORT = re.compile(r"(\d+(?:\.\d+)?) Gb/sec \(\d+X (\w+)\)")


def fabric_rate(info: RunInfo) -> float | None:
    """Return the total rate of a node's RDMA ports in one direction, in 1e9 B/s.

    None on one node, without such ports, and if nodes have different ports.
    """
    fabric = info.machine.get("fabric", "")
    ports = _PORT.findall(fabric)
    if info.nodes < 2 or not ports or " on " in fabric:
        return None
    return sum(float(rate) for rate, _ in ports) / 8


def share_of_node(ranks: "tuple[RankInfo, ...]", collective: str) -> float | None:
    """Return the largest bus bandwidth between nodes, as a multiple of the rate of a node's link.

    Parameters
    ----------
    ranks : tuple of RankInfo
        The node and the group of each rank.
    collective : str
        Name of the collective.

    Returns
    -------
    float or None
        None on one node, for nodes with different numbers of ranks, if several groups share the link, and for
        collectives without such a bound.
    """
    sizes = Counter(rank.node for rank in ranks)
    nodes, total = len(sizes), len(ranks)
    groups = {rank.group for rank in ranks}
    if nodes < 2 or len({*sizes.values()}) > 1 or len(groups) > 1 or collective not in SHARES:
        return None
    return SHARES[collective](nodes, total, _leaving(ranks))


def _leaving(ranks: "tuple[RankInfo, ...]") -> int:
    """Return the largest number of a node's ranks whose next rank is on another node."""
    following = (*ranks[1:], *ranks[:1])
    leaving = Counter(
        rank.node for rank, after in zip(ranks, following, strict=True) if rank.node != after.node
    )
    return max(leaving.values())


def _blocks(nodes: int, ranks: int, _: int) -> float:
    return (ranks - 1) / ranks * nodes / (nodes - 1)


SHARES: Mapping[str, Callable[[int, int, int], float]] = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "gather", "scatter"), _blocks),
    "broadcast": lambda *_: 1.0,
    "reduce": lambda *_: 1.0,
    "all_to_all": lambda nodes, ranks, _: _blocks(nodes, ranks, 0) * nodes / ranks,
    "send_recv": lambda _nodes, _ranks, leaving: 1.0 / leaving,
}
"""Functions of nodes, ranks, and ranks of a node that send to another node. Each returns the bound of its collective,
as a multiple of the link's rate."""


def published(info: RunInfo, collective: str) -> tuple[Published, ...]:
    """Return published measurements of a collective over the kinds of links that a run used."""
    return tuple(
        each for link in _like(info) for each in link.published if each.collective == collective
    )


def _like(info: RunInfo) -> list[LinkType]:
    """Return the links of the table that a run used."""
    device = bounding_link(info)
    if device is not None:
        kind = "nvlink" if device.link.startswith("NVLink") else "pcie"
        alike = (link for link in links().values() if abs(link.rate / device.peak - 1) < 0.02)
        return [each for each in alike if each.place == DEVICE and each.name.startswith(kind)]
    if fabric_rate(info) is None:
        return []
    ports = {f"infiniband-{name.lower()}" for _, name in _PORT.findall(info.machine["fabric"])}
    return [link for link in links().values() if link.place == NODE and link.name in ports]


@dataclass(frozen=True, slots=True)
class Target:
    """An expectation of some rows.

    Attributes
    ----------
    collective : str
        Name of the collective.
    busbw : float or None
        Least bus bandwidth, in 1e9 B/s.
    time : float or None
        Longest time, in microseconds.
    least, most : int or None
        Smallest and largest size of its rows, in bytes. If both are None, it applies to the best row of each table.
    only : mapping of str to object
        Values that further fields of a row and its run must have.
    """

    collective: str
    busbw: float | None = None
    time: float | None = None
    least: int | None = None
    most: int | None = None
    only: Mapping[str, object] = field(default_factory=dict)

    @property
    def of_best(self) -> bool:
        """Whether the expectation is for the best row only."""
        return self.least is None and self.most is None

    def fits(self, row: Row, info: RunInfo) -> bool:
        """Whether the expectation applies to a row of a run."""
        facts = _facts(row, info)
        return (
            row.collective == self.collective
            and (self.least is None or row.bytes >= self.least)
            and (self.most is None or row.bytes <= self.most)
            and all(facts[name] == value for name, value in self.only.items())
        )

    def part(self, row: Row) -> float:
        """Return the fraction of the expected bandwidth or speed that a row reaches; of both, the smaller fraction."""
        parts = []
        if self.busbw is not None:
            parts.append(row.busbw / self.busbw)
        if self.time is not None:
            parts.append(self.time / row.time if row.time > 0 else 1.0)
        return min(parts)

    def __str__(self) -> str:
        parts = [f"{self.busbw:g} GB/s"] if self.busbw is not None else []
        parts += [f"{self.time:g} us"] if self.time is not None else []
        return " and ".join(parts)


def _facts(row: Row, info: RunInfo) -> dict[str, object]:
    """Return what `Target.only` may be about."""
    return {
        "ranks": len(info.ranks),
        "nodes": info.nodes,
        "type": row.dtype,
        "op": row.op,
        "backend": row.backend,
        "algorithm": row.algorithm,
        "in_place": row.in_place,
    }


_LINK = re.compile(r"(?:([1-9]\d{0,3})x)?([a-z0-9-]+)", re.ASCII)


def targets(text: str, info: RunInfo) -> tuple[Target, ...]:
    """Return the expectations of a run. For each row, the first one that fits counts.

    Parameters
    ----------
    text : str
        Name of a file or of a link. A link may follow the number of a node's ports: ``8xinfiniband-ndr``.
    info : RunInfo
        Facts of the run.

    Raises
    ------
    UsageError
        If the file or link does not exist, the file is malformed, or the link bounds nothing in
        this run.
    """
    link = _named_link(text)
    return _of_file(text) if link is None else _of_link(text, *link, info)


def check(text: str) -> None:
    """Raise unless `text` names a link, or a file with valid expectations.

    `text` is the same as for `targets`.

    Raises
    ------
    UsageError
        If neither exists, or the file is malformed.
    """
    if _named_link(text) is None:
        _of_file(text)


def _named_link(text: str) -> tuple[LinkType, int] | None:
    """Return the link that `text` names and the number of a node's ports; None if it names a file, or no link."""
    match = _LINK.fullmatch(text)
    if match is None or match[2] not in links() or Path(text).exists():
        return None
    return links()[match[2]], int(match[1] or 1)


def _of_file(text: str) -> tuple[Target, ...]:
    """Return the entries of the file that `text` names."""
    try:
        content = tomllib.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        known = f"name a file, or one of the links {', '.join(links())}"
        advice = did_you_mean(text, links(), known)
        raise UsageError(
            f"--expect {text}: {error.strerror}, and no link has that name; {advice}"
        ) from None
    except ValueError as error:  # bad TOML, bad UTF-8, or an integer with thousands of digits
        raise UsageError(
            f"--expect {text} is not TOML: {error}; docs/how_to/compare.rst has examples"
        ) from None
    return entries(text, content)


def _of_link(text: str, link: LinkType, ports: int, info: RunInfo) -> tuple[Target, ...]:
    nodes = info.nodes
    if (link.place == DEVICE) != (nodes == 1):
        where = "devices of one node" if link.place == DEVICE else "nodes"
        raise UsageError(
            f"--expect {text}: {link.what} connects {where}, and the run has "
            f"{counted(nodes, 'node')}; name the link that its ranks communicate over, or a file of your own"
        )
    shares = {name: share_of_node(info.ranks, name) for name in SHARES}
    if link.place == DEVICE:
        shares = dict.fromkeys(SHARES, 1.0)
    rate = link.data_rate * ports
    found = [Target(name, rate * share) for name, share in shares.items() if share is not None]
    if not found:
        raise UsageError(
            f"--expect {text}: nodes have different numbers of ranks, or groups of ranks share a link, so what it "
            "carries is not known; start one group with equally many ranks on each node, or give a file"
        )
    return tuple(found)


_TEXT, _TRUTH, _SIZE = ((str,), "a text"), ((bool,), "true or false"), ((str, int), "a size")

_FIGURE, _COUNT = ((float, int), "a number above 0"), ((int,), "1 or more")

_KEYS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "collective": _TEXT,
    "busbw": _FIGURE,
    "time": _FIGURE,
    "from": _SIZE,
    "to": _SIZE,
    "ranks": _COUNT,
    "nodes": _COUNT,
    "type": _TEXT,
    "op": _TEXT,
    "backend": _TEXT,
    "algorithm": _TEXT,
    "in_place": _TRUTH,
}
"""The keys of an entry, with the types of their values, and what the values are in words."""


def entries(name: str, content: Mapping[str, Any]) -> tuple[Target, ...]:
    """Return the entries of a file.

    Parameters
    ----------
    name : str
        The file's name, for messages.
    content : mapping
        Contents of the file.

    Raises
    ------
    UsageError
        If an entry is malformed.
    """
    entries = content.get("expect")
    tables = isinstance(entries, list) and all(isinstance(each, Mapping) for each in entries)
    if not tables or not entries or set(content) != {"expect"}:
        raise UsageError(
            f"--expect {name} holds other things than entries [[expect]]; give one or more of them"
        )
    return tuple(
        _entry(f"--expect {name}, entry {number}", each) for number, each in enumerate(entries, 1)
    )


def _entry(place: str, given: Mapping[str, Any]) -> Target:
    for key, value in given.items():
        if key not in _KEYS:
            advice = did_you_mean(key, _KEYS, f"give some of {', '.join(_KEYS)}")
            raise UsageError(f"{place} has the unknown key {key!r}; {advice}")
        types, words = kind = _KEYS[key]
        positive = kind in (_FIGURE, _COUNT)
        if type(value) not in types or (positive and not 0 < value <= sys.float_info.max):
            raise UsageError(f"{place}: {key} is {value!r}; give {words}")
    if "collective" not in given or not {"busbw", "time"} & set(given):
        raise UsageError(f"{place} needs a collective, and busbw or time; add what is missing")
    left = dict(given)
    try:
        collective = _collective(left.pop("collective"))
        least, most = (size(str(left.pop(key))) if key in left else None for key in ("from", "to"))
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from None
    if least is not None and most is not None and least > most:
        raise UsageError(
            f"{place} is for no size: from {given['from']} is above to {given['to']}; exchange them"
        )
    return Target(collective, left.pop("busbw", None), left.pop("time", None), least, most, left)


def _collective(text: str) -> str:
    """Return hpccomm's name of a collective, from that name or nccl-tests' name."""
    name = ALIASES.get(text, text)
    if name not in MEASURED:
        advice = did_you_mean(text, MEASURED, f"give one of {', '.join(MEASURED)}")
        raise UsageError(f"{text!r} is not a collective; {advice}")
    return name


def written(info: RunInfo, rows: Iterable[Row], remark: str = "") -> str:
    """Return the text of a file that expects the figures of this run from other runs, with an entry for each row.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    rows : iterable of Row
        The rows of the run.
    remark : str
        Lines of comment about the figures.
    """
    place = f"{len(info.ranks)} ranks on {counted(info.nodes, 'node')}"
    title = f"# What {place} had on {info.started:%Y-%m-%d}, by medians where these are known"
    lines = [title, *remark.splitlines()]
    for row in rows:
        name = next((each for each in ("busbw", "time") if getattr(row, each) > 0), None)
        if name is None:
            continue  # the row is faster than the clock, so that nothing can be expected
        facts = {"collective": row.collective, name: getattr(row, name)}
        facts |= {"from": row.bytes, "to": row.bytes, **_facts(row, info)}
        # Strings, numbers and booleans are the same in JSON and TOML.
        lines += ["", "[[expect]]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in facts.items()]
    return "".join(f"{line}\n" for line in lines)


MOST_LINES = 10
"""Most rows of a table that are named, the worst first."""


class Judge:
    """Compares the rows of a run with expectations, table by table.

    Parameters
    ----------
    text : str
        What names the expectations, as for `targets`.
    info : RunInfo
        Facts of the run.
    near : float, optional
        The fraction of an expectation that is required; by default `REQUIRED_FRACTION`.

    Attributes
    ----------
    failed : int
        Number of rows so far that are below the required fraction.
    judged : int
        Number of rows so far that have an expectation.

    Raises
    ------
    UsageError
        As `targets` does.
    """

    def __init__(self, text: str, info: RunInfo, near: float | None = None) -> None:
        self.failed = self.judged = 0
        self._name, self._targets = text, targets(text, info)
        self._info, self._near = info, near or REQUIRED_FRACTION
        # The worst rows of the table alone: an endless run has one table.
        self._rows: list[tuple[float, Target, Row]] = []
        self._best: dict[int, tuple[float, Target, Row]] = {}
        self._number = 0

    @property
    def failures(self) -> int:
        """Number of failed rows; 1 if no row had an expectation."""
        return self.failed if self.judged else 1

    def nothing(self) -> str:
        """Return a line of comment if no row of the run had an expectation, which is a failure; else an empty text."""
        if self.judged:
            return ""
        return f"# Nothing of this run is expected by {self._name}: FAILED, as it was not judged\n"

    def add(self, row: Row) -> None:
        """Add a row of the table, and compare it with the first expectation that applies."""
        for index, entry in enumerate(self._targets):
            if entry.fits(row, self._info):
                found = entry.part(row), entry, row
                if not entry.of_best:
                    self._take(found)
                elif index not in self._best or found[0] > self._best[index][0]:
                    self._best[index] = found
                return

    def _take(self, found: tuple[float, Target, Row]) -> None:
        self._number += 1
        self.judged += 1
        self.failed += found[0] < self._near
        self._rows = sorted([*self._rows, found], key=lambda each: each[0])[:MOST_LINES]

    def finish(self, failed: str = "FAILED") -> str:
        """Return the verdict on the table's rows, as comments, and begin the next table.

        `failed` is the word for a row below the required fraction.
        """
        for best in self._best.values():
            self._take(best)
        title = f"# {'Expected':20s} : "
        text = f"{title}nothing of this table, by {self._name}\n"
        if self._number:
            worst, entry, _ = self._rows[0]
            verdict = f"{failed}, below {self._near:.0%}" if worst < self._near else "OK"
            number = f", the least of {self._number} rows" if self._number > 1 else ""
            text = f"{title}{worst:.0%} of {entry} by {self._name}{number}: {verdict}\n"
            text += "".join(_line(*each) for each in self._rows if each[0] < self._near)
        self._rows, self._best, self._number = [], {}, 0
        return text


def _line(part: float, entry: Target, row: Row) -> str:
    """Return a row's shortfall, as a comment."""
    has = [f"{figure(row.busbw, 7).strip()} GB/s"] if entry.busbw is not None else []
    has += [f"{figure(row.time, 7).strip()} us"] if entry.time is not None else []
    return f"#   {row.bytes} B {row.dtype} {row.op} {row.placement}: {' and '.join(has)}, {part:.0%} of {entry}\n"
