"""Whether `hpccomm perf` gives the bandwidth that a bare loop of CuPy's NCCL calls has.

Run it on two ranks, with a GPU each if there are two::

    mpiexec -n 2 python benchmarks/device_bandwidth.py

In the same processes, `perf all_reduce --backend nccl` and a bare loop take turns, size by size: the
same number of warm-ups and repetitions back to back, the same clock (the host's, around the block, until
the stream is done; the average of the ranks), arrays of the same size. Figures are medians over the
turns; ratios are medians of the ratios of two turns that follow each other.

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import argparse
import io
import sys
import time
from contextlib import nullcontext

import numpy as np
from mpi4py import MPI

import hpccomm
from contest import device, program
from contest.device import BareNccl, on_stream
from contest.program import Option
from contest.rounds import Call
from hpccomm.tools.flags import add_flags
from hpccomm.tools.perf import flags, sweep

LEAST = 0.98
"""Of the bare loop's bandwidth."""
WARM_UPS = 5
OUT_OF_PLACE, IN_PLACE = 5, 9
"""Columns of the times in perf's table."""


def main() -> None:
    """Measure and print."""
    options = {
        "sizes": Option("1M,4M,16M,64M,256M", "bytes, with K, M or G", program.sizes),
        "iters": Option(50, "repetitions of a turn"),
        "turns": program.turns(11),
    }
    arguments = program.parser(__doc__, options).parse_args()

    import cupy

    with device.ranks() as (comm, verdicts):
        verdicts.say(f"# float32 sum, {arguments.turns} turns of {arguments.iters} all-reduces;")
        verdicts.say("# microseconds, and the bandwidth of perf over that of the bare loop")
        verdicts.say(f"# {'bytes':>12s} {'':12s} {'perf':>10s} {'bare':>10s} {'ratio':>7s}")
        worst = 2.0
        with on_stream(comm) as stream:
            bare = BareNccl(comm)
            for nbytes in arguments.sizes:
                x, y = (cupy.zeros(nbytes // 4, np.float32) for _ in range(2))
                loops = [bare.all_reduce(x, y, stream), bare.all_reduce(x, x, stream)]
                turns = []
                for _ in range(arguments.turns):
                    theirs = [block(loop, stream.synchronize, arguments.iters) for loop in loops]
                    turns.append([perf(comm, nbytes, arguments.iters), theirs])
                of_perf, of_bare = np.array(turns).transpose(1, 2, 0)
                ratios = np.median(of_bare / of_perf, axis=1)
                worst = min(worst, *ratios)
                for at, where in enumerate(("out of place", "in place")):
                    times = " ".join(f"{np.median(of[at]):10.2f}" for of in (of_perf, of_bare))
                    verdicts.say(f"  {nbytes:12d} {where:12s} {times} {ratios[at]:7.3f}")
            bare.close()
        worst = comm.broadcast_object(worst)  # one verdict, and one exit status
        has = f"perf all_reduce --backend nccl has {worst:.1%} of the bare loop's bandwidth or more"
        verdicts.time_limit(worst >= LEAST, f"{has} (at least {LEAST:.0%})")


def perf(comm: hpccomm.Communicator, nbytes: int, iters: int) -> list[float]:
    """Return the microseconds that perf prints, out of place and in place; ones beside rank 0."""
    parser = argparse.ArgumentParser()
    add_flags(parser, flags.ARGUMENTS)
    sizes = ["-b", str(nbytes), "-e", str(nbytes)]
    asked = ["all_reduce", *sizes, "-n", str(iters), "-w", str(WARM_UPS), "-c", "0"]
    options = flags.options(parser.parse_args([*asked, "--backend", "nccl"]))
    table = io.StringIO()
    sweep.run(lambda _: nullcontext(comm), options, table, sys.stderr)
    if comm.rank:
        return [1.0, 1.0]
    (row,) = (line.split() for line in table.getvalue().splitlines() if line.startswith("  "))
    return [float(row[OUT_OF_PLACE]), float(row[IN_PLACE])]


def block(call: Call, synchronize: Call, iters: int) -> float:
    """Return the microseconds of a call in a block of them, as perf takes them. Collective."""
    for _ in range(WARM_UPS):
        call()
    synchronize()
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(iters):
        call()
    synchronize()
    own = (time.perf_counter() - begin) / iters * 1e6
    return float(MPI.COMM_WORLD.allreduce(own)) / MPI.COMM_WORLD.Get_size()


if __name__ == "__main__":
    main()
