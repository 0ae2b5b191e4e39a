"""The hardware of one node: components, and their connections by nvidia-smi's letters.

`hardware` makes it from the facts that the doctor reads, `read_topology` from NCCL's topology file
(NCCL_TOPO_DUMP_FILE). `read_graphs` reads NCCL's graphs (NCCL_GRAPH_DUMP_FILE). RCCL writes the same files. The meaning
of elements and attributes is in NCCL's sources, graph/xml.cc and include/graph.h.

`hpccomm topo` and some rules of the doctor use it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from hpccomm.errors import UsageError
from hpccomm.results.files import read_text
from hpccomm.units import grouped, numbers

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
        The kernel's number of it.
    cpus : tuple of int
        Its hardware threads.
    socket : int or None
        Its processor; None if unknown.
    cores : int
        Number of its cores; 0 if unknown.
    memory : int
        Bytes of its memory; 0 if unknown.
    distances : tuple of int
        The kernel's distance to each NUMA node, in their order; 10 to itself.
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
        Its address on PCI.
    path : tuple of str
        The host bridge, all bridges below it, and the component. A switch is two bridges: the port towards the
        processor, and the port towards the component.
    domain : int or None
        The number of its NUMA node; None if unknown.
    words : str
        Its description.
    lanes : str
        Its connection, such as ``PCIe 4 x16``; empty if unknown.
    rate : float
        Gb/s of an adapter that is up; 0 if unknown.
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
        Name of the host or of the file.
    domains : tuple of NumaDomain
        NUMA nodes in the order of their numbers.
    components : tuple of Component
        GPUs, then network adapters.
    links : mapping
        Number of links (NVLink or AMD's) that lead from a GPU directly to another, by the names of both.
    switched : mapping
        Number of links of a GPU that lead to switches, by its name.
    link_kind : str
        Kind of the links: ``NV`` or ``XGMI``.
    link_rate : float
        Rate of one link in one direction, in 1e9 B/s.
    unread : tuple of str
        Unknown facts, with the reasons.
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

    def link_count(self, gpu: Component) -> tuple[int, bool]:
        """Return the number of a GPU's links, and whether they lead to switches."""
        switched = self.switched.get(gpu.name, 0)
        return switched or sum(self.links.get(gpu.name, {}).values()), switched > 0

    def between(self, one: Component, other: Component) -> str:
        """Return the letters for the connection of two components."""
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
        """Return the other components of a kind that are nearest to `one`: several if they are equally near."""
        near = {each: rank(self.between(one, each)) for each in self.of_kind(kind) if each != one}
        return [each for each, far in near.items() if far == min(near.values())]


