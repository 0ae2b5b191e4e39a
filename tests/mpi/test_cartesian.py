"""The page for mpi4py users is right about MPI's Cartesian grids."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccomm import Communicator


@pytest.mark.parametrize("periodic", [False, True])
def test_borders_of_a_grid_are_those_of_mpi(
    comm: "Communicator", mpi_comm: "MPI.Intracomm", periodic: bool
) -> None:
    grid = mpi_comm.Create_cart([comm.size], periods=[periodic])
    left, right = (None if each < 0 else each for each in grid.Shift(0, 1))
    x = np.array([10 * comm.rank + 1, 10 * comm.rank + 2])
    theirs, ours = np.zeros(2, int), np.zeros(2, int)
    grid.Neighbor_alltoall(x, theirs)
    grid.Free()
    comm.send_recv(x[:1], left, ours[1:], right)
    comm.send_recv(x[1:], right, ours[:1], left)
    np.testing.assert_array_equal(ours, theirs)
    listed = comm.neighbor_all_to_all(x, [left, right], out=np.zeros(2, int))
    swapped = periodic and comm.size <= 2
    np.testing.assert_array_equal(listed, theirs[::-1] if swapped else theirs)


def test_groups_of_a_mesh_are_those_of_mpi(comm: "Communicator", mpi_comm: "MPI.Intracomm") -> None:
    with comm.mesh((-1, 2 if comm.size % 2 == 0 else 1), ("x", "y")) as mesh:
        grid = mpi_comm.Create_cart(list(mesh.shape))
        assert list(mesh.coords) == grid.Get_coords(comm.rank)
        for axis, name in enumerate(mesh.names):
            along = grid.Sub([each == axis for each in range(2)])
            assert (mesh[name].rank, mesh[name].size) == (along.rank, along.size)
            total = mesh[name].all_reduce(np.array([comm.rank]))
            assert total == along.allreduce(comm.rank)
            along.Free()
        grid.Free()
