"""Links of today's machines: their bandwidth, and published measurements, with sources.

The table is ``links.toml`` beside this module. `bounds` and `expectations` read it.
"""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

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
