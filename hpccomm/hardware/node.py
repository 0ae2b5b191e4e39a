"""The hardware of one node, and nvidia-smi's letters for a connection of two components.

`facts` and `nccl_files` make it; `binding`, `cluster`, `words` and `picture` read it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LETTERS = {
    "X": "the same one",
    "NV#": "NVLink, # links together",
    "XGMI": "links between GPUs of AMD",
    "PIX": "at most one PCIe switch",
    "PXB": "several PCIe switches, not the processor",
    "PHB": "the processor's PCIe host bridge",
    "NODE": "two host bridges of a NUMA node",
    "SYS": "two NUMA nodes, such as two sockets",
}
"""Kinds of connections, from near to far, by the letters of ``nvidia-smi topo -m``."""


@dataclass(frozen=True, slots=True)
class NumaDomain:
    """A NUMA node: cores and the memory that is nearest to them.

    Attributes
    ----------
    number : int
        As the kernel counts.
    cpus : tuple of int
        Its hardware threads.
    socket : int or None
        Its processor; None if unknown.
    cores : int
        Its cores; 0 if unknown.
    memory : int
        Bytes; 0 if unknown.
    distances : tuple of int
        To the nodes in their order; 10 is its own.
    """

    number: int
    cpus: tuple[int, ...]
    socket: int | None = None
    cores: int = 0
    memory: int = field(default=0, compare=False)
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Component:
    """A GPU or a network adapter.

    Attributes
    ----------
    name : str
        ``GPU0``, or the adapter's name.
    kind : str
        ``gpu`` or ``nic``.
    address : str
        On PCI.
    path : tuple of str
        From the host bridge over all bridges to the component. A switch is two of them: the port towards the
        processor, and the port towards the component.
    domain : int or None
        The number of its NUMA node; None if unknown.
    words : str
        Its description.
    lanes : str
        Its connection, such as ``PCIe 4 x16``; empty if unknown.
    rate : float
        Of an adapter that is up, in Gb/s; 0 if unknown.
    """

    name: str
    kind: str
    address: str
    path: tuple[str, ...]
    domain: int | None
    words: str = ""
    lanes: str = ""
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The hardware of a node. Equal nodes of different names compare equal.

    Attributes
    ----------
    name : str
        The host's, or the file's.
    domains : tuple of NumaDomain
        In the order of their numbers.
    components : tuple of Component
        GPUs, then network adapters.
    links : mapping
        How many NVLinks (or of AMD's) lead from a GPU directly to another, by the names of both.
    switched : mapping
        How many NVLinks of a GPU lead to switches, by its name.
    link_kind : str
        ``NV`` or ``XGMI``.
    link_rate : float
        Of one such link in one direction, in 1e9 B/s.
    unread : tuple of str
        Unknown facts, with reasons.
    """

    name: str = field(compare=False)
    domains: tuple[NumaDomain, ...]
    components: tuple[Component, ...]
    links: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    switched: Mapping[str, int] = field(default_factory=dict)
    link_kind: str = "NV"
    link_rate: float = 25.0
    unread: tuple[str, ...] = field(default=(), compare=False)

    def of_kind(self, kind: str) -> list[Component]:
        """Return the GPUs (``gpu``) or the network adapters (``nic``)."""
        return [each for each in self.components if each.kind == kind]

    def inside(self, number: int | None) -> list[Component]:
        """Return the components of a NUMA node."""
        return [each for each in self.components if each.domain == number]

    def between(self, one: Component, other: Component) -> str:
        """Return the letters for what connects two components."""
        if one == other:
            return "X"
        links = self.links.get(one.name, {}).get(other.name, 0) or min(
            self.switched.get(one.name, 0), self.switched.get(other.name, 0)
        )
        if links:
            return f"NV{links}" if self.link_kind == "NV" else self.link_kind
        shared = shared_path(one.path, other.path)
        if not shared:
            alike = one.domain is not None and one.domain == other.domain
            return "NODE" if alike else "SYS"
        if shared == 1:
            return "PHB"
        bridges = max(len(one.path), len(other.path)) - shared - 1
        return "PIX" if bridges <= 1 else "PXB"

    def matrix(self) -> list[list[str]]:
        """Return the letters of all pairs of components."""
        return [[self.between(one, each) for each in self.components] for one in self.components]

    def nearest(self, one: Component, kind: str) -> list[Component]:
        """Return the other components of a kind that are nearest to one: several if they are alike."""
        near = {each: rank(self.between(one, each)) for each in self.of_kind(kind) if each != one}
        return [each for each, far in near.items() if far == min(near.values())]


def connected(
    ends: Iterable[tuple[str, str | None, int]],
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Return `NodeHardware.links` and `NodeHardware.switched`, from how many links lead from a GPU to another, or to a switch (None)."""
    links: dict[str, dict[str, int]] = {}
    switched: dict[str, int] = {}
    for own, to, count in ends:
        into, name = (switched, own) if to is None else (links.setdefault(own, {}), to)
        into[name] = into.get(name, 0) + count
    return links, switched


def rank(letters: str) -> int:
    """Return the distance that letters stand for: their place in `LETTERS`."""
    return list(LETTERS).index("NV#" if letters.startswith("NV") else letters)


def shared_path(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many bridges two paths have in common, from the host bridge on."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
