"""Commands and jobs that programs start, what they are launched by, and the machine in words."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HPCCOMM = (sys.executable, "-m", "hpccomm")
UNAVAILABLE = 77
"""Exit status where something is measured that this machine does not allow."""


def mpiexec() -> str:
    """Return the launcher: the one that the site names, or the one of this Python's environment."""
    return os.environ.get("HPCCOMM_MPIEXEC", str(Path(sys.executable).parent / "mpiexec"))


def cluster(nodes: int, ranks: int) -> list[str]:
    """Return what launches a command on ranks of virtual hosts behind links of 1 Gbit/s. As root."""
    script = str(CHECKOUT / "jobs" / "virtual_cluster.sh")
    sizes = ["--nodes", str(nodes), "--ranks-per-node", str(ranks), "--link", "1gbit"]
    return ["bash", script, *sizes, "--"]


def machine() -> str:
    """Return this machine in words: processor, cores, kernel."""
    said = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    kernel = f"{os.uname().sysname} {os.uname().release}"
    return f"{said[1] if said else 'unknown processor'}, {os.cpu_count()} cores, {kernel}"


def run(command: Sequence[str]) -> None:
    """Run a command, and end this process with what it printed if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode == UNAVAILABLE:
        print(said, file=sys.stderr)
        sys.exit(UNAVAILABLE)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{said}")


def seconds(*command: str) -> float:
    """Return how long a whole process takes. What it prints is not shown."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin
