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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import UsageError
from hpccomm.tools import flags, output
from hpccomm.tools.doctor.hardware import binding, picture, words
from hpccomm.tools.doctor.hardware.binding import BoundRank, bound_ranks
from hpccomm.tools.doctor.hardware.facts import NodeHardware
from hpccomm.tools.doctor.hardware.nccl_files import read_graphs, read_topology
from hpccomm.tools.drawing import pictures as drawing
from hpccomm.tools.flag import Flag, FlagGroup
from hpccomm.tools.flags import JSON
from hpccomm.tools.progress import watched

Shown = tuple[dict[str, Any], list[str], Callable[[], Any]]
"""The facts as JSON, as lines, and the function that draws them."""


_SOURCES = (
    Flag(
        "--nccl-topo FILE",
        flags.file,
        "show the node of this file, which NCCL wrote (NCCL_TOPO_DUMP_FILE), instead of this node",
    ),
    Flag(
        "--nccl-graph FILE",
        flags.file,
        "show the rings and trees of this file, which NCCL wrote (NCCL_GRAPH_DUMP_FILE)",
    ),
)

FLAGS = (
    FlagGroup(_SOURCES, exclusive=True),
    Flag("--output FILE", flags.file, "draw it too, as FILE.svg or FILE.png"),
    Flag("--cluster FILE", flags.file, "write such nodes for hpccomm simulate"),
    JSON,
)


def run(args: argparse.Namespace) -> int:
    """Show it; return the exit status."""
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
        nodes = {args.nccl_topo.name: read_topology(args.nccl_topo)}
    document, lines, draw = _of_nodes(args, nodes, ranks) if nodes else _of_graphs(args.nccl_graph)
    if args.output is not None:
        with watched(f"drawing {args.output.name}"):
            drawing.save(draw(), args.output)
        lines.append(f"Drawn in {args.output}")
    output.write_found(document, ["\n".join(lines).rstrip()], as_json=args.json)
    return 0


def _gathered() -> tuple[dict[str, NodeHardware], list[BoundRank]]:
    """Return the nodes of the job by host, and its ranks; of a process that no launcher started, this node."""
    from hpccomm.tools.doctor import facts, job
    from hpccomm.tools.doctor.hardware.facts import SOURCES, hardware

    place = launched()
    if place is None or place.size == 1:
        trees = {platform.node(): facts.gather(SOURCES)}
    else:
        trees = job.gather(SOURCES)
        if why := job.problem(trees):
            output.warn(f"hpccomm topo: on {next(iter(trees))}, MPI does not start: {why}\n")
    return {host: hardware(host, tree) for host, tree in trees.items()}, bound_ranks(trees)


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
        lines += [*words.lines(group[0], [node.name for node in group]), ""]
    if ranks:
        lines += ["Ranks:", *binding.lines(ranks, nodes), *binding.better(ranks, nodes), ""]
    if args.cluster is not None:
        per_node = len(ranks) // len(nodes) or len(first.of_kind("gpu")) or 1
        output.write_file(args.cluster, words.described(first, len(nodes), per_node))
        lines.append(f"Written to {args.cluster}: {len(nodes)} x {per_node} ranks")
    return document(nodes, ranks), lines, lambda: picture.draw(first)


def document(nodes: dict[str, NodeHardware], ranks: list[BoundRank]) -> dict[str, Any]:
    """Return the facts of nodes and ranks that ``--json`` prints."""
    bound = []
    for each in ranks:
        node = nodes[each.host]
        gpu, nic = binding.gpu_of(each, node), binding.nic_of(each, node)
        near = {"gpu": gpu and gpu.name, "nic": nic and nic.name}
        bound.append({**each._asdict(), "domains": binding.homes(each, node), **near})
    facts = [dataclasses.asdict(node) | {"matrix": node.matrix()} for node in nodes.values()]
    return {"nodes": facts, "ranks": bound}


def _of_graphs(file: Path) -> Shown:
    graphs = read_graphs(file)
    lines = list(words.graph_lines(graphs)) or ["no graph has a channel"]
    graphs_document = {"graphs": [dataclasses.asdict(graph) for graph in graphs]}
    return graphs_document, lines, lambda: picture.draw_graphs(graphs)
