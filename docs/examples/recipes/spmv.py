"""Multiply a sparse matrix by a vector. Rows of both are split over the ranks.

``mpiexec -n 4 python spmv.py``. It takes SciPy.
"""

import numpy as np
from scipy import sparse

import hpccomm


class DistributedMatrix:
    """A block of rows on each rank, and the exchange of the elements of x that they need.

    Parameters
    ----------
    comm : Communicator
        All its ranks make it together.
    rows : sparse array, shape ``(n, all)``
        This rank's rows of a square matrix.
    """

    def __init__(self, comm: hpccomm.Communicator, rows: sparse.csr_array) -> None:
        ends = np.cumsum(comm.all_gather(rows.shape[0]))
        first, end = ends[comm.rank] - rows.shape[0], ends[comm.rank]
        columns = np.unique(rows.indices)
        ghosts = columns[(columns < first) | (columns >= end)]  # in the order of their owners
        receives = np.bincount(np.searchsorted(ends, ghosts, side="right"), minlength=comm.size)
        # Once: each rank says which elements it needs. Later only these elements travel.
        wanted, sends = comm.all_to_all_v(ghosts, receives, return_counts=True)
        self._wanted = wanted - first
        self._packed = np.empty(len(wanted))
        self._x = np.empty(end - first + len(ghosts))  # own elements, then ghosts
        self.own = self._x[: end - first]
        sends = np.array(sends)
        peers = np.flatnonzero(receives + sends)
        self._exchange = comm.plan(
            "neighbor_all_to_all",
            self._packed,
            peers,
            sends[peers],
            receives[peers],
            out=self._x[end - first :],
        )
        # The columns of x as it lies here.
        inside = (rows.indices >= first) & (rows.indices < end)
        places = np.searchsorted(ghosts, rows.indices) + end - first
        places[inside] = rows.indices[inside] - first
        self._rows = sparse.csr_array((rows.data, places, rows.indptr), (end - first, len(self._x)))

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        """Return this rank's rows of the product. `x` has this rank's rows. Collective."""
        self.own[:] = x
        np.take(x, self._wanted, out=self._packed)
        self._exchange()
        return self._rows @ self._x


def laplacian(n: int) -> sparse.csr_array:
    """Return the matrix of the five-point stencil on n x n points."""
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sparse.csr_array(sparse.kronsum(line, line))


if __name__ == "__main__":
    with hpccomm.new_comm() as comm:
        matrix = laplacian(100)
        own = np.array_split(np.arange(matrix.shape[0]), comm.size)[comm.rank]
        product = DistributedMatrix(comm, matrix[own]) @ np.ones(len(own))
        total = comm.all_reduce(product.sum())
        if comm.rank == 0:
            print(f"the product with ones sums to {total:g}: the length of the border")
