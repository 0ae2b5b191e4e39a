"""Heat that flows through a plate: each rank has a strip of its rows, and exchanges the rows at the edges."""

import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
above, below = comm.rank - 1, comm.rank + 1
if comm.rank == 0:
    above = MPI.PROC_NULL
if below == comm.size:
    below = MPI.PROC_NULL
rows, columns = 2, 400_000
plate = np.zeros((rows + 2, columns))
plate[:, 0] = 100.0


def exchange() -> None:
    """Exchange the rows at the edges with the ranks above and below."""
    got = comm.sendrecv(plate[1], dest=above, source=below)
    if got is not None:
        plate[-1] = got
    got = comm.sendrecv(plate[-2], dest=below, source=above)
    if got is not None:
        plate[0] = got


for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
    exchange()
    old = plate[1:-1, 1:-1].copy()
    plate[1:-1, 1:-1] += 0.2 * (
        plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:] - 4 * old
    )
    change = comm.allreduce(float(abs(plate[1:-1, 1:-1] - old).max()), op=MPI.MAX)
if comm.rank == 0:
    print(f"the last step changed {change:.2g} degrees")