def connected(
    ends: Iterable[tuple[str, str | None, int]],
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Return `NodeHardware.links` and `NodeHardware.switched`.

    Each entry of `ends` is a GPU's name, the GPU at the other end (None: a switch), and a number of links.
    """
    links: dict[str, dict[str, int]] = {}
    switched: dict[str, int] = {}
    for own, to, count in ends:
        into, name = (switched, own) if to is None else (links.setdefault(own, {}), to)
        into[name] = into.get(name, 0) + count
    return links, switched


def rank(letters: str) -> int:
    """Return the distance for which letters stand: their place in `LETTERS`."""
    return list(LETTERS).index("NV#" if letters.startswith("NV") else letters)


def shared_path(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of bridges that two paths have in common, from the host bridge on."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


SOURCES = ("cpu", "pci", "network", "infiniband", "nvlink")
"""The sources of the doctor that `hardware` needs."""

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}

_ACCELERATOR = re.compile(r"0x(0302|0380|12)")
_DISPLAY = ("0x10de", "0x1002")
"""Makers whose display devices compute; the display of a server's management controller does not."""

NVLINK, NVLINK_5, XGMI = 25.0, 50.0, 50.0
"""1e9 B/s of one link in one direction: NVLink 2 to 4, NVLink 5, and AMD's of an MI200 (their data sheets)."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Generation of PCI Express, by GT/s."""


def hardware(name: str, tree: Mapping[str, Any]) -> NodeHardware:
    """Return the hardware of a node.

    Parameters
    ----------
    name : str
        The host's name.
    tree : mapping
        The host's facts, by source.
    """
    domains = tuple(_domains(tree.get("cpu", {})))
    devices = tree.get("pci", {}).get("devices", ())
    linked = {gpu["pci"]: gpu for gpu in tree.get("nvlink", {}).get("gpus", ())}
    # The kernel says -1 for the NUMA node in virtual machines, and if there is only one.
    only = domains[0].number if len(domains) == 1 else None

    def component(name: str, kind: str, device: Any, words: str, rate: float = 0.0) -> Component:
        at, path, node = device["address"], tuple(device["path"]), device.get("node", -1)
        domain = int(node) if node >= 0 else only
        return Component(name, kind, at, path, domain, words, lanes(device), rate)

    gpus = []
    for number, device in enumerate(filter(is_gpu, devices)):
        words = linked.get(device["address"], {}).get("name") or _model(device)
        gpus.append(component(f"GPU{number}", "gpu", device, words))
    real = {each["address"]: each for each in devices if not each.get("virtual")}
    nics = [
        component(nic, "nic", real[at], " ".join(words.split()), rate)
        for nic, at, words, rate in _adapters(tree)
        if at in real
    ]
    names = {gpu.address: gpu.name for gpu in gpus}
    nvidia = [gpu for at, gpu in linked.items() if at in names]
    # A link without a GPU of this node at its other end leads to a switch, which a virtual machine may hide.
    links, switched = connected(
        (names[gpu["pci"]], names.get(link.get("to")), 1)
        for gpu in nvidia
        for link in gpu["links"]
        if link["up"]
    )
    rate = max((gpu.get("rate", 0.0) for gpu in nvidia), default=0.0) or NVLINK
    unread = tuple(_unread(tree, gpus))
    return NodeHardware(name, domains, (*gpus, *nics), links, switched, "NV", rate, unread)


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


def _model(device: Mapping[str, Any]) -> str:
    return f"{VENDORS.get(device['vendor'], device['vendor'])} {device['device']}"


def is_gpu(device: Mapping[str, Any]) -> bool:
    """Whether a device on PCI computes: an accelerator, or a display of a maker whose displays do."""
    kind = device["class"]
    shows = kind.startswith("0x03") and device["vendor"] in _DISPLAY
    return shows or _ACCELERATOR.match(kind) is not None


def lanes(device: Mapping[str, Any]) -> str:
    """Return the fastest connection of a device in words. Idle devices lower their speed."""
    generation = GENERATIONS.get(device.get("max_speed", 0.0))
    return f"PCIe {generation} x{device['width']}" if generation and device.get("width") else ""


def _adapters(tree: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str, float]]:
    """Yield name, address, description and Gb/s of ports of RDMA, and of interfaces whose device has none."""
    ports = tree.get("infiniband", {}).get("ports", ())
    several = Counter(port["device"] for port in ports)
    for port in ports:
        name, state = port["device"], port.get("state", "")
        name += f":{port['port']}" if several[name] > 1 else ""
        words = f"{port.get('link_layer', 'RDMA')} {port.get('generation', '')} {state}"
        yield name, port.get("pci"), words, port.get("rate", 0.0) if state == "ACTIVE" else 0.0
    rdma = {port.get("pci") for port in ports}
    for each in tree.get("network", {}).get("devices", ()):
        state = each.get("state", "")
        if each.get("pci") not in rdma:
            rate = each.get("speed", 0) / 1000 if state == "up" else 0.0
            yield each["name"], each.get("pci"), f"interface {state}", rate


def _unread(tree: Mapping[str, Any], gpus: Sequence[Component]) -> Iterator[str]:
    for source in ("cpu", "pci", "network"):
        for fact, why in tree.get(source, {}).get("unread", {}).items():
            if fact in ("", "cores", "sockets", "nodes", "devices"):
                yield f"{source} {fact}: {why}".replace(" :", ":")
    why = tree.get("nvlink", {}).get("unread", {}).get("gpus")
    if why and any(gpu.words.startswith("NVIDIA") for gpu in gpus):
        yield f"NVLink: {why}"


