"""The same over MPI, whose own collectives would write beyond the smaller array."""

from random import Random
from typing import Any

import pytest

import hpccomm
from hpccomm.errors import RankMismatch
from tests.calls import CALLS

PAIRS = 12


@pytest.mark.mpi(min_size=2)
def test_any_two_calls_that_differ_are_a_mismatch_on_all_ranks(
    mpi_comm: Any, request: pytest.FixtureRequest
) -> None:
    drawn = Random(1)  # the same on all ranks
    for _ in range(PAIRS * (20 if request.config.getoption("--all") else 1)):
        one, other = drawn.sample(sorted(CALLS), 2)
        unchecked = hpccomm.CommOptions(self_check=False)
        comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=10, options=unchecked)
        with pytest.raises(RankMismatch) as caught:
            CALLS[other if comm.rank == 1 else one](comm)
        assert 1 in caught.value.ranks
        comm.abort()
        mpi_comm.Barrier()
