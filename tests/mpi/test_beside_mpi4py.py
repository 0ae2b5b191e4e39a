"""The programs of docs/examples/beside_mpi4py.py do the same in mpi4py and in hpccomm."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpccomm import Communicator

sys.path.append(str(Path(__file__).parents[2] / "docs/examples"))

import beside_mpi4py as pairs


def test_a_matrix_times_a_vector(comm: Communicator, mpi_comm: MPI.Comm) -> None:
    random = np.random.default_rng(0)
    a, x = random.normal(size=(11, 11)), random.normal(size=11)
    rows = np.array_split(np.arange(11), comm.size)[comm.rank]
    truth = (a @ x)[rows]
    np.testing.assert_allclose(pairs.product(comm, a[rows], x[rows]), truth)
    np.testing.assert_allclose(pairs.product_mpi4py(mpi_comm, a[rows], x[rows]), truth)


def test_pi(comm: Communicator, mpi_comm: MPI.Comm) -> None:
    n = 1000 if comm.rank == 0 else None
    for area in (pairs.pi(comm, n), pairs.pi_mpi4py(mpi_comm, n)):
        assert area is None if comm.rank else area == pytest.approx(math.pi, abs=1e-6)


@pytest.mark.mpi(min_size=2)  # a manager and a worker
def test_a_julia_set(comm: Communicator, mpi_comm: MPI.Comm) -> None:
    picture, theirs = pairs.julia(comm), pairs.julia_mpi4py(mpi_comm)
    if comm.rank == 0:
        truth = [pairs.julia_line(row) for row in range(pairs.HEIGHT)]
        np.testing.assert_array_equal(picture, truth)
        np.testing.assert_array_equal(theirs, truth)
