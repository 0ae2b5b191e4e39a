"""``hpccomm topo``: what a node is made of, and what connects it."""

import argparse
import dataclasses
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.bench.progress import watched
from hpccomm.cli import output
from hpccomm.cli.show import path
from hpccomm.errors import UsageError

if TYPE_CHECKING:
    from hpccomm.hardware.binding import BoundRank
    from hpccomm.hardware.nccl_files import NcclGraph
    from hpccomm.hardware.node import NodeHardware

DESCRIPTION = """\
Show sockets, NUMA nodes, cores, GPUs and network adapters of a node, and what connects them, in the form
of nvidia-smi topo -m. It reads sysfs, and NVLink by NVIDIA's management library (nvidia-ml-py) if that is
installed. Under mpiexec or srun it also shows where each rank runs, how far from its GPU and network
adapter, and a binding that is better. Or it reads the files in which NCCL wrote what it found."""

EXAMPLES = """\
examples:
  hpccomm topo
  hpccomm topo --output node.svg
  mpiexec -n 8 hpccomm topo
  hpccomm topo --cluster mine.toml    (then hpccomm simulate all_reduce --cluster mine.toml --ranks 64)
  NCCL_TOPO_DUMP_FILE=t.xml NCCL_GRAPH_DUMP_FILE=g.xml mpiexec -n 8 hpccomm perf all_reduce
  hpccomm topo --nccl-topo t.xml
  hpccomm topo --nccl-graph g.xml --output rings.svg
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--nccl-topo",
        type=path,
        metavar="FILE",
        help="show the node of this file, which NCCL wrote (NCCL_TOPO_DUMP_FILE), instead of this node",
    )
    source.add_argument(
        "--nccl-graph",
        type=path,
        metavar="FILE",
        help="show the rings and trees of this file, which NCCL wrote (NCCL_GRAPH_DUMP_FILE)",
    )
    add("--output", type=path, metavar="FILE", help="draw it too, as FILE.svg or FILE.png")
    add(
        "--cluster",
        type=path,
        metavar="FILE",
        help="write nodes like this one for hpccomm simulate",
    )
    add("--json", action="store_true", help="print JSON for scripts instead of text")


def run(args: argparse.Namespace) -> int:
    """Show it; return the exit status."""
    if args.output is not None:
        from hpccomm.schedules.draw import drawing

        drawing.check_place(args.output)
    if args.nccl_graph is not None:
        if args.cluster is not None:
            raise UsageError(
                "--cluster needs a node, and a graph has none; give --nccl-topo, or neither"
            )
        return _show_graphs(args) if output.speaks() else 0
    if args.nccl_topo is None:
        nodes, ranks = _gathered()
    if not output.speaks():
        return 0
    if args.nccl_topo is not None:
        from hpccomm.hardware.nccl_files import read_topology

        nodes, ranks = {args.nccl_topo.name: read_topology(args.nccl_topo)}, []
    _show_nodes(args, nodes, ranks)
    return 0


def _gathered() -> tuple[dict[str, "NodeHardware"], list["BoundRank"]]:
    """Return the nodes of the job by host, and its ranks; of a process that no launcher started, this node."""
    from hpccomm.doctor import facts, job
    from hpccomm.hardware.binding import bound_ranks
    from hpccomm.hardware.facts import SOURCES, hardware

    place = launched()
    if place is None or place.size == 1:
        trees = {platform.node(): facts.gather(SOURCES)}
    else:
        trees = job.gather(SOURCES)
        if why := job.problem(trees):
            output.warn(f"hpccomm topo: on {next(iter(trees))}, MPI does not start: {why}\n")
    return {host: hardware(host, tree) for host, tree in trees.items()}, bound_ranks(trees)


def _show_nodes(
    args: argparse.Namespace, nodes: dict[str, "NodeHardware"], ranks: list["BoundRank"]
) -> None:
    from hpccomm.hardware import binding, cluster, words

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
        output.write_file(args.cluster, cluster.described(first, len(nodes), per_node))
        lines.append(f"Written to {args.cluster}: {len(nodes)} x {per_node} ranks")
    if args.output is not None:
        from hpccomm.hardware import picture

        _draw(args.output, picture.draw(first))
        lines.append(f"Drawn in {args.output}")
    if args.json:
        output.write(json.dumps(_document(nodes, ranks), indent=1) + "\n")
    else:
        output.write("\n".join(lines).rstrip() + "\n")


def _show_graphs(args: argparse.Namespace) -> int:
    from hpccomm.hardware import words
    from hpccomm.hardware.nccl_files import read_graphs

    graphs: list[NcclGraph] = read_graphs(args.nccl_graph)
    if args.output is not None:
        from hpccomm.hardware import picture

        _draw(args.output, picture.draw_graphs(graphs))
    if args.json:
        document = [dataclasses.asdict(graph) for graph in graphs]
        output.write(json.dumps({"graphs": document}, indent=1) + "\n")
    else:
        lines = list(words.graph_lines(graphs)) or ["no graph has a channel"]
        output.write("\n".join(lines) + "\n")
    return 0


def _draw(file: Path, figure: Any) -> None:
    from hpccomm.schedules.draw import drawing

    with watched(f"drawing {file.name}"):
        drawing.save(figure, file)


def _document(nodes: dict[str, "NodeHardware"], ranks: list["BoundRank"]) -> dict[str, Any]:
    from hpccomm.hardware import binding

    found = []
    for node in nodes.values():
        own = {name: getattr(node, name) for name in ("name", "switched", "link_kind", "unread")}
        own |= {
            name: [dataclasses.asdict(each) for each in getattr(node, name)]
            for name in ("domains", "components")
        }
        own["links"] = [[*ends, count] for ends, count in node.links.items()]
        found.append(own | {"matrix": node.matrix()})
    bound = []
    for each in ranks:
        node = nodes[each.host]
        gpu, nic = binding.gpu_of(each, node), binding.nic_of(each, node)
        near = {"gpu": gpu and gpu.name, "nic": nic and nic.name}
        bound.append({**each._asdict(), "domains": binding.homes(each, node), **near})
    return {"nodes": found, "ranks": bound}
