"""Describes a cluster of nodes like this one, in the form that ``hpccomm simulate`` reads.

`hpccomm topo --cluster` writes it.
"""

import re
from dataclasses import replace

from hpccomm.hardware.node import NodeHardware
from hpccomm.memory.cuda.nvml import LANE
from hpccomm.schedules.cost.network_files import dump, typical

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
