"""What this process and the group that it is in may have: memory, processors, files, shared memory."""

import math
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading, fields

_LIMITS = {
    "memlock": "Max locked memory",
    "open_files": "Max open files",
    "processes": "Max processes",
    "stack": "Max stack size",
}

_NO_LIMIT = 1 << 62
"""Version 1 of control groups prints a number near 2^63 for no limit of memory."""


def gather(root: Path = Path("/")) -> dict[str, Any]:
    """Return the limits: numbers, or None where there is no limit."""
    reading = Reading(root)
    for fact, title in _LIMITS.items():
        reading.take(fact, partial(_limit, reading, title))
    reading.take("memory", lambda: _memory(reading))
    reading.take("cpu", lambda: _cpu(reading))
    reading.take("pids", lambda: _pids(reading))
    reading.take("shared_memory", lambda: _room(reading.path("/dev/shm")))
    reading.file("ptrace_scope", "/proc/sys/kernel/yama/ptrace_scope", int)
    reading.file(
        "ports", "/proc/sys/net/ipv4/ip_local_port_range", lambda text: [*map(int, text.split())]
    )
    return reading.facts()


def _limit(reading: Reading, title: str) -> dict[str, int | None]:
    text = reading.text("/proc/self/limits")
    found = re.search(rf"^{title} +(\S+) +(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"/proc/self/limits has no line {title!r}")
    soft, hard = (None if word == "unlimited" else int(word) for word in found.groups())
    return {"soft": soft, "hard": hard}


def _room(folder: Path) -> dict[str, int]:
    system = os.statvfs(folder)
    return {
        "bytes": system.f_blocks * system.f_frsize,
        "free": system.f_bavail * system.f_frsize,
    }


def _groups(reading: Reading, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control group and of those around it, and whether they are of version 2.

    Raises
    ------
    LookupError
        If the controller is not to be seen here.
    """
    top = reading.path("/sys/fs/cgroup")
    unified = (top / "cgroup.controllers").exists()
    for line in reading.text("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if unified and not names:
            base = top
        elif controller in names.split(","):
            base = top / controller
        else:
            continue
        inner = base / path.lstrip("/")
        # A container sees its own group as the top, under the path that it has outside.
        inner = inner if inner.is_dir() else base
        while inner != base:
            yield inner, unified
            inner = inner.parent
        yield base, unified
        return
    raise LookupError(f"no control group for {controller} is to be seen")


def _narrowest(
    reading: Reading, controller: str, limit: Callable[[Path, bool], float]
) -> tuple[float, Path, bool]:
    """Return the lowest limit of the groups, the group that has it, and whether it is of version 2."""
    groups = list(_groups(reading, controller))
    limits = []
    for folder, unified in groups:
        try:
            limits.append(limit(folder, unified))
        except FileNotFoundError:  # the root group has none
            limits.append(math.inf)
    lowest = min(limits)
    return lowest, *groups[limits.index(lowest)]


def _number(file: Path) -> float:
    text = file.read_text().strip()
    number = math.inf if text in ("max", "-1") else float(text)
    return number if number < _NO_LIMIT else math.inf


def _lines(file: Path) -> dict[str, str]:
    return fields(file.read_text()) if file.exists() else {}


def _memory(reading: Reading) -> dict[str, int | None]:
    lowest, folder, unified = _narrowest(
        reading,
        "memory",
        lambda group, new: _number(group / ("memory.max" if new else "memory.limit_in_bytes")),
    )
    events = _lines(folder / ("memory.events" if unified else "memory.oom_control"))
    found: dict[str, int | None] = {"limit": None, "oom_kills": int(events.get("oom_kill", 0))}
    if lowest < math.inf:
        used = _number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        # The kernel drops such pages of files before it kills.
        idle = _lines(folder / "memory.stat").get(
            "inactive_file" if unified else "total_inactive_file", "0"
        )
        found |= {"limit": int(lowest), "used": max(0, int(used) - int(idle))}
    return found


def _cpu(reading: Reading) -> dict[str, float | int | None]:
    def limit(group: Path, unified: bool) -> float:
        if not unified:
            return _number(group / "cpu.cfs_quota_us") / _number(group / "cpu.cfs_period_us")
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)

    lowest, folder, _ = _narrowest(reading, "cpu", limit)
    throttled = int(_lines(folder / "cpu.stat").get("nr_throttled", 0))
    return {"quota": None if lowest == math.inf else lowest, "throttled": throttled}


def _pids(reading: Reading) -> dict[str, int | None]:
    lowest, folder, _ = _narrowest(reading, "pids", lambda group, _: _number(group / "pids.max"))
    if lowest == math.inf:
        return {"limit": None}
    return {"limit": int(lowest), "used": int(_number(folder / "pids.current"))}
