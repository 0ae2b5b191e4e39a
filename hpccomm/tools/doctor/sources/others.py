"""The part of the cores that processes of others take, from one look of a job's ranks to the next.

The kernel counts the time of each CPU, of each control group and of each process. What the ranks
did not take, others did. The doctor looks, and so does what measures (`hpccomm.tools.perf.facts`).
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpccomm.tools.doctor.reading import Reading
from hpccomm.tools.doctor.sources.limits import narrowest
from hpccomm.units import grouped, numbers

_CPUS = "sys/devices/system/cpu"

REST = 0.25
"""Seconds between two looks at least: 25 ticks of the kernel's clock on each CPU."""

_TICKS = re.compile(r"^cpu(\d+) (\d+) (\d+) (\d+) \d+ \d+ \d+ \d+ (\d+)", re.MULTILINE)
"""A CPU in /proc/stat: ticks in programs, in nice ones, in the kernel for them, and stolen by other virtual machines.

Interrupts do not count: the job's own messages cause them.
"""


class Look(NamedTuple):
    """What a rank reads at one moment.

    Attributes
    ----------
    machine, process : str
        Equal on ranks of one machine, which may have several containers, and of one process.
    clock, own : float
        Seconds: the moment, and what the process has taken until then.
    pool : frozenset of int
        The CPUs that it may use, with all threads of their cores; where its control group may have less than these, a number
        of the group, below 0.
    size, taken : float
        How many processors that is, and the seconds that all processes have taken of them.
    """

    machine: str
    process: str
    clock: float
    own: float
    pool: frozenset[int]
    size: float
    taken: float


Span = tuple[Look, Look]
"""Two looks of a rank, the earlier one first."""


def look(root: Path = Path("/")) -> Look:
    """Return what this rank reads now. Local; `root` is the file system's."""
    reading, allowed = Reading(root), os.sched_getaffinity(0)
    cores = (root / f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list" for cpu in allowed)
    cpus = allowed.union(*(numbers(reading.line(core) or "") for core in cores))
    stat = _TICKS.findall(reading.line(root / "proc/stat") or "")
    ticks = sum(sum(map(int, taken)) for cpu, *taken in stat if int(cpu) in cpus)
    pool = frozenset(cpus), float(len(cpus)), ticks / os.sysconf("SC_CLK_TCK")
    group = reading.take("group", lambda: narrowest(reading, "cpu"))
    if group is not None and group.limit < len(cpus):
        pool = frozenset([-group.folder.stat().st_ino]), group.limit, group.spent()
    machine = reading.line(root / "proc/sys/kernel/random/boot_id") or ""
    spaces = reading.take("spaces", lambda: Path("/proc/self/ns/pid").stat().st_ino)
    return Look(machine, f"{spaces} {os.getpid()}", time.monotonic(), time.process_time(), *pool)


def rested(barrier: Callable[[], object]) -> Span:
    """Return two looks, between which all ranks rest. Collective; blocks for `REST` seconds."""
    barrier()
    before = look()
    time.sleep(REST)
    return before, look()


def shares(spans: Sequence[Span]) -> list[float]:
    """Return the part of its processors that others took, for each rank; -1 if unknown. `spans` are of all ranks."""
    machines, parts = grouped((span[0].machine, span) for span in spans), list[float]()
    for before, after in spans:
        ranks = {  # which may be threads of one process
            one.process: (other.own - one.own) / (other.clock - one.clock)
            for one, other in machines[before.machine]
            if not one.pool.isdisjoint(before.pool)
        }
        taken, seconds = after.taken - before.taken, after.clock - before.clock
        part = (taken / seconds - sum(ranks.values())) / before.size
        parts.append(min(1.0, max(0.0, part)) if after.taken else -1.0)  # a sandbox counts nothing
    return parts
