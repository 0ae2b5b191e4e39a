"""How long ``hpccomm simulate`` takes for many ranks, and how much memory.

Run it as it is::

    python benchmarks/simulator.py "all_reduce ring 4096 1G" "all_reduce tree 65536 256M"

A figure is ``COLLECTIVE ALGORITHM RANKS SIZE``, in seconds of the whole command, on ``ib400x32``.
"""

import argparse
import resource
import subprocess
import sys
import time

from contest import figures
from contest.figures import Figure


def simulated(name: str) -> Figure:
    """Simulate one case."""
    collective, algorithm, ranks, size = name.split()
    command = [sys.executable, "-m", "hpccomm", "simulate", collective, "--cluster", "ib400x32"]
    command += ["--algorithm", algorithm, "--ranks", ranks, "-b", size, "-e", size]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    # Linux gives KiB: of the largest process until now.
    mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Figure(seconds, f"{mebibytes:.0f} MiB at most until then")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "all_reduce ring 4096 1G")
    request = parser.parse_args()
    figures.show({name: simulated(name) for name in request.figures}, request.json)


if __name__ == "__main__":
    main()
