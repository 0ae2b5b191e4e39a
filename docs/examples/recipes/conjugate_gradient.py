"""Solve a sparse symmetric system by conjugate gradients. Its rows are split over the ranks.

``mpiexec -n 4 python conjugate_gradient.py``. It takes SciPy.
"""

import numpy as np
from spmv import DistributedMatrix, laplacian

import hpccomm


def solve(
    comm: hpccomm.Communicator, matrix: DistributedMatrix, b: np.ndarray, tolerance: float = 1e-10
) -> tuple[np.ndarray, int]:
    """Return this rank's part of the solution, and the number of steps."""

    def dot(x: np.ndarray, y: np.ndarray) -> float:
        return comm.all_reduce(x @ y)

    x, r, p = np.zeros_like(b), b.copy(), b.copy()
    first = square = dot(r, r)
    steps = 0
    while square > tolerance**2 * first:
        product = matrix @ p
        step = square / dot(p, product)
        x += step * p
        r -= step * product
        before, square = square, dot(r, r)
        p = r + square / before * p
        steps += 1
    return x, steps


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        whole = laplacian(100)
        own = np.array_split(np.arange(whole.shape[0]), comm.size)[comm.rank]
        matrix, b = DistributedMatrix(comm, whole[own]), np.ones(len(own))
        x, steps = solve(comm, matrix, b)
        rest = comm.all_reduce(abs(b - matrix @ x).max(), hpccomm.ReduceOp.MAX)
        if comm.rank == 0:
            print(f"{steps} steps; the largest residual is {rest:.1e}")
