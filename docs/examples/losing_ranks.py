"""Sum a series on all ranks, lose one of them on the way, and finish with the right sum.

``mpiexec --with-ft ulfm -n 4 python losing_ranks.py`` (Open MPI 5).
"""

import math
import os
import signal

import numpy as np

import hpccomm

STEPS, TERMS = 20, 10_000
"""The sum has so many parts of so many terms, and all ranks work on one part at a time."""

LOST_IN = 7
"""The part in which the last rank is killed."""


def part(step: int, rank: int, size: int) -> float:
    """Return this rank's share of one part of 4/1 - 4/3 + 4/5 - ..., whose sum is pi."""
    term = np.arange(step * TERMS + rank, (step + 1) * TERMS, size)
    return float((4.0 * (-1.0) ** term / (2 * term + 1)).sum())


def main() -> None:
    """Sum, whoever is left."""
    comm = hpccomm.new_comm("mpi", timeout=60)
    total, step = 0.0, 0
    while step < STEPS:
        if step == LOST_IN and comm.name == "world" and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)  # what a broken node does
        try:
            mine = np.array([part(step, comm.rank, comm.size)])
            everyone = comm.all_reduce(mine)
        except (hpccomm.PeerLost, hpccomm.CommunicatorAborted) as error:
            comm = comm.shrink()
            if comm.rank == 0:
                print(f"{type(error).__name__}: {error}")
                print(f"{comm.name} goes on with {comm.size} ranks", flush=True)
            # A rank may have had its result before the loss, and another not: go on where all are.
            state = comm.all_gather(np.array([step, total]))
            step, total = int(state[:, 0].min()), float(state[state[:, 0].argmin(), 1])
            continue
        total, step = total + float(everyone[0]), step + 1
    if comm.rank == 0:
        rest = 4.0 / (2 * STEPS * TERMS + 1)  # the first term that is left out
        print(f"pi is {total:.9f}, within {rest:.0e}: {abs(total - math.pi) < rest}")
    comm.finalize()


if __name__ == "__main__":
    main()