PATTERNS = {
    1: ("balanced tree", "the 1st GPU meets the parent and one child, the 2nd GPU the other child"),
    2: ("split tree", "the 1st GPU meets the parent, the 2nd GPU the children"),
    3: ("tree", "the 1st GPU meets the parent and the children"),
    4: ("ring", "the data enters the node by the 1st NIC and leaves it by the last"),
    5: ("NVLS", "the switches reduce; each channel has its GPU"),
    6: ("NVLS tree", "the switches reduce inside the nodes, trees between them"),
    7: ("CollNet", "the network reduces; each channel has its GPUs"),
}
"""Name of each pattern of a graph, and the path of the data in it (include/graph.h and graph/connect.cc of NCCL)."""


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """One graph: the paths that NCCL found through a node for one algorithm.

    Attributes
    ----------
    name, meaning : str
        Name of its pattern, and the path of the data in it.
    inside, outside : tuple of float and str
        GB/s of a channel and letters of its longest connection, inside the node and to the network.
    channels : tuple of tuple of str
        The parts that each channel passes, such as ``NIC 0`` and ``GPU 3``.
    """

    name: str
    meaning: str
    inside: tuple[float, str]
    outside: tuple[float, str]
    channels: tuple[tuple[str, ...], ...]

    @property
    def ring(self) -> bool:
        """Whether the last part passes data on to the first."""
        return self.name == "ring"

    def alike(self) -> dict[tuple[str, ...], list[int]]:
        """Return the numbers of equal channels, by the parts that they pass."""
        return grouped((channel, number) for number, channel in enumerate(self.channels))


def read_graphs(file: Path) -> list[NcclGraph]:
    """Return the graphs of a file that have channels.

    Raises
    ------
    UsageError
        If NCCL has not written the file, or it is a topology file.
    """
    with _reading(file, "graphs", "NCCL_GRAPH_DUMP_FILE") as root:
        graphs = [_graph(graph) for graph in root.iter("graph")]
    return [graph for graph in graphs if graph.channels]


def _graph(graph: ET.Element) -> NcclGraph:
    parts = {"gpu": "GPU", "net": "NIC"}
    inside, outside = (
        (float(graph.get(f"speed{where}", 0)), graph.get(f"type{where}", "?"))
        for where in ("intra", "inter")
    )
    channels = tuple(
        tuple(f"{parts.get(part.tag, part.tag)} {part.get('dev')}" for part in channel)
        for channel in graph.iter("channel")
    )
    known = PATTERNS.get(int(graph.get("pattern", 0)), ("unknown pattern", ""))
    return NcclGraph(*known, inside, outside, channels)


def read_topology(file: Path) -> NodeHardware:
    """Return the node that a topology file describes. If it has several hosts, the node has the NUMA nodes of all.

    Raises
    ------
    UsageError
        If NCCL has not written the file, or it is a graph file.
    """
    with _reading(file, "system", "NCCL_TOPO_DUMP_FILE") as root:
        return _topology(file.name, root.findall("cpu"))


