"""The hardware of one node, from its facts as `hpccomm.tools.doctor` reads them; nvidia-smi's letters for connections.

`hpccomm topo` and some rules of the doctor use it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpccomm.units import numbers

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


SOURCES = ("cpu", "pci", "network", "infiniband", "nvlink")
"""Sources of the doctor that are needed."""

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}

_ACCELERATOR = re.compile(r"0x(0302|0380|12)")
_DISPLAY = ("0x10de", "0x1002")
"""Makers whose displays compute; that of a server's management controller does not."""

NVLINK, NVLINK_5, XGMI = 25.0, 50.0, 50.0
"""1e9 B/s of one link in one direction: NVLink 2 to 4, NVLink 5, and AMD's of an MI200 (their data sheets)."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Of PCI Express, by GT/s."""


def hardware(name: str, tree: Mapping[str, Any]) -> NodeHardware:
    """Return the hardware of a node.

    Parameters
    ----------
    name : str
        The host's.
    tree : mapping
        Its facts, by source.
    """
    domains = tuple(_domains(tree.get("cpu", {})))
    gpus = tuple(_gpus(tree, domains))
    names = {gpu.address: gpu.name for gpu in gpus}
    nvidia = [gpu for gpu in tree.get("nvlink", {}).get("gpus", ()) if gpu["pci"] in names]
    # What has no GPU of this node at its other end leads to a switch, which a virtual machine may hide.
    links, switched = connected(
        (names[gpu["pci"]], names.get(link.get("to")), 1)
        for gpu in nvidia
        for link in gpu["links"]
        if link["up"]
    )
    rate = max((gpu.get("rate", 0.0) for gpu in nvidia), default=0.0) or NVLINK
    return NodeHardware(
        name, domains, (*gpus, *_nics(tree, domains)), links, switched, "NV", rate,
        tuple(_unread(tree, gpus)),
    )  # fmt: skip


def _domains(cpu: Mapping[str, Any]) -> Iterator[NumaDomain]:
    sockets = {
        each: socket["socket"]
        for socket in cpu.get("sockets", ())
        for each in numbers(socket["cpus"])
    }
    firsts = {numbers(core)[0] for core in cpu.get("cores", ())}
    whole = [{"node": 0, "cpus": cpu.get("online", "")}]
    for node in cpu.get("nodes", whole):
        cpus = tuple(numbers(node["cpus"]))
        socket = sockets.get(cpus[0]) if cpus else None
        distances = tuple(node.get("distances", ()))
        cores, memory = len(firsts & set(cpus)), node.get("bytes", 0)
        yield NumaDomain(node["node"], cpus, socket, cores, memory, distances)


def _domain(device: Mapping[str, Any], domains: Sequence[NumaDomain]) -> int | None:
    """Return the NUMA node of a device; the kernel says -1 in virtual machines, and if there is only one."""
    if device.get("node", -1) >= 0:
        return int(device["node"])
    return domains[0].number if len(domains) == 1 else None


def _gpus(tree: Mapping[str, Any], domains: Sequence[NumaDomain]) -> Iterator[Component]:
    names = {gpu["pci"]: gpu["name"] for gpu in tree.get("nvlink", {}).get("gpus", ())}
    for number, device in enumerate(filter(is_gpu, tree.get("pci", {}).get("devices", ()))):
        vendor, at = device["vendor"], device["address"]
        words = names.get(at) or f"{VENDORS.get(vendor, vendor)} {device['device']}"
        yield Component(
            f"GPU{number}", "gpu", at, tuple(device["path"]), _domain(device, domains), words, lanes(device)
        )  # fmt: skip


def is_gpu(device: Mapping[str, Any]) -> bool:
    """Whether a device on PCI computes: an accelerator, or a display of a maker whose displays do."""
    kind = device["class"]
    shows = kind.startswith("0x03") and device["vendor"] in _DISPLAY
    return shows or _ACCELERATOR.match(kind) is not None


def lanes(device: Mapping[str, Any]) -> str:
    """Return the best connection that a device can have: an idle one lowers its speed."""
    generation = GENERATIONS.get(device.get("max_speed", 0.0))
    return f"PCIe {generation} x{device['width']}" if generation and device.get("width") else ""


def _nics(tree: Mapping[str, Any], domains: Sequence[NumaDomain]) -> Iterator[Component]:
    devices = {device["address"]: device for device in tree.get("pci", {}).get("devices", ())}
    ports = tree.get("infiniband", {}).get("ports", ())
    interfaces = tree.get("network", {}).get("devices", ())
    several = Counter(port["device"] for port in ports)
    adapters = [
        (
            f"{port['device']}:{port['port']}" if several[port["device"]] > 1 else port["device"],
            port.get("pci"),
            port.get("rate", 0.0) if port.get("state") == "ACTIVE" else 0.0,
            f"{port.get('link_layer', 'RDMA')} {port.get('generation', '')} {port.get('state', '')}",
        )
        for port in ports
    ]
    rdma = {port.get("pci") for port in ports}
    adapters += [
        (
            each["name"],
            each.get("pci"),
            each.get("speed", 0) / 1000 if each.get("state") == "up" else 0.0,
            f"interface {each.get('state', '')}",
        )
        for each in interfaces
        if each.get("pci") not in rdma
    ]
    for name, at, rate, words in adapters:
        device = devices.get(at)
        if device is not None and not device.get("virtual"):
            yield Component(
                name, "nic", at, tuple(device["path"]), _domain(device, domains),
                " ".join(words.split()), lanes(device), rate,
            )  # fmt: skip


def _unread(tree: Mapping[str, Any], gpus: Sequence[Component]) -> Iterator[str]:
    for source in ("cpu", "pci", "network"):
        for fact, why in tree.get(source, {}).get("unread", {}).items():
            if fact in ("", "cores", "sockets", "nodes", "devices"):
                yield f"{source} {fact}: {why}".replace(" :", ":")
    why = tree.get("nvlink", {}).get("unread", {}).get("gpus")
    if why and any(gpu.words.startswith("NVIDIA") for gpu in gpus):
        yield f"NVLink: {why}"
