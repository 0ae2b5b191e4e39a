"""Halos over MPI, whose datatypes pack the faces; their records and what they cost no one."""

import halos

from hpccomm import Communicator


def test_ghost_cells_are_those_of_the_padded_whole_in_any_layout(comm: Communicator) -> None:
    halos.check(comm)
    halos.check_layouts(comm)
    halos.check_strides(comm)
