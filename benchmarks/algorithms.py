"""hpccomm's algorithms beside the MPI library's own all-reduce, in one run.

Run it on two or four ranks::

    mpiexec -n 2 python benchmarks/algorithms.py
    mpiexec -n 4 python benchmarks/algorithms.py --algorithms ring,tree --sizes 16M,64M

The ways take turns, block by block, so that a change of the machine's speed meets all alike. Each
call sums float32 arrays out of place; results are compared once. A figure is the median over the
blocks of the slowest rank's mean, and the ratio is the median of the blocks' ratios: above 1, the
algorithm is faster than the library.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import hpccomm

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LIBRARY = "mpi4py Allreduce"


def size(text: str) -> int:
    """Return bytes from such as 1024, 1K, 64M."""
    unit = UNITS.get(text[-1].upper(), 0)
    return int(text[:-1]) * unit if unit else int(text)


def block(call: Callable[[], object], calls: int) -> float:
    """Return the mean seconds of `calls` calls, one after the other."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def compare(
    comm: hpccomm.Communicator, bare: MPI.Intracomm, nbytes: int, names: list[str], blocks: int
) -> None:
    """Measure one size, and print a line for each way."""
    x = np.arange(nbytes // 4, dtype=np.float32) % 1024 + comm.rank
    out, expected = np.empty_like(x), np.empty_like(x)
    bare.Allreduce(x, expected)
    ways: dict[str, Callable[[], object]] = {LIBRARY: lambda: bare.Allreduce(x, out)}
    for name in names:
        ways[name] = lambda name=name: comm.all_reduce(x, out=out, algorithm=name)
    for name in names:  # a plan is decided once, and then costs less than a call
        ways[f"{name}, plan"] = comm.plan("all_reduce", x, out=out, algorithm=name)
    calls = max(1, min(2000, (4 << 20) // max(nbytes, 1)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(blocks + 1):
        for name, call in ways.items():
            out.fill(0)
            bare.Barrier()
            mean = bare.allreduce(block(call, calls), MPI.MAX)
            if turn:  # the first turn warms up
                times[name].append(mean * 1e6)
            elif not np.array_equal(out, expected):
                raise SystemExit(f"{name} of {nbytes} bytes is wrong on rank {comm.rank}")
    if comm.rank == 0:
        print(f"# {nbytes} bytes, {comm.size} ranks, {blocks} blocks of {calls} calls")
        print(f"# {'':28s} {'median us':>12s} {'min us':>12s} {'library / it':>12s}")
        base = times[LIBRARY]
        for name, samples in times.items():
            ratio = statistics.median(b / a for a, b in zip(samples, base, strict=True))
            median = statistics.median(samples)
            print(f"  {name:28s} {median:12.2f} {min(samples):12.2f} {ratio:12.2f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1K,16M,64M", help="bytes, separated by commas")
    parser.add_argument("--algorithms", default="ring,recursive_doubling,halving_doubling,tree")
    parser.add_argument("--blocks", type=int, default=21, help="blocks of each way")
    arguments = parser.parse_args()
    bare = MPI.COMM_WORLD.Dup()
    with hpccomm.new_comm() as comm:
        for text in arguments.sizes.split(","):
            compare(comm, bare, size(text), arguments.algorithms.split(","), arguments.blocks)


if __name__ == "__main__":
    main()
