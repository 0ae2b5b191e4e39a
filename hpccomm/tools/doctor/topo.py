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
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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
from hpccomm.units import counted, numbers, ranges

# The CPUs of a job's ranks, their distance from GPU and adapter, and better bindings.


class BoundRank(NamedTuple):
    """A rank of a job, and the CPUs on which it may run.

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
    """

    rank: int
    local_rank: int
    host: str
    cpus: tuple[int, ...]
    visible: str = ""


def bound_ranks(trees: Mapping[str, Mapping[str, Any]]) -> list[BoundRank]:
    """Return the ranks of a job, from the facts of its nodes."""
    ranks = [
        BoundRank(
            each["rank"], local, host, tuple(numbers(each["cores"])),
            each.get("variables", {}).get("CUDA_VISIBLE_DEVICES", ""),
        )
        for host, tree in trees.items()
        for local, each in enumerate(tree.get("ranks", ()))
    ]  # fmt: skip
    return sorted(ranks)


def gpu_of(bound: BoundRank, node: NodeHardware) -> Component | None:
    """Return the GPU of a rank, as `new_comm` chooses it: by the local rank, among the visible GPUs."""
    gpus = node.of_kind("gpu")
    if bound.visible:
        chosen = [int(word) for word in bound.visible.split(",") if word.isdigit()]
        gpus = [gpus[at] for at in chosen if at < len(gpus)] or gpus
    return gpus[bound.local_rank % len(gpus)] if gpus else None


def nic_of(bound: BoundRank, node: NodeHardware) -> Component | None:
    """Return the network adapter nearest to a rank's GPU, or else to its cores. Ranks share equally near ones."""
    nics = [nic for nic in node.of_kind("nic") if nic.rate] or node.of_kind("nic")
    gpu = gpu_of(bound, node)
    if gpu is not None:
        nics = [nic for nic in node.nearest(gpu, "nic") if nic in nics] or nics
    else:
        nics = [nic for nic in nics if nic.domain in homes(bound, node)] or nics
    return nics[bound.local_rank % len(nics)] if nics else None


def homes(bound: BoundRank, node: NodeHardware) -> list[int]:
    """Return the NUMA nodes in which a rank may run."""
    return [domain.number for domain in node.domains if set(domain.cpus) & set(bound.cpus)]


def distance(bound: BoundRank, part: Component, node: NodeHardware) -> str:
    """Return in words how far a component is from the cores of a rank."""
    own = homes(bound, node)
    if part.domain is None or not own:
        return f"{part.name}, NUMA node unknown"
    if own == [part.domain]:
        return f"{part.name} beside them"
    if part.domain in own:
        return f"{part.name} beside some of them (NUMA {part.domain})"
    domains = {domain.number: domain for domain in node.domains}
    far = domains[own[0]].distances
    order = list(domains)
    steps = f", distance {far[order.index(part.domain)]}" if len(far) == len(order) else ""
    return f"{part.name} far (NUMA {part.domain}{steps})"


