"""The placement of a run's ranks, as nccl-tests prints it, or folded for many ranks.

The table's header shows it.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from hpccomm.results.schema import DeviceInfo, RankInfo, RunInfo
from hpccomm.units import counted

MOST_RANKS = 64
"""More are folded, a line for each node."""

MOST_NODES = 16
"""Of more nodes the first and the last ones are shown."""


def lines(info: RunInfo) -> list[str]:
    """Return a line for each rank."""
    devices: Sequence[DeviceInfo | None] = info.devices or (None,) * len(info.ranks)
    return [
        f"#  Rank {rank.rank:2d} Group {rank.group:2d} Pid {rank.pid:6d} on {rank.host:>10s} "
        f"device {rank.device:2d} [{rank.device_hex or 'none'}] {rank.device_info}, "
        + ("" if device is None else f"{device.uuid}, ")
        + f"node {rank.node}, cores {rank.cores}"
        for rank, device in zip(info.ranks, devices, strict=True)
    ]


def folded(info: RunInfo) -> list[str]:
    """Return a line for each rank, or for many ranks how many there were, and a line for each node."""
    if len(info.ranks) <= MOST_RANKS:
        return lines(info)
    nodes = [list(ranks) for _, ranks in groupby(info.ranks, key=lambda rank: rank.node)]
    shown = [_node(ranks) for ranks in nodes]
    if len(shown) > MOST_NODES:
        few = MOST_NODES // 2
        between = f"#  ... {len(shown) - MOST_NODES} more lines like these"
        shown = [*shown[:few], between, *shown[-few:]]
    return [f"#  {len(info.ranks)} ranks on {counted(info.nodes, 'node')}", *shown]


def _node(ranks: Sequence[RankInfo]) -> str:
    devices = Counter(rank.device_info for rank in ranks)
    named = ", ".join(f"{count} x {name}" for name, count in devices.items())
    return f"#  Ranks {ranks[0].rank} to {ranks[-1].rank} on {ranks[0].host}: {named}"
