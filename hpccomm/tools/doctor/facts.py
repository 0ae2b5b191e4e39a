"""The facts of a node, as one tree of JSON types: calls the sources, by name.

`job` gathers it on this node, and `in_mpi` on all nodes.
"""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpccomm.tools.doctor.reading import Reading, read, why
from hpccomm.tools.doctor.sources import gpus, host, limits, network, pci, slurm

Tree = dict[str, Any]

SOURCES: dict[str, Callable[[Reading], None]] = {
    "host": host.gather,
    "limits": limits.gather,
    "kernel_log": host.kernel_log,
    "packages": host.packages,
    "slurm": slurm.gather,
    "gpus": gpus.gather,
    "cpu": host.processors,
    "pci": pci.gather,
    "network": network.gather,
    "infiniband": network.rdma,
    "nvlink": gpus.nvlink,
}
"""The source of the facts below each name of a node's tree."""


def gather(only: Collection[str] = (), root: Path = Path("/")) -> Tree:
    """Return the tree of this node. Local; reads only.

    Parameters
    ----------
    only : collection of str
        Names of the sources to ask; all of them if empty.
    root : Path
        Of the file system.
    """

    def ask(name: str) -> Tree:
        try:
            return read(SOURCES[name], root)
        except Exception as error:  # noqa: BLE001 (one source that fails must not hide the others)
            return {"unread": {"": f"the source failed: {why(error)}"}}

    asked = [name for name in SOURCES if name in only or not only]
    # Side by side: some wait, for counters to rise or for programs.
    try:
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            answers = [*pool.map(ask, asked)]
    except RuntimeError:  # the node, or a limit of the user, allows no more threads
        answers = [*map(ask, asked)]
    return dict(zip(asked, answers, strict=True))
