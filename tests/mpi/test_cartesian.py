"""Cartesian grids, beside mpi4py's own; and what the page for its users says of them."""

from collections.abc import Iterable
from itertools import product

import numpy as np
from halos import shapes
from mpi4py import MPI

from hpccomm import Communicator
from hpccomm.communicator.grid import balanced


def test_a_grid_is_that_of_mpi(comm: Communicator, mpi_comm: MPI.Intracomm) -> None:
    """Every function of a Cartesian communicator, for all shapes and edges."""
    for dims in shapes(comm.size):
        for periodic in product((False, True), repeat=len(dims)):
            ours, theirs = comm.grid(dims, periodic), mpi_comm.Create_cart(dims, periodic)
            lengths, periods, coords = theirs.Get_topo()
            assert (ours.dims, ours.coords) == (tuple(lengths), tuple(coords))
            assert ours.periodic == tuple(map(bool, periods))
            for rank in range(comm.size):
                assert ours.coords_of(rank) == tuple(theirs.Get_coords(rank))
                assert ours.rank_of(ours.coords_of(rank)) == rank
            for place in product(*(range(-n, 2 * n) for n in dims)):
                inside = (
                    each or 0 <= at < n for each, at, n in zip(periodic, place, dims, strict=True)
                )
                there = theirs.Get_cart_rank(place) if all(inside) else None
                assert ours.rank_of(place) == there
            for axis, steps in product(range(len(dims)), (1, -1, 2, 0, comm.size + 1)):
                assert ours.shift(axis, steps) == none_beyond(theirs.Shift(axis, steps))
            assert sum(ours.neighbors, ()) == none_beyond(theirs.inedges)
            theirs.Free()


def none_beyond(ranks: Iterable[int]) -> tuple[int | None, ...]:
    return tuple(None if each < 0 else each for each in ranks)


def test_groups_of_a_grid_are_those_of_mpi(comm: Communicator, mpi_comm: MPI.Intracomm) -> None:
    theirs = mpi_comm.Create_cart(balanced(comm.size, 3))
    with comm.grid(theirs.dims) as grid:
        for axes in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]:
            along, group = theirs.Sub([each in axes for each in range(3)]), grid.along(*axes)
            assert (group.rank, group.size) == (along.rank, along.size)
            assert group is grid.along(*axes)
            assert along.allreduce(comm.rank) == group.all_reduce(np.array([comm.rank]))
            along.Free()
    theirs.Free()


def test_lengths_are_chosen_as_by_mpi(comm: Communicator) -> None:
    for dims in [0], [0, 0], [0, 0, 0], [1, 0], [0, 1, 0], [comm.size, 0]:
        assert list(comm.grid(dims).dims) == MPI.Compute_dims(comm.size, dims)
    for size in range(1, 65):
        for count in (1, 2, 3):
            ours, theirs = balanced(size, count), MPI.Compute_dims(size, count)
            # MPI wants them "as close to each other as possible", and Open MPI makes (12, 6) of 72.
            assert ours == theirs or max(ours) < max(theirs), size
