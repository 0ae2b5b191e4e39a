"""Three patterns of mpi4py's tutorial and demos, each in mpi4py and in hpccomm.

``mpiexec -n 4 python beside_mpi4py.py``
"""

import numpy as np
from mpi4py import MPI

import hpccomm
from hpccomm import ANY


def product_mpi4py(comm: MPI.Comm, a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return this rank's rows of a @ x. `a` and `x` are its rows."""
    counts = comm.allgather(len(x))
    whole = np.empty(sum(counts), x.dtype)
    comm.Allgatherv(x, (whole, counts))
    return a @ whole


def product(comm: hpccomm.Communicator, a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return this rank's rows of a @ x. `a` and `x` are its rows."""
    return a @ comm.all_gather_v(x)


def part_of_pi(rank: int, size: int, n: int) -> float:
    """Return a rank's part of the area below 4 / (1 + x²), by n rectangles."""
    x = (np.arange(rank, n, size) + 0.5) / n
    return float((4.0 / (1.0 + x**2)).sum() / n)


def pi_mpi4py(comm: MPI.Comm, n: int | None) -> float | None:
    """Return pi on rank 0, which chooses n."""
    n = comm.bcast(n)
    return comm.reduce(part_of_pi(comm.rank, comm.size, n))


def pi(comm: hpccomm.Communicator, n: int | None) -> float | None:
    """Return pi on rank 0, which chooses n."""
    n = comm.broadcast_object(n)
    return comm.reduce(part_of_pi(comm.rank, comm.size, n))


WIDTH, HEIGHT = 160, 120


def julia_line(row: int) -> np.ndarray:
    """Return a row of the picture: the steps until each point has left the circle."""
    z = np.linspace(-2, 2, WIDTH) + 1j * (1.5 - 3 * row / HEIGHT)
    steps = np.zeros(WIDTH, np.uint8)
    for _ in range(255):
        inside = abs(z) < 3
        z[inside] = z[inside] ** 2 + 0.65j
        steps += inside
    return steps


def julia_mpi4py(comm: MPI.Comm) -> np.ndarray | None:
    """Return the picture on rank 0, the manager. The others work."""
    if comm.rank:
        while (row := comm.recv(source=0)) is not None:
            comm.Send(julia_line(row), 0, tag=row)
        return None
    picture = np.empty((HEIGHT, WIDTH), np.uint8)
    line, status = np.empty(WIDTH, np.uint8), MPI.Status()
    rows = iter(range(HEIGHT))
    for worker in range(1, comm.size):
        comm.send(next(rows, None), worker)
    for _ in range(HEIGHT):
        comm.Recv(line, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        picture[status.tag] = line
        comm.send(next(rows, None), status.source)
    return picture


def julia(comm: hpccomm.Communicator) -> np.ndarray | None:
    """Return the picture on rank 0, the manager. The others work."""
    if comm.rank:
        while (row := comm.recv_object(0)) is not None:
            comm.send(julia_line(row), 0, tag=row)
        return None
    picture = np.empty((HEIGHT, WIDTH), np.uint8)
    rows = iter(range(HEIGHT))
    for worker in range(1, comm.size):
        comm.send_object(next(rows, None), worker)
    for _ in range(HEIGHT):
        line, worker, row = comm.recv(None, ANY, ANY, return_src=True)
        picture[row] = line
        comm.send_object(next(rows, None), worker)
    return picture


if __name__ == "__main__":
    with hpccomm.new_comm() as world:
        print(pi(world, 1000))
