"""The hardware of nodes, and NCCL's graphs, as text; a cluster of such nodes, as ``hpccomm simulate`` reads it.

`hpccomm topo` prints it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpccomm.memory.cuda.library import LANE
from hpccomm.schedules.cost.network import dump, typical
from hpccomm.tools.doctor.hardware.facts import LETTERS, Component, NodeHardware, rank
from hpccomm.tools.doctor.hardware.nccl_files import NcclGraph
from hpccomm.units import counted, ranges


def lines(node: NodeHardware, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines about a node: its NUMA nodes, the matrix with its legend, the components.

    Parameters
    ----------
    node : NodeHardware
        Its hardware.
    names : sequence of str
        The names of all such nodes; by default its own.
    """
    yield f"{', '.join(names or [node.name])}: {summary(node)}"
    for domain in node.domains:
        parts = ", ".join(each.name for each in node.inside(domain.number))
        inside = f"; {parts}" if parts else ""
        socket = "" if domain.socket is None else f"socket {domain.socket}, "
        memory = f", {domain.memory / 2**30:.0f} GiB" if domain.memory else ""
        cpus = f"CPUs {ranges(domain.cpus) or 'none'}"
        yield f"  NUMA {domain.number}: {socket}{cpus}{memory}{inside}"
    if node.components:
        yield ""
        yield from table(node)
        yield ""
        for each in node.components:
            yield f"  {each.name}: {', '.join(known(node, each, each.words))}"
    for why in node.unread:
        yield f"  not known: {why}"


def known(node: NodeHardware, each: Component, *words: str) -> list[str]:
    """Return the known facts of a component, with words after its address."""
    rate = f"{each.rate:g} Gb/s" if each.rate else ""
    return [fact for fact in (each.address, *words, each.lanes, rate, linked(node, each)) if fact]


def linked(node: NodeHardware, gpu: Component) -> str:
    """Return the number of a GPU's NVLinks as text; empty without any."""
    kind = "NVLinks" if node.link_kind == "NV" else node.link_kind
    if gpu.name in node.switched:
        return f"{node.switched[gpu.name]} {kind} to switches"
    count = sum(node.links.get(gpu.name, {}).values())
    return f"{count} {kind}" if count else ""


def summary(node: NodeHardware) -> str:
    """Return the parts of a node, in numbers."""
    counts = {
        "sockets": len({domain.socket for domain in node.domains} - {None}),
        "NUMA nodes": len(node.domains),
        "cores": sum(domain.cores for domain in node.domains),
        "CPUs": sum(len(domain.cpus) for domain in node.domains),
        "GPUs": len(node.of_kind("gpu")),
        "NICs": len(node.of_kind("nic")),
    }
    return ", ".join(
        f"{count} {what if count > 1 else what[:-1]}" for what, count in counts.items() if count
    )


def table(node: NodeHardware) -> Iterator[str]:
    """Yield the matrix of `NodeHardware.between`, in the form of ``nvidia-smi topo -m``, and what its letters mean."""
    domains = {domain.number: domain for domain in node.domains}
    matrix = node.matrix()
    rows = [["", *(each.name for each in node.components), "CPU Affinity", "NUMA"]]
    for each, letters in zip(node.components, matrix, strict=True):
        home = domains.get(each.domain if each.domain is not None else -1)
        near = [ranges(home.cpus), str(home.number)] if home else ["", "unknown"]
        rows.append([each.name, *letters, *near])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  " + "  ".join(padded).rstrip()
    used = {rank(letters) for row in matrix for letters in row}
    yield ""
    for at, (key, meaning) in enumerate(LETTERS.items()):
        if at in used:
            yield f"  {key:4} = {meaning}"


def graph_lines(graphs: Sequence[NcclGraph]) -> Iterator[str]:
    """Yield the lines about graphs of NCCL: each way through the node once, with its channels."""
    for graph in graphs:
        (inside, near), (outside, far) = graph.inside, graph.outside
        ways = f"{graph.name}: {counted(len(graph.channels), 'channel')}"
        network = f", {outside:g} GB/s to the network ({far})" if leaves(graph) else ""
        yield f"{ways} of {inside:g} GB/s inside the node ({near}){network}"
        if graph.meaning and (leaves(graph) or not graph.ring):
            yield f"  {graph.meaning}"
        for passed, channels in graph.alike().items():
            way = " -> ".join(passed) + (f" -> {passed[0]}" if is_closed(graph, passed) else "")
            yield f"  {numbered(channels)}: {way}"


def numbered(channels: Sequence[int]) -> str:
    """Return the numbers of channels in words."""
    return f"channel{'s' * (len(channels) > 1)} {ranges(channels)}"


def leaves(graph: NcclGraph) -> bool:
    """Whether a graph has network adapters."""
    return any(part.startswith("NIC") for channel in graph.channels for part in channel)


def is_closed(graph: NcclGraph, passed: Sequence[str]) -> bool:
    """Whether a channel is a ring inside the node."""
    return graph.ring and len(passed) > 1 and not passed[0].startswith("NIC")


INSIDE = 0.8
"""Fraction of the rate of NVLink and PCI Express that carries data: see the sources in ``nvlink8.toml``."""

OUTSIDE = 0.98
"""Fraction of a network's rate that carries data, in packets with 4 KiB of it."""


def described(node: NodeHardware, nodes: int, per_node: int) -> str:
    """Return the description of a cluster of equal nodes, in TOML.

    Bandwidths and ports are those of its links and adapters. Latencies, and the speeds of folding
    and copying, are the assumptions of ``auto``.

    Parameters
    ----------
    node : NodeHardware
        What each node is made of.
    nodes, per_node : int
        Nodes, and ranks of each.
    """
    base = "typical_gpus" if node.of_kind("gpu") else "typical"
    assumed = typical(base)
    # Two nodes at least: their connection stands in the file, for a simulation with --ranks.
    network = assumed.placed(max(nodes, 2) * per_node, per_node, assumed)
    inner, across = network.inner, network.across
    speed = inside(node)
    if inner is not None and speed:
        inner = replace(inner, bandwidth=speed)
    rates = [nic.rate for nic in node.of_kind("nic") if nic.rate]
    if across is not None and rates:
        ports = min(rates.count(max(rates)), per_node)
        bandwidth = max(rates) * 1e9 / 8 * OUTSIDE
        across = replace(across, bandwidth=bandwidth, ports=ports)
    known = [what for what, value in (("inside", speed), ("between nodes", rates)) if value]
    sources = f"bandwidth {' and '.join(known)} of its hardware, the rest" if known else "all"
    what = f"{nodes} x {node.name}: {sources} as {base}"
    ranks = nodes * per_node
    return dump(replace(network, ranks=ranks, inner=inner, across=across, description=what))


def inside(node: NodeHardware) -> float:
    """Return the B/s of a GPU to the others of its node, in one direction; 0 if unknown."""
    gpus = node.of_kind("gpu")
    if not gpus:
        return 0.0
    name = gpus[0].name
    links = node.switched.get(name, 0) or sum(node.links.get(name, {}).values())
    if links:
        return links * node.link_rate * 1e9 * INSIDE
    lanes = re.fullmatch(r"PCIe (\d) x(\d+)", gpus[0].lanes)
    return LANE[int(lanes[1])] * int(lanes[2]) * 1e9 * INSIDE if lanes else 0.0
