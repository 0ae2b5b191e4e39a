"""Facts of processors, memory and files: the limits of this process, and the part that others take.

Limits are those of the process and of its control group. The kernel counts the time of each CPU, of each control group
and of each process: what a job's ranks did not take from one look to the next, others did. The doctor looks, and so
does what measures (`hpccomm.tools.perf.facts`).
"""

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpccomm.tools.doctor.reading import ALL_USERS, Reading, fields
from hpccomm.units import grouped, numbers

_NO_LIMIT = 1 << 62
"""Version 1 of control groups prints a number near 2^63 if memory is not limited."""


def gather(reading: Reading) -> None:
    """Read the limits: numbers, or None without a limit."""
    reading.files("limits")
    reading.take("may_lock_all", lambda: _may_lock_all(reading))
    reading.take("memory", lambda: _memory(reading))
    reading.take("cpu", lambda: _cpu(reading))
    reading.take("pids", lambda: _pids(reading))
    reading.take("shared_memory", lambda: _room(reading.path("/dev/shm")))


def _may_lock_all(reading: Reading) -> bool:
    """Whether the process has CAP_IPC_LOCK (14), in no namespace of users: then the limit of memlock does not hold."""
    capable = int(fields(reading.text("/proc/self/status"))["CapEff"], 16) >> 14 & 1
    return bool(capable) and reading.text("/proc/self/uid_map").split() == ALL_USERS


def _room(folder: Path) -> dict[str, int]:
    system = os.statvfs(folder)
    blocks = {"bytes": system.f_blocks, "free": system.f_bavail}
    return {name: count * system.f_frsize for name, count in blocks.items()}


class _Group(NamedTuple):
    """A control group: its folder, the names of its files, and its limit."""

    folder: Path
    names: Mapping[str, str]
    limit: float

    def number(self, name: str) -> float:
        return _number(self.folder / self.names[name])

    def line(self, name: str, key: str) -> int:
        """Return the number of a line; 0 without one."""
        file = self.folder / self.names[name]
        return int(fields(file.read_text()).get(key, 0)) if file.exists() else 0

    def spent(self) -> float:
        """Return the seconds that its processes have taken; 0 if it does not count them."""
        old = self.folder / "cpuacct.usage"
        return _number(old) / 1e9 if old.exists() else self.line("throttled", "usage_usec") / 1e6


_NEW = {
    "memory": "memory.max", "used": "memory.current", "events": "memory.events", "idle": "inactive_file",
    "cpu": "cpu.max", "pids": "pids.max",
}  # fmt: skip
_OLD = {
    "memory": "memory.limit_in_bytes", "used": "memory.usage_in_bytes", "events": "memory.oom_control",
    "idle": "total_inactive_file", "cpu": "cpu.cfs_quota_us", "pids": "pids.max",
}  # fmt: skip
_BOTH = {"stat": "memory.stat", "throttled": "cpu.stat", "tasks": "pids.current"}
"""The files of version 2, of version 1, and of both."""


def groups(reading: Reading, controller: str) -> list[_Group]:
    """Return this process's group, and those around it.

    Raises
    ------
    LookupError
        If this process sees no group of the controller.
    """
    top = reading.path("/sys/fs/cgroup")
    unified = (top / "cgroup.controllers").exists()
    names = (_NEW if unified else _OLD) | _BOTH
    for line in reading.text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if unified != (not controllers) or not (unified or controller in controllers.split(",")):
            continue
        base = top if unified else top / controller
        inner = base / path.lstrip("/")
        # A container sees its own group as the top, under the path that it has outside.
        inner = inner if inner.is_dir() else base
        around = [inner, *inner.parents[: len(inner.relative_to(base).parts)]]
        return [_Group(each, names, _limit_of(each / names[controller])) for each in around]
    raise LookupError(f"no control group for {controller} is to be seen")


def narrowest(reading: Reading, controller: str) -> _Group:
    """Return the group with the lowest limit; see `groups`."""
    return min(groups(reading, controller), key=lambda group: group.limit)


def _limit_of(file: Path) -> float:
    """Return a group's limit; infinite without one, as in the root group. That of cpu is in processors."""
    if not file.exists():
        return math.inf
    if file.name == "cpu.max":
        quota, period = file.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    limit = _number(file)
    return limit / _number(file.with_name("cpu.cfs_period_us")) if "quota" in file.name else limit


def _number(file: Path) -> float:
    text = file.read_text().strip()
    number = math.inf if text in ("max", "-1") else float(text)
    return number if number < _NO_LIMIT else math.inf


def _memory(reading: Reading) -> dict[str, int | None]:
    group = narrowest(reading, "memory")
    kills = group.line("events", "oom_kill")
    if group.limit == math.inf:
        return {"limit": None, "oom_kills": kills}
    # The kernel drops such pages of files before it kills.
    used = int(group.number("used")) - group.line("stat", group.names["idle"])
    return {"limit": int(group.limit), "used": max(0, used), "oom_kills": kills}


def _cpu(reading: Reading) -> dict[str, float | int | None]:
    group = narrowest(reading, "cpu")
    quota = None if group.limit == math.inf else group.limit
    return {"quota": quota, "throttled": group.line("throttled", "nr_throttled")}


def _pids(reading: Reading) -> dict[str, int | None]:
    group = narrowest(reading, "pids")
    if group.limit == math.inf:
        return {"limit": None}
    return {"limit": int(group.limit), "used": int(group.number("tasks"))}


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
        The CPUs that it may use, with all threads of their cores. If the time of its control group is less than theirs,
        a number below 0 that stands for the group.
    size, taken : float
        The number of these processors, and the seconds that all processes have taken of them.
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
    cpus = allowed.union(*(numbers(reading.optional_text(core) or "") for core in cores))
    stat = _TICKS.findall(reading.optional_text(root / "proc/stat") or "")
    ticks = sum(sum(map(int, taken)) for cpu, *taken in stat if int(cpu) in cpus)
    pool = frozenset(cpus), float(len(cpus)), ticks / os.sysconf("SC_CLK_TCK")
    group = reading.take("group", lambda: narrowest(reading, "cpu"))
    if group is not None and group.limit < len(cpus):
        pool = frozenset([-group.folder.stat().st_ino]), group.limit, group.spent()
    machine = reading.optional_text(root / "proc/sys/kernel/random/boot_id") or ""
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
