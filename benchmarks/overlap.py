"""Whether an asynchronous all-reduce goes on while the program is elsewhere.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/overlap.py

Each turn takes a synchronous all-reduce, and an asynchronous one with a sleep between its start and
`wait`. The ratio is the time in `wait` over the synchronous time: 0 if the whole of it happened
meanwhile, 1 if none did.
"""

import argparse
import statistics
import time

import numpy as np

import hpccomm


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the array")
    parser.add_argument("--sleep", type=float, default=1.0, help="seconds outside the library")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()

    with hpccomm.new_comm() as comm:
        x = np.zeros(arguments.mebibytes * 2**18, np.float32)
        comm.all_reduce(x)
        synchronous, waited = [], []
        for _ in range(arguments.turns):
            comm.barrier()
            begin = time.perf_counter()
            comm.all_reduce(x)
            synchronous.append(time.perf_counter() - begin)
            comm.barrier()
            work = comm.all_reduce(x, async_op=True)
            time.sleep(arguments.sleep)
            begin = time.perf_counter()
            work.wait()
            waited.append(time.perf_counter() - begin)
        slowest = max(comm.all_gather_object(statistics.median(waited)))
        if comm.rank == 0:
            usual = statistics.median(synchronous)
            print(
                f"# {arguments.mebibytes} MiB float32, {comm.size} ranks, medians of "
                f"{arguments.turns} turns"
            )
            print(f"  all_reduce(x)                     {usual * 1e3:9.3f} ms")
            print(
                f"  wait() after {arguments.sleep:g} s, slowest rank    {slowest * 1e3:9.3f} ms "
                f"= {slowest / usual:.1%} of that"
            )


if __name__ == "__main__":
    main()
