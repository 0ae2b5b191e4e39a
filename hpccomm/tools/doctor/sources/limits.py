"""Facts of the limits of this process and its control group: memory, processors, files."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpccomm.tools.doctor.reading import ALL_USERS, Reading, fields

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
    return {
        "bytes": system.f_blocks * system.f_frsize,
        "free": system.f_bavail * system.f_frsize,
    }


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


def narrowest(reading: Reading, controller: str) -> _Group:
    """Return the group with the lowest limit: this process's, or one around it.

    Raises
    ------
    LookupError
        If the controller is not to be seen here.
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
        groups = [_Group(each, names, _limit_of(each / names[controller])) for each in around]
        return min(groups, key=lambda group: group.limit)
    raise LookupError(f"no control group for {controller} is to be seen")


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
