"""Whether an asynchronous all-reduce goes on while the program is elsewhere.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/overlap.py

Each turn takes a synchronous all-reduce, and an asynchronous one with a sleep between its start and
`wait`. The figure is the time in `wait` over the synchronous time: 0 if the whole of it happened
meanwhile, 1 if none did.
"""

import argparse
import statistics
import time

import numpy as np

import hpccomm
from contest import figures
from contest.figures import Figure


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "all_reduce wait")
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the array")
    parser.add_argument("--sleep", type=float, default=1.0, help="seconds outside the library")
    parser.add_argument("--turns", type=int, default=5)
    request = parser.parse_args()

    with hpccomm.new_comm() as comm:
        x = np.zeros(request.mebibytes * 2**18, np.float32)
        comm.all_reduce(x)
        synchronous, waited = [], []
        for _ in range(request.turns):
            comm.barrier()
            begin = time.perf_counter()
            comm.all_reduce(x)
            synchronous.append(time.perf_counter() - begin)
            comm.barrier()
            work = comm.all_reduce(x, async_op=True)
            time.sleep(request.sleep)
            begin = time.perf_counter()
            work.wait()
            waited.append(time.perf_counter() - begin)
        slowest = max(comm.all_gather_object(statistics.median(waited)))
        if comm.rank == 0:
            usual = statistics.median(synchronous)
            says = (
                f"{slowest * 1e3:.3f} ms in wait() after {request.sleep:g} s; "
                f"all_reduce of {request.mebibytes} MiB takes {usual * 1e3:.3f} ms"
            )
            figures.show({"all_reduce wait": Figure(slowest / usual, says)}, request.json)


if __name__ == "__main__":
    main()
