"""Show sockets, NUMA nodes, cores, GPUs and network adapters of a node, and what connects them.

The table is nvidia-smi topo -m's. Facts come from sysfs; facts about NVLink come from NVIDIA's
management library (nvidia-ml-py) if installed. Under mpiexec or srun it also shows where each rank
runs, its distance from its GPU and network adapter, and a better binding. It also reads the
topology and graph files that NCCL writes.

Examples
--------
  hpccomm topo
  hpccomm topo --output node.svg
  mpiexec -n 8 hpccomm topo
  hpccomm topo --cluster mine.toml    (then hpccomm simulate all_reduce --cluster mine.toml --ranks 64)
  NCCL_TOPO_DUMP_FILE=t.xml NCCL_GRAPH_DUMP_FILE=g.xml mpiexec -n 8 hpccomm perf all_reduce
  hpccomm topo --nccl-topo t.xml
  hpccomm topo --nccl-graph g.xml --output rings.svg
"""

import argparse
import dataclasses
import math
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import UsageError
from hpccomm.schedules.cost.network import dump, typical
from hpccomm.tools import drawing, flags, output
from hpccomm.tools.doctor import hardware, job
from hpccomm.tools.doctor.hardware import Component, NcclGraph, NodeHardware, NumaDomain
from hpccomm.tools.drawing import Canvas, Place
from hpccomm.tools.flags import JSON, FlagGroup
from hpccomm.tools.nvml import LANE
from hpccomm.units import counted, grouped, numbers, ranges

# The CPUs of a job's ranks, their distance from GPU and adapter, and better bindings.


class BoundRank(NamedTuple):
    """A rank of a job: the CPUs on which it may run, and what is near to them.

    Attributes
    ----------
    rank, local_rank : int
        Its number in the job, and its number on its node.
    host : str
        Name of its node.
    cpus : tuple of int
        The CPUs to which it is bound.
    visible : str
        Its ``CUDA_VISIBLE_DEVICES``; empty if that is not set.
    domains : list of int
        The NUMA nodes of its CPUs.
    gpu, nic : Component or None
        Its GPU and its network adapter: `gpu_of`, `nic_of`.
    """

    rank: int
    local_rank: int
    host: str
    cpus: tuple[int, ...]
    visible: str
    domains: list[int]
    gpu: Component | None
    nic: Component | None


def bound_ranks(
    trees: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, NodeHardware]
) -> list[BoundRank]:
    """Return the ranks of a job, from the facts and the hardware of its nodes."""
    ranks = []
    for host, node in nodes.items():
        for local, each in enumerate(trees[host].get("ranks", ())):
            cpus = tuple(numbers(each["cores"]))
            visible = each.get("variables", {}).get("CUDA_VISIBLE_DEVICES", "")
            domains = [domain.number for domain in node.domains if {*domain.cpus} & {*cpus}]
            gpu = gpu_of(node, local, visible)
            nic = nic_of(node, local, gpu, domains)
            ranks.append(BoundRank(each["rank"], local, host, cpus, visible, domains, gpu, nic))
    return sorted(ranks, key=lambda bound: bound.rank)


def gpu_of(node: NodeHardware, local: int, visible: str = "") -> Component | None:
    """Return the GPU of a rank, as `new_comm` chooses it: by the local rank, among the visible GPUs."""
    gpus = node.of_kind("gpu")
    chosen = [int(word) for word in visible.split(",") if word.isdigit()]
    gpus = [gpus[at] for at in chosen if at < len(gpus)] or gpus
    return gpus[local % len(gpus)] if gpus else None


def nic_of(
    node: NodeHardware, local: int, gpu: Component | None, domains: Sequence[int]
) -> Component | None:
    """Return the network adapter nearest to a rank's GPU, or else to its cores. Ranks share equally near ones."""
    nics = [nic for nic in node.of_kind("nic") if nic.rate] or node.of_kind("nic")
    if gpu is not None:
        near = node.nearest(gpu, "nic")
    else:
        near = [nic for nic in nics if nic.domain in domains]
    nics = [nic for nic in near if nic in nics] or nics
    return nics[local % len(nics)] if nics else None


