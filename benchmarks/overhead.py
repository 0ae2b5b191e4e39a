"""What a call costs over mpi4py's own: an 8-byte all-reduce, side by side in one run.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/overhead.py

The three ways take turns, block by block, so that a change of the machine's speed meets all alike.
Figures are medians over the blocks of the mean of a call, in microseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import hpccomm


def block(call: Callable[[], object], calls: int) -> float:
    """Return the mean microseconds of `calls` calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=5000, help="calls a block")
    parser.add_argument("--blocks", type=int, default=61, help="blocks of each way")
    arguments = parser.parse_args()

    bare = MPI.COMM_WORLD.Dup()
    with hpccomm.new_comm() as comm:
        x = np.zeros(2, np.float32)
        ways: dict[str, Callable[[], object]] = {
            "mpi4py Allreduce(MPI.IN_PLACE, x)": lambda: bare.Allreduce(MPI.IN_PLACE, x),
            "comm.all_reduce(x)": lambda: comm.all_reduce(x),
            "plan()": comm.plan("all_reduce", x),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(arguments.blocks + 1):
            for name, call in ways.items():
                bare.Barrier()
                mean = block(call, arguments.calls)
                if turn:  # the first turn warms up
                    times[name].append(mean)
        if comm.rank == 0:
            print(
                f"# {x.nbytes} bytes, {comm.size} ranks, {arguments.blocks} blocks of "
                f"{arguments.calls} calls each, microseconds a call"
            )
            print(f"# {'':36s} {'median':>8s} {'min':>8s} {'over mpi4py':>12s}")
            base = times["mpi4py Allreduce(MPI.IN_PLACE, x)"]
            for name, samples in times.items():
                over = statistics.median(a - b for a, b in zip(samples, base, strict=True))
                print(
                    f"  {name:36s} {statistics.median(samples):8.2f} {min(samples):8.2f} "
                    f"{over:12.2f}"
                )


if __name__ == "__main__":
    main()
