"""The files that NCCL writes about a node: its topology (NCCL_TOPO_DUMP_FILE), its graphs (NCCL_GRAPH_DUMP_FILE).

RCCL writes the same. What elements and attributes mean is in NCCL's sources, graph/xml.cc and include/graph.h.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from hpccomm.errors import UsageError
from hpccomm.files.regular import read_text
from hpccomm.hardware.facts import GENERATIONS, NVLINK, XGMI
from hpccomm.hardware.node import Component, NodeHardware, NumaDomain

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
        """Return the numbers of the channels that are alike, by what they pass."""
        found: dict[tuple[str, ...], list[int]] = {}
        for number, channel in enumerate(self.channels):
            found.setdefault(channel, []).append(number)
        return found


def read_graphs(file: Path) -> list[NcclGraph]:
    """Return the graphs of a file that have channels.

    Raises
    ------
    UsageError
        If it is none.
    """
    graphs = []
    for graph in _root(file, "graphs", "NCCL_GRAPH_DUMP_FILE").iter("graph"):
        name, meaning = PATTERNS.get(int(graph.get("pattern", 0)), ("unknown pattern", ""))
        inside, outside = (
            (float(graph.get(f"speed{where}", 0)), graph.get(f"type{where}", "?"))
            for where in ("intra", "inter")
        )
        channels = tuple(
            tuple(f"{_PARTS.get(part.tag, part.tag)} {part.get('dev')}" for part in channel)
            for channel in graph.iter("channel")
        )
        if channels:
            graphs.append(NcclGraph(name, meaning, inside, outside, channels))
    return graphs


_PARTS = {"gpu": "GPU", "net": "NIC"}


def read_topology(file: Path) -> NodeHardware:
    """Return the node that a topology describes. One of several hosts has their NUMA nodes one after the other.

    Raises
    ------
    UsageError
        If it is none.
    """
    processors = _root(file, "system", "NCCL_TOPO_DUMP_FILE").findall("cpu")
    hosts = len({cpu.get("host_hash") for cpu in processors})
    domains: list[NumaDomain] = []
    found: list[tuple[Component, ET.Element]] = []
    for at, cpu in enumerate(processors):
        number = int(cpu.get("numaid", -1)) if hosts == 1 else at
        domains.append(NumaDomain(number, _cpus(cpu.get("affinity", ""))))
        found += _below(cpu, (f"cpu {number}",), number, "", "")
    components = _named([component for component, _ in found])
    gpus = {each.address: each.name for each in components if each.kind == "gpu"}
    links, switched, kind = Counter[tuple[str, str]](), Counter[str](), "NV"
    for component, (_, element) in zip(components, found, strict=True):
        for link in (*element.iter("nvlink"), *element.iter("xgmi")):
            to, count = link.get("target", ""), int(link.get("count", 1))
            if to in gpus:
                links[component.name, gpus[to]] += count
                kind = "XGMI" if link.tag == "xgmi" else kind
            elif link.get("tclass", "").startswith("0x0680"):
                switched[component.name] += count
    components.sort(key=lambda each: (each.kind, _natural(each.name)))
    domains.sort(key=lambda each: each.number)
    new = any(each.words.startswith("sm_1") for each in components)  # Blackwell and later
    rate = XGMI if kind == "XGMI" else NVLINK[5 if new else 4]
    return NodeHardware(file.name, tuple(domains), tuple(components), links, switched, kind, rate)


def _below(
    element: ET.Element, path: tuple[str, ...], domain: int, lanes: str, address: str
) -> Iterator[tuple[Component, ET.Element]]:
    """Yield the GPUs and NICs below an element, each with its own."""
    for number, part in enumerate(element):
        if part.tag == "pci":
            at, kind = part.get("busid", ""), part.get("class", "")
            # NCCL writes the upper port of each switch; the lower one is between it and what is below.
            port = (f"{path[-1]} to {at}",) if len(path) > 1 else ()
            here = (*path, *port, at)
            found = list(_below(part, here, domain, _lanes(part), at))
            if not found and kind.startswith(
                ("0x03", "0x02", "0x12")
            ):  # a file for virtual machines
                which = "nic" if kind.startswith("0x02") else "gpu"
                found = [(Component("", which, at, here, domain, "", _lanes(part)), part)]
            yield from found
        elif part.tag == "gpu":
            kind = f"gfx{part.get('gcn')}" if part.get("gcn") else f"sm_{part.get('sm')}"
            words = f"{kind}, rank {part.get('rank', '?')}"
            yield (
                Component(f"GPU{part.get('dev')}", "gpu", address, path, domain, words, lanes),
                part,
            )
        elif part.tag == "nic":
            here = path if address else (*path, f"nic {number}")
            yield from _below(part, here, domain, lanes, address)
        elif part.tag == "net":
            rate = float(part.get("speed", 0)) / 1000
            words = f"port {part.get('port', '?')}, GPUDirect {'yes' if part.get('gdr') == '1' else 'no'}"
            name = part.get("name") or f"NIC{part.get('dev')}"
            yield Component(name, "nic", address, path, domain, words, lanes, rate), part


def _named(components: list[Component]) -> list[Component]:
    """Name those that have no name, and tell apart those that share one."""
    seen = Counter[str]()
    result = []
    for each in components:
        name = each.name
        if not name:
            seen[each.kind] += 1
            name = f"{each.kind.upper()}{seen[each.kind] - 1}"
        seen[name] += 1
        result.append(
            dataclasses.replace(each, name=name if seen[name] == 1 else f"{name}.{seen[name]}")
        )
    return result


def _cpus(affinity: str) -> tuple[int, ...]:
    """Return the CPUs of a mask: words of 32 bits in hexadecimal, the highest first."""
    mask = int(affinity.replace(",", "") or "0", 16)
    return tuple(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)


def _lanes(part: ET.Element) -> str:
    speed = re.match(r"[\d.]+", part.get("link_speed", ""))
    generation = GENERATIONS.get(float(speed[0])) if speed else None
    return f"PCIe {generation} x{part.get('link_width')}" if generation else ""


def _natural(name: str) -> list[tuple[str, int]]:
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def _root(file: Path, tag: str, variable: str) -> ET.Element:
    try:
        root = ET.fromstring(read_text(str(file)))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read {file}: {why}; give a file that NCCL wrote") from None
    except ET.ParseError as error:
        raise UsageError(
            f"{file} is not XML: {error}; give a file that NCCL wrote ({variable}=FILE)"
        ) from None
    if root.tag != tag:
        other = {"graphs": "--nccl-graph reads it", "system": "--nccl-topo reads it"}
        advice = other.get(root.tag, f"give a file that NCCL wrote ({variable}=FILE)")
        raise UsageError(f"{file} has <{root.tag}> at its top, where <{tag}> is expected; {advice}")
    return root