def distance(own: Sequence[int], part: Component, node: NodeHardware) -> str:
    """Return in words how far a component is from the NUMA nodes `own` of a rank."""
    if part.domain is None or not own:
        return f"{part.name}, NUMA node unknown"
    if part.domain in own:
        some = f" some of them (NUMA {part.domain})" if len(own) > 1 else " them"
        return f"{part.name} beside{some}"
    order = [domain.number for domain in node.domains]
    far = node.domains[order.index(own[0])].distances
    steps = f", distance {far[order.index(part.domain)]}" if len(far) == len(order) else ""
    return f"{part.name} far (NUMA {part.domain}{steps})"


def binding_lines(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield a line for each rank."""
    for bound in ranks:
        own, node = bound.domains, nodes[bound.host]
        near = [distance(own, part, node) for part in (bound.gpu, bound.nic) if part is not None]
        numa = f"NUMA {ranges(own)}" if own else "no NUMA node known"
        cores = f"CPUs {ranges(bound.cpus)} ({numa})"
        yield f"  rank {bound.rank} on {bound.host}: {'; '.join([cores, *near])}"


def wanted(local: int, node: NodeHardware) -> list[int]:
    """Return the best NUMA node for each of the `local` ranks of a node: that of the rank's GPU.

    Without GPUs, ranks are spread over the NUMA nodes that have CPUs.
    """
    spread = [domain.number for domain in node.domains if domain.cpus]
    homes = [spread[number * len(spread) // local] for number in range(local)]
    for number in range(local):
        gpu = gpu_of(node, number)
        if gpu is not None and gpu.domain in spread:
            homes[number] = gpu.domain
    return homes


def better(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield lines about a better binding: commands of mpiexec and srun, or the reason for which none is better."""
    host = ranks[0].host
    node = nodes[host]
    local = [bound for bound in ranks if bound.host == host]
    if sum(bool(domain.cpus) for domain in node.domains) < 2:
        yield "Binding: there is one NUMA node, and all its cores are as near."
        return
    homes = wanted(len(local), node)
    aim = "nearest to its GPU" if node.of_kind("gpu") else "of its turn"
    if all(bound.domains == [home] for bound, home in zip(local, homes, strict=True)):
        yield f"Binding: each rank runs in the NUMA node {aim}."
        return
    yield f"Binding that keeps each rank in the NUMA node {aim}:"
    yield from (f"  {line}" for line in commands(len(ranks), homes, node))


def commands(size: int, homes: Sequence[int], node: NodeHardware) -> tuple[str, str]:
    """Return the command lines of mpiexec and srun that bind the ranks of each node to NUMA nodes.

    Parameters
    ----------
    size : int
        Number of ranks of the job.
    homes : sequence of int
        The NUMA node of each rank of a node.
    node : NodeHardware
        The hardware of each node.
    """
    cpus = {domain.number: ranges(domain.cpus) for domain in node.domains}
    script = (
        f"set -- {' '.join(cpus[home] for home in homes)}; "
        "shift ${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}; exec taskset -c $1 PROGRAM"
    )
    bind = f"--cpu-bind=map_ldom:{','.join(map(str, homes))}"
    return (
        f"mpiexec -n {size} --bind-to none sh -c '{script}'",
        f"srun -n {size} --ntasks-per-node={len(homes)} {bind} PROGRAM",
    )


# The hardware of nodes and NCCL's graphs as text; a cluster of such nodes as a file for ``hpccomm simulate``.


def node_lines(node: NodeHardware, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines about a node: its NUMA nodes, the matrix with its legend, the components.

    Parameters
    ----------
    node : NodeHardware
        The node's hardware.
    names : sequence of str
        Names of all nodes with this hardware; by default the node's own.
    """
    yield f"{', '.join(names or [node.name])}: {summary(node)}"
    for domain in node.domains:
        memory = f", {domain.memory / 2**30:.0f} GiB" if domain.memory else ""
        parts = ", ".join(each.name for each in node.inside(domain.number))
        yield f"  {numa(domain)}{memory}{'; ' if parts else ''}{parts}"
    if node.components:
        yield from ("", *table(node), "")
        for each in node.components:
            yield f"  {each.name}: {', '.join(known(node, each, each.words))}"
    for why in node.unread:
        yield f"  not known: {why}"


def numa(domain: NumaDomain) -> str:
    """Return a NUMA node in words: its number, socket and CPUs."""
    socket = "" if domain.socket is None else f"socket {domain.socket}, "
    return f"NUMA {domain.number}: {socket}CPUs {ranges(domain.cpus) or 'none'}"


def known(node: NodeHardware, each: Component, *words: str) -> list[str]:
    """Return the known facts of a component, with `words` after its address."""
    rate = f"{each.rate:g} Gb/s" if each.rate else ""
    return [fact for fact in (each.address, *words, each.lanes, rate, linked(node, each)) if fact]


def linked(node: NodeHardware, gpu: Component) -> str:
    """Return the number of a GPU's links as text; empty without links."""
    count, switched = node.link_count(gpu)
    kind = "NVLinks" if node.link_kind == "NV" else node.link_kind
    return f"{count} {kind}{' to switches' if switched else ''}" if count else ""


def summary(node: NodeHardware) -> str:
    """Return the numbers of a node's parts as text."""
    counts = {
        "socket": len({domain.socket for domain in node.domains} - {None}),
        "NUMA node": len(node.domains),
        "core": sum(domain.cores for domain in node.domains),
        "CPU": sum(len(domain.cpus) for domain in node.domains),
        "GPU": len(node.of_kind("gpu")),
        "NIC": len(node.of_kind("nic")),
    }
    return ", ".join(counted(count, what) for what, count in counts.items() if count)


def table(node: NodeHardware) -> Iterator[str]:
    """Yield the matrix of `NodeHardware.between` in the form of ``nvidia-smi topo -m``, with the letters' meanings."""
    cpus = {domain.number: ranges(domain.cpus) for domain in node.domains}
    matrix = node.matrix()
    rows = [["", *(each.name for each in node.components), "CPU Affinity", "NUMA"]]
    for each, letters in zip(node.components, matrix, strict=True):
        home = each.domain
        near = ["", "unknown"] if home not in cpus else [cpus[home], str(home)]
        rows.append([each.name, *letters, *near])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        padded = map(str.ljust, cells, widths)
        yield f"  {'  '.join(padded).rstrip()}"
    used = {hardware.rank(letters) for row in matrix for letters in row}
    yield ""
    for at, (key, meaning) in enumerate(hardware.LETTERS.items()):
        if at in used:
            yield f"  {key:4} = {meaning}"


def graph_lines(graphs: Sequence[NcclGraph]) -> Iterator[str]:
    """Yield lines about NCCL's graphs: each path through the node once, with its channels."""
    for graph in graphs:
        (inside, near), (outside, far) = graph.inside, graph.outside
        name = f"{graph.name}: {counted(len(graph.channels), 'channel')}"
        network = f", {outside:g} GB/s to the network ({far})" if leaves(graph) else ""
        yield f"{name} of {inside:g} GB/s inside the node ({near}){network}"
        if graph.meaning and (leaves(graph) or not graph.ring):
            yield f"  {graph.meaning}"
        for passed, channels in graph.alike().items():
            path = " -> ".join(passed) + (f" -> {passed[0]}" if is_closed(graph, passed) else "")
            yield f"  {numbered(channels)}: {path}"


def numbered(channels: Sequence[int]) -> str:
    """Return the numbers of channels in words."""
    return f"channel{'s' * (len(channels) > 1)} {ranges(channels)}"


def leaves(graph: NcclGraph) -> bool:
    """Whether a graph has network adapters."""
    return any(part.startswith("NIC") for channel in graph.channels for part in channel)


def is_closed(graph: NcclGraph, passed: Sequence[str]) -> bool:
    """Whether a channel is a ring that does not leave the node."""
    return graph.ring and len(passed) > 1 and not passed[0].startswith("NIC")


INSIDE = 0.8
"""Fraction of the rate of NVLink and PCI Express that carries data; its sources are in ``nvlink8.toml``."""

OUTSIDE = 0.98
"""Fraction of a network's rate that carries data, if a packet has 4 KiB of data."""


def described(node: NodeHardware, nodes: int, per_node: int) -> str:
    """Return the description of a cluster of equal nodes, in TOML.

    Bandwidths and ports are those of the node's links and adapters. Latencies, and the speeds of folding
    and copying, are the assumptions of ``auto``.

    Parameters
    ----------
    node : NodeHardware
        The hardware of each node.
    nodes, per_node : int
        Number of nodes, and number of ranks on each.
    """
    base = "typical_gpus" if node.of_kind("gpu") else "typical"
    assumed = typical(base)
    # At least two nodes, so that the file has their connection, for a simulation with --ranks.
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
    """Return the B/s from a GPU to the other GPUs of its node, in one direction; 0 if unknown."""
    for gpu in node.of_kind("gpu")[:1]:
        count, _ = node.link_count(gpu)
        if count:
            return count * node.link_rate * 1e9 * INSIDE
        if lanes := re.fullmatch(r"PCIe (\d) x(\d+)", gpu.lanes):
            return LANE[int(lanes[1])] * int(lanes[2]) * 1e9 * INSIDE
    return 0.0


# Pictures of a node's hardware and of NCCL's graphs, for ``--output``.

COLORS = {"gpu": "#b7d7a8", "nic": "#9fc5e8", "bridge": "#eeeeee", "home": "#fbf6ea"}
WIDTH, HEIGHT, SLOT, TITLE, BELOW = 1.25, 0.62, 1.5, 0.3, 0.45
"""Inches: width and height of a component's box, distance of boxes, height of a frame's title, room for NVLink."""

LINK, EDGE, ARROW = "#38761d", "#555555", "#444444"
"""Colors of NVLink, of the edges of boxes, and of arrows."""


def draw(node: NodeHardware) -> str:
    """Return a picture of a node: a frame for each NUMA node, in it frames of bridges, the components, and NVLink.

    Host bridges are drawn, and bridges that lead to several components.

    Returns
    -------
    str
        A document of SVG.
    """
    homes = {numa(each): node.inside(each.number) for each in node.domains}
    if unknown := node.inside(None):
        homes["NUMA node unknown"] = unknown
    homes = {title: sorted(parts, key=lambda each: each.path) for title, parts in homes.items()}
    frames = [_frames(parts) for parts in homes.values()]
    deepest = [max((depth for depth, _ in each.values()), default=0) for each in frames]
    heights = [TITLE * (1 + deep) + (HEIGHT + BELOW) * (deep > 0) for deep in deepest]
    width = max(6.0, SLOT * max(map(len, homes.values()), default=0) + 0.4)
    canvas = Canvas(width, sum(heights) + 0.2 * len(homes) + 0.6)
    canvas.text((0.2, 0.3), f"{node.name}: {summary(node)}", 10)
    top, ends = 0.5, dict[str, Place]()
    for (title, parts), bridges, height in zip(homes.items(), frames, heights, strict=True):
        canvas.box((0.1, top), (width - 0.2, height), COLORS["home"], EDGE, width=0.7, level=0)
        canvas.text((0.2, top + TITLE / 2), title, 8)
        floor = top + height - BELOW
        for path, (depth, slots) in bridges.items():
            inset = 0.03 * depth
            x, y = 0.2 + SLOT * slots[0] + inset, top + TITLE * depth
            size = SLOT * len(slots) - 2 * inset, floor - y + 0.12 - inset
            canvas.box((x, y), size, COLORS["bridge"], EDGE, width=0.7, level=1)
            label = f"{'host bridge' if depth == 1 else 'bridge'} {path[-1]}"
            canvas.text((x + 0.06, y + TITLE / 2), label, 6)
        for slot, each in enumerate(parts):
            x = 0.2 + SLOT * (slot + 0.5)
            text = "\n".join((each.name, *known(node, each)))
            corner = x - WIDTH / 2, floor - HEIGHT
            _box(canvas, corner, (WIDTH, HEIGHT), COLORS[each.kind], text, 6.5)
            ends[each.name] = x, floor
        top += height + 0.2
    _links(canvas, node, ends)
    return canvas.svg()


def _frames(parts: Sequence[Component]) -> dict[tuple[str, ...], tuple[int, list[int]]]:
    """Return the bridges that are drawn, by their paths: how deep each stands, and which components are in it."""
    below = grouped(
        (each.path[:end], slot)
        for slot, each in enumerate(parts)
        for end in range(1, len(each.path))
    )
    frames: dict[tuple[str, ...], tuple[int, list[int]]] = {}
    for path, slots in below.items():
        if len(path) == 1 or len({parts[slot].path[len(path)] for slot in slots}) > 1:
            depth = 1 + sum(path[: len(above)] == above for above in frames)
            frames[path] = depth, slots
    return frames


def _links(canvas: Canvas, node: NodeHardware, ends: Mapping[str, Place]) -> None:
    """Draw NVLink: arcs between directly connected GPUs, and a bar below each GPU that switches connect."""
    for one, links in node.links.items():
        for other, count in links.items():
            if ends[one] < ends[other]:
                far = max(1.0, math.dist(ends[one], ends[other]) / SLOT)
                places = [ends[one], ends[other]]
                canvas.line(places, LINK, 0.5 + 0.3 * count, bow=0.35 / far**0.7)
    for name in node.switched:
        x, y = ends[name]
        canvas.line([(x, y), (x, y + 0.2)], LINK, 2.5)


def draw_graphs(graphs: Sequence[NcclGraph]) -> str:
    """Return a picture of NCCL's graphs: a row for each path through the node, from left to right.

    Returns
    -------
    str
        A document of SVG.
    """
    paths = [(graph, graph.alike()) for graph in graphs]
    longest = max((len(path) for _, alike in paths for path in alike), default=1)
    rows = sum(len(alike) + 1.2 for _, alike in paths)
    canvas = Canvas(1.6 + longest * 0.95, 0.5 + rows * 0.55)
    y = 0.35
    for graph, alike in paths:
        canvas.text((0.2, y), next(iter(graph_lines([graph]))), 9)
        y += 0.6
        for path, channels in alike.items():
            canvas.text((0.2, y), numbered(channels), 7)
            places = [(1.5 + 0.95 * at, y) for at in range(len(path))]
            for (x, _), part in zip(places, path, strict=True):
                kind = "nic" if part.startswith("NIC") else "gpu"
                _box(canvas, (x, y - 0.15), (0.68, 0.3), COLORS[kind], part, 7)
            for x, _ in places[1:]:
                canvas.line([(x - 0.25, y), (x - 0.02, y)], ARROW, 1.0, arrow=True)
            if is_closed(graph, path):
                ends = [(places[end][0] + 0.34, y + 0.15) for end in (-1, 0)]
                canvas.line(ends, ARROW, 1.0, arrow=True, bow=-0.5 / len(path))
            y += 0.55
        y += 0.06
    return canvas.svg()


def _box(canvas: Canvas, corner: Place, size: Place, color: str, text: str, points: float) -> None:
    """Draw a box with a text."""
    canvas.box(corner, size, color, EDGE, width=0.7)
    canvas.text((corner[0] + size[0] / 2, corner[1] + size[1] / 2), text, points, centred=True)


_FLAGS = flags.table(__package__)

FLAGS = (FlagGroup(_FLAGS["sources of topo"], exclusive=True), *_FLAGS["topo"], JSON)


def run(args: argparse.Namespace) -> int:
    """Show the hardware or the graphs; return the exit status."""
    if args.output is not None:
        drawing.check_place(args.output)
    if args.nccl_graph is not None and args.cluster is not None:
        raise UsageError(
            "--cluster needs a node, and a graph does not have one; give --nccl-topo instead"
        )
    nodes, ranks = ({}, []) if args.nccl_topo or args.nccl_graph else _gathered()
    if not output.speaks():
        return 0
    picture: Callable[[], str]
    if args.nccl_graph is not None:
        graphs = hardware.read_graphs(args.nccl_graph)
        found: dict[str, Any] = {"graphs": [dataclasses.asdict(graph) for graph in graphs]}
        lines = list(graph_lines(graphs)) or ["no graph has a channel"]
        picture = partial(draw_graphs, graphs)
    else:
        if args.nccl_topo is not None:
            nodes = {args.nccl_topo.name: hardware.read_topology(args.nccl_topo)}
        found, lines = document(nodes, ranks), list(_lines(nodes, ranks))
        first = next(iter(nodes.values()))
        picture = partial(draw, first)
        if args.cluster is not None:
            per_node = len(ranks) // len(nodes) or len(first.of_kind("gpu")) or 1
            output.write_file(args.cluster, described(first, len(nodes), per_node))
            lines.append(f"Written to {args.cluster}: {len(nodes)} x {per_node} ranks")
    if args.output is not None:
        with output.watched(f"drawing {args.output.name}"):
            drawing.save(picture(), args.output)
        lines.append(f"Drawn in {args.output}")
    output.write_found(found, ["\n".join(lines).rstrip()], as_json=args.json)
    return 0


def _gathered() -> tuple[dict[str, NodeHardware], list[BoundRank]]:
    """Return the nodes of the job by host, and its ranks; without a launcher, this node and no ranks."""
    place = launched()
    if place is None or place.size == 1:
        trees = {platform.node(): job.of_node(hardware.SOURCES)}
    else:
        trees = job.gather(hardware.SOURCES)
        if why := job.problem(trees):
            output.warn(f"hpccomm topo: on {next(iter(trees))}, MPI does not start: {why}\n")
    nodes = {host: hardware.hardware(host, tree) for host, tree in trees.items()}
    return nodes, bound_ranks(trees, nodes)


def _lines(nodes: Mapping[str, NodeHardware], ranks: Sequence[BoundRank]) -> Iterator[str]:
    """Yield the lines about nodes, equal ones once, and about their ranks."""
    alike: list[list[NodeHardware]] = []
    for node in nodes.values():
        same = next((group for group in alike if group[0] == node), None)
        alike.append([node]) if same is None else same.append(node)
    for group in alike:
        yield from (*node_lines(group[0], [node.name for node in group]), "")
    if ranks:
        yield from ("Ranks:", *binding_lines(ranks, nodes), *better(ranks, nodes), "")


def document(nodes: Mapping[str, NodeHardware], ranks: Sequence[BoundRank]) -> dict[str, Any]:
    """Return the facts of nodes and ranks that ``--json`` prints."""
    near = [
        {"gpu": each.gpu and each.gpu.name, "nic": each.nic and each.nic.name} for each in ranks
    ]
    bound = [each._asdict() | names for each, names in zip(ranks, near, strict=True)]
    hosts = [dataclasses.asdict(node) | {"matrix": node.matrix()} for node in nodes.values()]
    return {"nodes": hosts, "ranks": bound}