def _topology(name: str, processors: Sequence[ET.Element]) -> NodeHardware:
    hosts = len({cpu.get("host_hash") for cpu in processors})
    domains: list[NumaDomain] = []
    parts: list[tuple[Component, ET.Element]] = []
    for at, cpu in enumerate(processors):
        number = int(cpu.get("numaid", -1)) if hosts == 1 else at
        domains.append(NumaDomain(number, _cpus(cpu.get("affinity", ""))))
        parts += _below(cpu, Component("", "", "", (f"cpu {number}",), number))
    components = _named([component for component, _ in parts])
    gpus = {each.address: each.name for each in components if each.kind == "gpu"}
    ends = [
        (component.name, link)
        for component, (_, element) in zip(components, parts, strict=True)
        for link in (*element.iter("nvlink"), *element.iter("xgmi"))
        if link.get("target") in gpus or link.get("tclass", "").startswith("0x0680")
    ]
    links, switched = connected(
        (own, gpus.get(link.get("target", "")), int(link.get("count", 1))) for own, link in ends
    )
    kind = "XGMI" if any(link.tag == "xgmi" for _, link in ends) else "NV"
    components.sort(key=lambda each: (each.kind, _natural(each.name)))
    domains.sort(key=lambda each: each.number)
    new = any(each.words.startswith("sm_1") for each in components)  # Blackwell and later
    rate = XGMI if kind == "XGMI" else NVLINK_5 if new else NVLINK
    return NodeHardware(name, tuple(domains), tuple(components), links, switched, kind, rate)


def _below(element: ET.Element, above: Component) -> Iterator[tuple[Component, ET.Element]]:
    """Yield the GPUs and NICs below an element. `above` holds the attributes that they inherit."""
    for number, part in enumerate(element):
        get = part.get
        if part.tag == "pci":
            at, path = get("busid", ""), above.path
            # NCCL writes the upper port of each switch; the lower one leads to the elements below.
            port = (f"{path[-1]} to {at}",) if len(path) > 1 else ()
            kind = "nic" if get("class", "").startswith("0x02") else "gpu"
            own = replace(above, kind=kind, address=at, path=(*path, *port, at), lanes=_lanes(part))
            below = list(_below(part, own))
            # In a file for virtual machines, GPUs and NICs are elements without others below.
            alone = not below and re.match("0x(02|03|12)", get("class", ""))
            yield from [(own, part)] if alone else below
        elif part.tag == "gpu":
            sort = f"gfx{get('gcn')}" if get("gcn") else f"sm_{get('sm')}"
            words = f"{sort}, rank {get('rank', '?')}"
            yield replace(above, kind="gpu", name=f"GPU{get('dev')}", words=words), part
        elif part.tag == "nic":
            path = above.path if above.address else (*above.path, f"nic {number}")
            yield from _below(part, replace(above, path=path))
        elif part.tag == "net":
            words = f"port {get('port', '?')}, GPUDirect {'yes' if get('gdr') == '1' else 'no'}"
            name, rate = get("name") or f"NIC{get('dev')}", float(get("speed", 0)) / 1000
            yield replace(above, kind="nic", name=name, words=words, rate=rate), part


def _named(components: Sequence[Component]) -> list[Component]:
    """Name unnamed components, and number those with the same name."""
    seen, result = Counter[str](), []
    for each in components:
        name = each.name or f"{each.kind.upper()}{seen[each.kind]}"
        seen.update((each.kind, name))
        result.append(replace(each, name=name if seen[name] == 1 else f"{name}.{seen[name]}"))
    return result


def _cpus(affinity: str) -> tuple[int, ...]:
    """Return the CPUs of a mask: words of 32 bits in hexadecimal, the highest first."""
    mask = int(affinity.replace(",", "") or "0", 16)
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _lanes(part: ET.Element) -> str:
    speed = re.match(r"[\d.]+", part.get("link_speed", ""))
    return lanes({"max_speed": float(speed[0]) if speed else 0.0, "width": part.get("link_width")})


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


@contextmanager
def _reading(file: Path, tag: str, variable: str) -> Iterator[ET.Element]:
    """Yield the top element of a file; raise if NCCL has not written it, or its tag is another one."""
    advice = f"give a file that NCCL wrote ({variable}=FILE)"
    try:
        root = ET.fromstring(read_text(file))
        if root.tag == tag:
            yield root
    except (OSError, ValueError, ET.ParseError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{file} cannot be read: {why}; {advice}") from error
    if root.tag != tag:
        other = {"graphs": "--nccl-graph reads it", "system": "--nccl-topo reads it"}
        raise UsageError(
            f"{file} has <{root.tag}> at its top, where <{tag}> is expected; "
            f"{other.get(root.tag, advice)}"
        )
