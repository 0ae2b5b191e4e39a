"""Draw samples on all ranks, and write them to one HDF5 file.

``mpiexec -n 4 python monte_carlo.py [FILE]``
"""

import sys

import h5py
import numpy as np

import hpccomm


def sample(comm: hpccomm.Communicator, count: int, seed: int = 1) -> np.ndarray:
    """Return this rank's points. They do not depend on those of other ranks."""
    stream = np.random.SeedSequence(seed).spawn(comm.size)[comm.rank]
    return np.random.default_rng(stream).uniform(-1, 1, size=(count, 2))


def write(comm: hpccomm.Communicator, path: str, rows: np.ndarray) -> None:
    """Write the rows of all ranks, by rank: one rank after another opens the file."""
    counts = comm.all_gather(len(rows))
    end = counts[: comm.rank + 1].sum()
    with comm.in_turn(), h5py.File(path, "a" if comm.rank else "w") as file:
        data = file.require_dataset("samples", (counts.sum(), *rows.shape[1:]), rows.dtype)
        data[end - len(rows) : end] = rows


def write_in_parallel(comm: hpccomm.Communicator, path: str, rows: np.ndarray) -> None:
    """Do the same on all ranks at once. It takes an h5py that was built with MPI."""
    counts = comm.all_gather(len(rows))
    end = counts[: comm.rank + 1].sum()
    with h5py.File(path, "w", driver="mpio", comm=comm.mpi_comm) as file:
        data = file.create_dataset("samples", (counts.sum(), *rows.shape[1:]), rows.dtype)
        with data.collective:
            data[end - len(rows) : end] = rows


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "samples.h5"
    with hpccomm.new_comm() as comm:
        points = sample(comm, 100_000)
        (write_in_parallel if h5py.get_config().mpi else write)(comm, path, points)
        inside = comm.all_reduce(((points**2).sum(axis=1) < 1).mean())
        if comm.rank == 0:
            print(f"the samples are in {path}; pi is about {4 * inside / comm.size:.4f}")