def binding_lines(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield a line for each rank."""
    for bound in ranks:
        node = nodes[bound.host]
        own = homes(bound, node)
        parts = (gpu_of(bound, node), nic_of(bound, node))
        near = [distance(bound, part, node) for part in parts if part is not None]
        numa = f"NUMA {ranges(own)}" if own else "no NUMA node known"
        cores = f"CPUs {ranges(bound.cpus)} ({numa})"
        yield f"  rank {bound.rank} on {bound.host}: {'; '.join([cores, *near])}"


def wanted(local: int, node: NodeHardware) -> list[int]:
    """Return the best NUMA node for each of `local` ranks of a node: the nearest to the rank's GPU.

    Without GPUs, ranks are spread over the NUMA nodes that have CPUs.
    """
    with_cpus = [domain for domain in node.domains if domain.cpus]
    spread = [domain.number for domain in with_cpus]
    result = []
    for number in range(local):
        part = gpu_of(BoundRank(number, number, node.name, ()), node)
        home = part.domain if part is not None else None
        result.append(spread[number * len(spread) // local] if home not in spread else home)
    return [home for home in result if home is not None]


def better(ranks: Sequence[BoundRank], nodes: Mapping[str, NodeHardware]) -> Iterator[str]:
    """Yield lines about a better binding: commands of mpiexec and srun, or the reason for which none is better."""
    host = ranks[0].host
    node = nodes[host]
    local = [bound for bound in ranks if bound.host == host]
    if sum(bool(domain.cpus) for domain in node.domains) < 2:
        yield "Binding: there is one NUMA node, and all its cores are as near."
        return
    homes_wanted = wanted(len(local), node)
    aim = "nearest to its GPU" if node.of_kind("gpu") else "of its turn"
    if all(homes(bound, node) == [home] for bound, home in zip(local, homes_wanted, strict=True)):
        yield f"Binding: each rank runs in the NUMA node {aim}."
        return
    yield f"Binding that keeps each rank in the NUMA node {aim}:"
    yield from (f"  {line}" for line in commands(len(ranks), homes_wanted, node))


def commands(size: int, homes_wanted: Sequence[int], node: NodeHardware) -> tuple[str, str]:
    """Return the command lines of mpiexec and srun that bind the ranks of each node to NUMA nodes.

    Parameters
    ----------
    size : int
        Number of ranks of the job.
    homes_wanted : sequence of int
        The NUMA node of each rank of a node.
    node : NodeHardware
        The hardware of each node.
    """
    local = len(homes_wanted)
    cpus = {domain.number: ranges(domain.cpus) for domain in node.domains}
    lists = " ".join(cpus[home] for home in homes_wanted)
    numbers = ",".join(map(str, homes_wanted))
    script = (
        f"set -- {lists}; shift ${{OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}}; "
        f"exec taskset -c $1 PROGRAM"
    )
    return (
        f"mpiexec -n {size} --bind-to none sh -c '{script}'",
        f"srun -n {size} --ntasks-per-node={local} --cpu-bind=map_ldom:{numbers} PROGRAM",
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
    """Return the known facts of a component, with `words` after its address."""
    rate = f"{each.rate:g} Gb/s" if each.rate else ""
    return [fact for fact in (each.address, *words, each.lanes, rate, linked(node, each)) if fact]


def linked(node: NodeHardware, gpu: Component) -> str:
    """Return the number of a GPU's links as text; empty without links."""
    kind = "NVLinks" if node.link_kind == "NV" else node.link_kind
    if gpu.name in node.switched:
        return f"{node.switched[gpu.name]} {kind} to switches"
    count = sum(node.links.get(gpu.name, {}).values())
    return f"{count} {kind}" if count else ""


def summary(node: NodeHardware) -> str:
    """Return the numbers of a node's parts as text."""
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
    """Yield the matrix of `NodeHardware.between` in the form of ``nvidia-smi topo -m``, with the letters' meanings."""
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
    used = {hardware.rank(letters) for row in matrix for letters in row}
    yield ""
    for at, (key, meaning) in enumerate(hardware.LETTERS.items()):
        if at in used:
            yield f"  {key:4} = {meaning}"


def graph_lines(graphs: Sequence[NcclGraph]) -> Iterator[str]:
    """Yield lines about NCCL's graphs: each way through the node once, with its channels."""
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
    gpus = node.of_kind("gpu")
    if not gpus:
        return 0.0
    name = gpus[0].name
    links = node.switched.get(name, 0) or sum(node.links.get(name, {}).values())
    if links:
        return links * node.link_rate * 1e9 * INSIDE
    lanes = re.fullmatch(r"PCIe (\d) x(\d+)", gpus[0].lanes)
    return LANE[int(lanes[1])] * int(lanes[2]) * 1e9 * INSIDE if lanes else 0.0


# Pictures of a node's hardware and of NCCL's graphs, for ``--output``.

COLORS = {"gpu": "#b7d7a8", "nic": "#9fc5e8", "bridge": "#eeeeee", "home": "#fbf6ea"}
WIDTH, HEIGHT, GAP, STEP, WIDEST = 1.25, 0.62, 0.25, 0.45, 17.0
"""Inches: width and height of a component's box, the gap between boxes, the height of a level of bridges, and the
greatest width of a row of NUMA nodes."""

LINK, EDGE, ARROW = "#38761d", "#555555", "#444444"
"""Colors of NVLink, of the edges of boxes, and of arrows."""


def draw(node: NodeHardware) -> str:
    """Return a picture of a node: a frame for each NUMA node, the bridges and components in it, and NVLink.

    Host bridges are drawn, and bridges that lead to several components.

    Returns
    -------
    str
        A document of SVG.
    """
    homes = [(_title(each), node.inside(each.number)) for each in node.domains]
    if unknown := node.inside(None):
        homes.append(("NUMA node unknown", unknown))
    rows: list[list[tuple[str, list[Component]]]] = [[]]
    for home in homes:
        if rows[-1] and sum(_width(parts) for _, parts in [*rows[-1], home]) > WIDEST:
            rows.append([])
        rows[-1].append(home)
    heights = [max(_height(parts) for _, parts in row) for row in rows]
    width = max(6.0, *(sum(_width(parts) for _, parts in row) for row in rows)) + 0.3
    height = sum(heights) + 0.2 * len(rows) + 0.6
    canvas = Canvas(width, height)
    canvas.text((0.2, 0.3), f"{node.name}: {summary(node)}", 10)
    places: dict[str, Place] = {}
    top = 0.55
    for row, tall in zip(rows, heights, strict=True):
        left = 0.2
        for title, parts in row:
            wide = _width(parts) - 0.2
            canvas.box((left, top), (wide, tall), COLORS["home"], EDGE, width=0.7, level=0)
            canvas.text((left + 0.1, top + 0.2), title, 8)
            places |= _inside(canvas, node, parts, left + GAP, top + 0.5)
            left += wide + 0.2
        top += tall + 0.2
    _links(canvas, node, places)
    return canvas.svg()


def _title(domain: NumaDomain) -> str:
    socket = "" if domain.socket is None else f"socket {domain.socket}, "
    return f"{socket}NUMA {domain.number}: CPUs {ranges(domain.cpus) or 'none'}"


def _width(parts: Sequence[Component]) -> float:
    return max(len(parts), 2) * (WIDTH + GAP) + GAP + 0.2


def _height(parts: Sequence[Component]) -> float:
    deep = max((len(way) for way in _ways(parts).values()), default=0)
    return 0.5 + deep * STEP + (HEIGHT + 0.5 if parts else 0.0)


def _ways(parts: Sequence[Component]) -> dict[str, list[tuple[str, ...]]]:
    """Return, for each component, the paths of its host bridge and of the bridges above it that lead to several."""
    below: dict[tuple[str, ...], set[str]] = {}
    for each in parts:
        for end in range(1, len(each.path)):
            below.setdefault(each.path[:end], set()).add(each.path[end])
    ways = {}
    for each in parts:
        above = (each.path[:end] for end in range(1, len(each.path)))
        ways[each.name] = [way for way in above if len(way) == 1 or len(below[way]) > 1]
    return ways


def _inside(
    canvas: Canvas, node: NodeHardware, parts: Sequence[Component], left: float, top: float
) -> dict[str, Place]:
    """Draw the components of a NUMA node and the bridges above them; return where NVLink begins at each, by name."""
    ordered = sorted(parts, key=lambda each: (each.path, each.name))
    ways = _ways(ordered)
    floor = top + max((len(way) for way in ways.values()), default=0) * STEP + HEIGHT
    middle = {each.name: left + at * (WIDTH + GAP) + WIDTH / 2 for at, each in enumerate(ordered)}
    spans: dict[tuple[str, ...], list[float]] = {}
    level = {}
    for name, way in ways.items():
        for at, bridge in enumerate(way):
            spans.setdefault(bridge, []).append(middle[name])
            level[bridge] = top + at * STEP
    for bridge, span in spans.items():
        label = f"{'host bridge' if len(bridge) == 1 else 'bridge'} {bridge[-1]}"
        corner, wide = (min(span) - WIDTH / 2, level[bridge] - 0.1), max(span) - min(span) + WIDTH
        _box(canvas, corner, (wide, 0.2), COLORS["bridge"], label, 6)
    for each in ordered:
        points = [
            ((min(spans[bridge]) + max(spans[bridge])) / 2, level[bridge])
            for bridge in ways[each.name]
        ]
        points.append((middle[each.name], floor - HEIGHT))
        canvas.line(points, "#666666", 0.8, level=1)
        text = "\n".join((each.name, *known(node, each)))
        corner = (middle[each.name] - WIDTH / 2, floor - HEIGHT)
        _box(canvas, corner, (WIDTH, HEIGHT), COLORS[each.kind], text, 6.5)
    return {name: (place, floor) for name, place in middle.items()}


def _links(canvas: Canvas, node: NodeHardware, places: dict[str, Place]) -> None:
    """Draw NVLink: arcs between directly connected GPUs, and a bar below each GPU that switches connect."""
    pairs = ((one, *to) for one, ends in node.links.items() for to in ends.items())
    for one, other, count in pairs:
        if places[one] < places[other]:
            far = abs(places[one][0] - places[other][0]) / (WIDTH + GAP)
            ends = sorted((places[one], places[other]))
            canvas.line(ends, LINK, 0.5 + 0.3 * count, bow=0.35 / far**0.7)
    for name in node.switched:
        x, y = places[name]
        canvas.line([(x, y), (x, y + 0.2)], LINK, 2.5)


def draw_graphs(graphs: Sequence[NcclGraph]) -> str:
    """Return a picture of NCCL's graphs: a row for each way through the node, from left to right.

    Returns
    -------
    str
        A document of SVG.
    """
    ways = [(graph, graph.alike()) for graph in graphs]
    longest = max((len(way) for _, alike in ways for way in alike), default=1)
    rows = sum(len(alike) + 1.2 for _, alike in ways)
    width, height = 1.6 + longest * 0.95, 0.5 + rows * 0.55
    canvas = Canvas(width, height)
    y = 0.35
    for graph, alike in ways:
        canvas.text((0.2, y), next(iter(graph_lines([graph]))), 9)
        y += 0.6
        for way, channels in alike.items():
            canvas.text((0.2, y), numbered(channels), 7)
            for at, part in enumerate(way):
                x = 1.5 + at * 0.95
                kind = "nic" if part.startswith("NIC") else "gpu"
                _box(canvas, (x, y - 0.15), (0.68, 0.3), COLORS[kind], part, 7)
                if at:
                    canvas.line([(x - 0.25, y), (x - 0.02, y)], ARROW, 1.0, arrow=True)
            if is_closed(graph, way):
                end = 1.84 + (len(way) - 1) * 0.95
                ends = [(end, y + 0.15), (1.84, y + 0.15)]
                canvas.line(ends, ARROW, 1.0, arrow=True, bow=-0.5 / len(way))
            y += 0.55
        y += 0.06
    return canvas.svg()


def _box(canvas: Canvas, corner: Place, size: Place, color: str, text: str, points: float) -> None:
    """Draw a box with a text."""
    canvas.box(corner, size, color, EDGE, width=0.7)
    canvas.text((corner[0] + size[0] / 2, corner[1] + size[1] / 2), text, points, centred=True)


Shown = tuple[dict[str, Any], list[str], Callable[[], Any]]
"""The facts as JSON, the facts as lines, and the function that draws them."""


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
    if args.nccl_topo is not None:
        nodes = {args.nccl_topo.name: hardware.read_topology(args.nccl_topo)}
    document, lines, draw = _of_nodes(args, nodes, ranks) if nodes else _of_graphs(args.nccl_graph)
    if args.output is not None:
        with output.watched(f"drawing {args.output.name}"):
            drawing.save(draw(), args.output)
        lines.append(f"Drawn in {args.output}")
    output.write_found(document, ["\n".join(lines).rstrip()], as_json=args.json)
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
    return {host: hardware.hardware(host, tree) for host, tree in trees.items()}, bound_ranks(trees)


def _of_nodes(
    args: argparse.Namespace, nodes: dict[str, NodeHardware], ranks: list[BoundRank]
) -> Shown:
    first = next(iter(nodes.values()))
    alike: list[list[NodeHardware]] = []
    for node in nodes.values():
        same = next((group for group in alike if group[0] == node), None)
        alike.append([node]) if same is None else same.append(node)
    lines: list[str] = []
    for group in alike:
        lines += [*node_lines(group[0], [node.name for node in group]), ""]
    if ranks:
        lines += ["Ranks:", *binding_lines(ranks, nodes), *better(ranks, nodes), ""]
    if args.cluster is not None:
        per_node = len(ranks) // len(nodes) or len(first.of_kind("gpu")) or 1
        output.write_file(args.cluster, described(first, len(nodes), per_node))
        lines.append(f"Written to {args.cluster}: {len(nodes)} x {per_node} ranks")
    return document(nodes, ranks), lines, lambda: draw(first)


def document(nodes: dict[str, NodeHardware], ranks: list[BoundRank]) -> dict[str, Any]:
    """Return the facts of nodes and ranks that ``--json`` prints."""
    bound = []
    for each in ranks:
        node = nodes[each.host]
        gpu, nic = gpu_of(each, node), nic_of(each, node)
        near = {"gpu": gpu and gpu.name, "nic": nic and nic.name}
        bound.append({**each._asdict(), "domains": homes(each, node), **near})
    hosts = [dataclasses.asdict(node) | {"matrix": node.matrix()} for node in nodes.values()]
    return {"nodes": hosts, "ranks": bound}


def _of_graphs(file: Path) -> Shown:
    graphs = hardware.read_graphs(file)
    lines = list(graph_lines(graphs)) or ["no graph has a channel"]
    graphs_document = {"graphs": [dataclasses.asdict(graph) for graph in graphs]}
    return graphs_document, lines, lambda: draw_graphs(graphs)
