"""What a run is measured on, in words."""

import os
from pathlib import Path


def machine() -> str:
    """Return this machine in words: processor, cores, kernel."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, {os.cpu_count()} cores, {os.uname().sysname} {os.uname().release}"
