"""Transform a matrix in both directions. Its rows are split over the ranks.

``mpiexec -n 4 python transpose_fft.py``
"""

import numpy as np

import hpccomm


def transpose(comm: hpccomm.Communicator, x: np.ndarray) -> np.ndarray:
    """Return this rank's rows of the transposed matrix. `x` is its rows of the matrix."""
    return comm.all_to_all(x, axis=(1, 0)).T


def fft2(comm: hpccomm.Communicator, x: np.ndarray) -> np.ndarray:
    """Return this rank's columns of the transform, as rows. `x` is its rows of the matrix."""
    return np.fft.fft(transpose(comm, np.fft.fft(x)))


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        n = 60 * comm.size
        rows = np.random.default_rng(comm.rank).normal(size=(n // comm.size, n))
        columns = fft2(comm, rows)
        # Parseval: the transform has the same energy.
        before, after = comm.all_reduce(np.array([(rows**2).sum(), (abs(columns) ** 2).sum()]))
        if comm.rank == 0:
            print(f"energy before {before:.6f}, after {after / n**2:.6f}")
