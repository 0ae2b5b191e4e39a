"""The properties of a node on which measurements depend."""

import os
import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Return the processor's model, or its architecture where the kernel does not name one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not there, or hidden
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.machine() or "unknown"


def cores() -> int:
    """Return the number of cores of this node, not only of those that this process may use."""
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of this node; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def fabric() -> str:
    """Return the adapters for RDMA with the rates of their active ports, as the kernel lists them; empty if none.

    Such as ``mlx5_0 400 Gb/sec (4X NDR)``.
    """
    return ", ".join(
        f"{port.parents[1].name} {_line(port / 'rate')}"
        for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
        if _line(port / "state").endswith("ACTIVE")
    )


def _line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def facts() -> dict[str, str]:
    """Return what this node is, for the record: one text for each fact, without those that are unknown."""
    found = {
        "processor": processor(),
        "cores": str(cores()),
        "memory": f"{memory() / 2**30:.0f} GiB" if memory() else "",
        "kernel": f"{platform.system()} {platform.release()}",
        "fabric": fabric(),
    }
    return {name: text for name, text in found.items() if text}
