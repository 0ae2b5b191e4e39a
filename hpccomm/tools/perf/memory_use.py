"""The memory that a sweep needs, has and used.

A sweep refuses sizes that do not fit by it, and reports the used memory at its end.
"""

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hpccomm.errors import UsageError

SLOTS = 3
"""Arrays of the largest size that a rank needs: input, output, and output of the last repetition."""

STAGING = 1
"""Arrays of the largest size that the library may allocate for itself."""

PAGE = 4096
LARGEST_ITEM = 16


def slot_bytes(largest: int, unalign: int) -> int:
    """Return the bytes of one slot: the largest size, what ``-u`` shifts it by, a whole page."""
    needed = max(largest, LARGEST_ITEM) + LARGEST_ITEM * unalign
    return -(-needed // PAGE) * PAGE


def needed(size: int) -> int:
    """Return the bytes that a rank will take with slots of `size` bytes."""
    return (SLOTS + STAGING) * size


def arena_bytes(size: int) -> int:
    """Return the bytes of `SLOTS` slots of `size` bytes, whatever the start's alignment."""
    return SLOTS * size + PAGE


def cut(arena: Any, address: int, size: int) -> tuple[Any, ...]:
    """Return `SLOTS` parts of an array of bytes, each of `size` bytes and beginning on a page.

    Parameters
    ----------
    arena : array of uint8
        `arena_bytes` of them.
    address : int
        Where it begins.
    size : int
        A multiple of the page, as `slot_bytes` gives it.
    """
    start = -address % PAGE
    return tuple(arena[start + k * size : start + (k + 1) * size] for k in range(SLOTS))


@dataclass(frozen=True, slots=True)
class Need:
    """The needed memory of one rank.

    Attributes
    ----------
    node : int
        Its node.
    where : str
        Where on the node the memory is: the name of the node, or a device of it.
    needed, available : int
        Bytes that the rank will take, and that are there for all ranks that take them from there.
    """

    node: int
    where: str
    needed: int
    available: int


def require(needs: Sequence[Need], largest: int, batched: int = 1) -> None:
    """Raise unless there is the memory that the ranks of each node, or device, need.

    Parameters
    ----------
    needs : sequence of Need
        Of all ranks.
    largest : int
        ``-e``.
    batched : int
        Operations that are carried out at once, each on arrays of its own.

    Raises
    ------
    UsageError
        If there is not; the message says which size would fit.
    """
    for place in sorted({(need.node, need.where) for need in needs}):
        neighbors = [need for need in needs if (need.node, need.where) == place]
        wanted = sum(need.needed for need in neighbors)
        offered = min(need.available for need in neighbors)
        if wanted > offered:
            fits = max(0, offered // (len(neighbors) * (SLOTS + STAGING)) - PAGE) // batched
            times = f" for each of {batched} in a batch" if batched > 1 else ""
            raise UsageError(
                f"-e/--maxbytes {largest}: {len(neighbors)} ranks on {neighbors[0].where} would take "
                f"{spelled(wanted)} ({SLOTS} arrays each, {STAGING} more for the library{times}) and "
                f"{spelled(offered)} are available; "
                f"give at most {fits}, or fewer ranks there"
            )


def available() -> int:
    """Return the bytes available on this node, within the limits of its control groups."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:  # counts what the kernel can reclaim
            free = [int(fields["MemAvailable"].split()[0]) << 10]
    return max(0, min([*free, *left_by_groups(Path("/"))]))


_GROUP_MEMORY = (
    ("", "sys/fs/cgroup", "memory.max", "memory.current"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Of versions 2 and 1 of control groups: controller, mount, limit, and the used part of it."""


def left_by_groups(system: Path) -> list[int]:
    """Return the bytes that each control group above this process leaves, such as a Slurm job's.

    Parameters
    ----------
    system : Path
        The file system's root.
    """
    try:
        # Lines such as 0::/slurm/job_7 and 4:memory:/slurm/job_7.
        text = (system / "proc/self/cgroup").read_text()
    except OSError:  # a kernel without control groups
        return []
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    left = []
    for controller, mount, limit, used in _GROUP_MEMORY:
        if controller not in groups:
            continue
        innermost = PurePosixPath(groups[controller].lstrip("/"))
        # In a container the path may be the host's; only visible groups are read.
        for group in (innermost, *innermost.parents):
            home = system / mount / group
            with suppress(OSError, ValueError):  # not there, or without a limit: "max"
                left.append(int((home / limit).read_text()) - int((home / used).read_text()))
    return left


def peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Usage:
    """The memory that was taken, stage by stage (``-M``).

    Attributes
    ----------
    stages : dict of str to int
        Bytes that each stage added; of a stage that comes again, the most that it did.
    """

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self._before = 0

    def note(self, stage: str, amount: int) -> None:
        """End a stage, after which `amount` bytes are in use."""
        added = amount - self._before
        self.stages[stage] = max(added, self.stages.get(stage, added))
        self._before = amount


def report(usages: Sequence[Usage], title: str) -> str:
    """Return the line that ``-M`` asks for: for each stage, the rank that took most."""
    most = {stage: max(usage.stages[stage] for usage in usages) for stage in usages[0].stages}
    parts = [f"{stage} {spelled(amount)}" for stage, amount in most.items()]
    parts.append(f"Total  {spelled(sum(most.values()))}")
    return f"# {title:20s} : {' | '.join(parts)}\n"


def spelled(amount: int) -> str:
    """Print bytes with three digits and a binary unit, as nccl-tests' memory report does."""
    units = ((30, " GB"), (20, " MB"), (10, " KB"))
    shift, unit = next((each for each in units if abs(amount) >= 1 << each[0]), (0, " B"))
    value = amount / (1 << shift)
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}{unit}"
