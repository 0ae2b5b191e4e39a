"""How long ``hpccomm simulate`` takes for many ranks, and how much memory.

Run it as it is::

    python benchmarks/simulator.py "all_reduce ring 4096 1G" "all_reduce tree 65536 256M"

A figure is ``COLLECTIVE ALGORITHM RANKS SIZE``, in seconds of the whole command, on ``ib400x32``.
"""

import argparse
import resource

from contest import jobs, program
from contest.promises import Figure


def simulated(name: str, _: argparse.Namespace) -> Figure:
    """Simulate one case."""
    collective, algorithm, ranks, size = name.split()
    command = [*jobs.HPCCOMM, "simulate", collective, "--cluster", "ib400x32"]
    seconds = jobs.seconds(
        *command, "--algorithm", algorithm, "--ranks", ranks, "-b", size, "-e", size
    )
    # Linux gives KiB: of the largest process until now.
    mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Figure(seconds, f"{mebibytes:.0f} MiB at most until then")


if __name__ == "__main__":
    program.alone(__doc__, "all_reduce ring 4096 1G", simulated)
