"""NCCL's files about a node: topology (NCCL_TOPO_DUMP_FILE), graphs (NCCL_GRAPH_DUMP_FILE).

RCCL writes the same. The meaning of elements and attributes is in NCCL's sources, graph/xml.cc and
include/graph.h. `hpccomm.tools.doctor.topo` shows them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as ET

from hpccomm.errors import UsageError
from hpccomm.results.files import read_text
from hpccomm.tools.doctor.hardware.facts import (
    NVLINK,
    NVLINK_5,
    XGMI,
    Component,
    NodeHardware,
    NumaDomain,
    connected,
    lanes,
)
from hpccomm.units import grouped

PATTERNS = {
    1: ("balanced tree", "the 1st GPU meets the parent and one child, the 2nd GPU the other child"),
    2: ("split tree", "the 1st GPU meets the parent, the 2nd GPU the children"),
    3: ("tree", "the 1st GPU meets the parent and the children"),
    4: ("ring", "the data enters the node by the 1st NIC and leaves it by the last"),
    5: ("NVLS", "the switches reduce; each channel has its GPU"),
    6: ("NVLS tree", "the switches reduce inside the nodes, trees between them"),
    7: ("CollNet", "the network reduces; each channel has its GPUs"),
}
"""Names of the patterns of a graph, and how data passes (include/graph.h and graph/connect.cc of NCCL)."""


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """One graph: the ways that NCCL found through a node for one algorithm.

    Attributes
    ----------
    name, meaning : str
        Of its pattern.
    inside, outside : tuple
        The GB/s of a channel, and the letters of the longest connection, in the node and to the network.
    channels : tuple of tuple of str
        For each channel the parts that it passes, such as ``NIC 0`` and ``GPU 3``.
    """

    name: str
    meaning: str
    inside: tuple[float, str]
    outside: tuple[float, str]
    channels: tuple[tuple[str, ...], ...]

    @property
    def ring(self) -> bool:
        """Whether the last part passes on to the first."""
        return self.name == "ring"

    def alike(self) -> dict[tuple[str, ...], list[int]]:
        """Return the numbers of equal channels, by their stops."""
        return grouped((channel, number) for number, channel in enumerate(self.channels))


def read_graphs(file: Path) -> list[NcclGraph]:
    """Return the graphs of a file that have channels.

    Raises
    ------
    UsageError
        If it is another file.
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
    """Return the node that a topology describes. One of several hosts has their NUMA nodes one after the other.

    Raises
    ------
    UsageError
        If it is another file.
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
    """Yield the GPUs and NICs below an element; `above` has inherited attributes."""
    for number, part in enumerate(element):
        get = part.get
        if part.tag == "pci":
            at, path = get("busid", ""), above.path
            # NCCL writes the upper port of each switch; the lower one leads to the elements below.
            port = (f"{path[-1]} to {at}",) if len(path) > 1 else ()
            kind = "nic" if get("class", "").startswith("0x02") else "gpu"
            own = replace(above, kind=kind, address=at, path=(*path, *port, at), lanes=_lanes(part))
            below = list(_below(part, own))
            # A file for virtual machines has no more than this.
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
    """Give the top element of a file; raise if NCCL has not written it."""
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
