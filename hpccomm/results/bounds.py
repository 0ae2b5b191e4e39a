"""The largest bus bandwidth that a run's links allow a collective; and the links of today's machines, of ``links.toml``.

On one node, the link of a device bounds it (nccl-tests, doc/PERFORMANCE.md: bus bandwidth is made
to be compared with that). Between N nodes of L ranks each, n = N L, the link of a node has to
carry, in one direction and for a size of S bytes:

- all-reduce 2 S (N-1) / N, since a node's data meet the others' and come back,
- reduce-scatter, all-gather, gather and scatter S (N-1) / N,
- broadcast and reduce S,
- all-to-all L S (N-1) / N, since a rank's part for its own node stays there,
- send-receive S times the ranks of a node that send to another.

The time of that, put into the definition of bus bandwidth, gives the bound. `hpccomm perf`,
``show`` and ``report`` print the bound, and ``--expect LINK`` requires a part of it.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hpccomm.results.schema import DeviceInfo, RankInfo, RunInfo

DEVICE, NODE = "device", "node"
"""Places of links: between the devices of a node, and between nodes."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published bus bandwidth.

    Attributes
    ----------
    collective : str
        The collective.
    busbw : float
        In 1e9 B/s.
    where : str
        The machine.
    source, url : str
        Where it was published.
    ports : int
        Used ports of each node.
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
        Such as ``infiniband-ndr``.
    what : str
        In words.
    place : str
        `DEVICE` or `NODE`.
    rate : float
        In one direction, of a device or a port, in 1e9 B/s.
    source, url : str
        Where the rate stands.
    payload : float
        Part of the rate that is left for data.
    published : tuple of Published
        What others have measured.
    """

    name: str
    what: str
    place: str
    rate: float
    source: str
    url: str
    payload: float = 1.0
    published: tuple[Published, ...] = field(default=())

    @property
    def data_rate(self) -> float:
        """Data in one direction, of a device or a port, in 1e9 B/s."""
        return self.rate * self.payload


@cache
def links() -> dict[str, LinkType]:
    """Return the table, by the names of the links."""
    text = (Path(__file__).parent / "links.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    for facts in table.values():
        facts["published"] = tuple(Published(**each) for each in facts.get("published", ()))
    return {name: LinkType(name, **facts) for name, facts in table.items()}


def bounding_link(info: RunInfo) -> DeviceInfo | None:
    """Return the device whose link bounds bus bandwidth; None where that is not known.

    It is the slowest of the links, on one node where each rank has a device to itself: what several
    ranks on a device reach, and a network between nodes, NVML does not know.
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
        Its name.
    """
    device = bounding_link(info)
    if device is not None:
        return device.peak
    rate, share = fabric_rate(info), share_of_node(info.ranks, collective)
    return None if rate is None or share is None else rate * share


_PORT = re.compile(r"(\d+(?:\.\d+)?) Gb/sec \(\d+X (\w+)\)")


def fabric_rate(info: RunInfo) -> float | None:
    """Return the total rate of a node's RDMA ports in one direction, in 1e9 B/s.

    None on one node, without such ports, and where nodes have different ones.
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
        Where the ranks are.
    collective : str
        Name of the collective.

    Returns
    -------
    float or None
        None on one node, for nodes with different numbers of ranks, where several groups share the link, and for
        collectives that have no such bound.
    """
    sizes = Counter(rank.node for rank in ranks)
    nodes, total = len(sizes), len(ranks)
    groups = {rank.group for rank in ranks}
    if nodes < 2 or len({*sizes.values()}) > 1 or len(groups) > 1 or collective not in SHARES:
        return None
    return SHARES[collective](nodes, total, _leaving(ranks))


def _leaving(ranks: "tuple[RankInfo, ...]") -> int:
    """Return how many ranks of a node send to the next rank on another node, at most."""
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
"""For each collective: from nodes, ranks, and ranks of a node that send to another one."""


def published(info: RunInfo, collective: str) -> tuple[Published, ...]:
    """Return published measurements over links like a run's."""
    return tuple(
        each for link in _like(info) for each in link.published if each.collective == collective
    )


def _like(info: RunInfo) -> list[LinkType]:
    """Return the links of the table that a run used."""
    device = bounding_link(info)
    if device is not None:
        kind = "nvlink" if device.link.startswith("NVLink") else "pcie"
        return [
            link
            for link in links().values()
            if link.place == DEVICE
            and link.name.startswith(kind)
            and abs(link.rate / device.peak - 1) < 0.02
        ]
    if fabric_rate(info) is None:
        return []
    ports = {f"infiniband-{name.lower()}" for _, name in _PORT.findall(info.machine["fabric"])}
    return [link for link in links().values() if link.place == NODE and link.name in ports]
