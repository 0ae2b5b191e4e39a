"""What a call costs over mpi4py's own: an 8-byte all-reduce, side by side in one run.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/overhead.py

The three ways take turns, block by block, so that a change of the machine's speed meets all alike.
Figures are microseconds of a call on the slowest rank, medians over the blocks.
"""

import argparse

import numpy as np
from mpi4py import MPI

import hpccomm
from contest.rounds import Call, Times, compete

LIBRARY = "mpi4py Allreduce(MPI.IN_PLACE, x)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000, help="calls a block")
    parser.add_argument("--blocks", type=int, default=61, help="blocks of each way")
    arguments = parser.parse_args()

    bare = MPI.COMM_WORLD.Dup()
    with hpccomm.new_comm() as comm:
        x = np.zeros(2, np.float32)
        ways: dict[str, Call] = {
            LIBRARY: lambda: bare.Allreduce(MPI.IN_PLACE, x),
            "comm.all_reduce(x)": lambda: comm.all_reduce(x),
            "plan()": comm.plan("all_reduce", x),
        }
        measured = compete(list(ways.values()), bare, arguments.blocks, arguments.calls)
        if comm.rank == 0:
            print(
                f"# {x.nbytes} bytes, {comm.size} ranks, {arguments.blocks} blocks of "
                f"{arguments.calls} calls each, microseconds a call"
            )
            show(dict(zip(ways, measured, strict=True)))


def show(measured: dict[str, Times]) -> None:
    """Print a line for each way."""
    print(f"# {'':36s} {'median':>8s} {'min':>8s} {'over mpi4py':>12s}")
    library = measured[LIBRARY].rounds
    for name, times in measured.items():
        over = float(np.median(times.rounds - library)) * 1e6
        least = float(times.rounds.min()) * 1e6
        print(f"  {name:36s} {times.seconds * 1e6:8.2f} {least:8.2f} {over:12.2f}")


if __name__ == "__main__":
    main()
