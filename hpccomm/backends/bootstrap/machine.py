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
