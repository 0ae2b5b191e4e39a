"""The same over MPI, whose own collectives would write beyond the smaller array."""

import time
from random import Random
from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm.errors import RankMismatch
from tests.calls import CALLS

PAIRS = 12
LATE_SECONDS = 0.45
"""In this time the ranks that wait ask the late one."""


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


LATE = {
    "counts": lambda comm: comm.all_gather_v(np.ones(comm.rank + 1), list(range(1, comm.size + 1))),
    "batch": lambda comm: _in_a_batch(comm),
    "plan": lambda comm: comm.plan("all_gather_v", np.ones(1), [1] * comm.size)(),
    "window": lambda comm: comm.window(np.ones(comm.rank + 1)).close(),
    "split": lambda comm: comm.split(0, key=-comm.rank).finalize(),
    "messages": lambda comm: comm.send_recv(
        np.ones(2), (comm.rank + 1) % comm.size, np.ones(2), (comm.rank - 1) % comm.size
    ),
    "objects": lambda comm: comm.all_gather_object("x" * comm.rank),
}
"""Calls in which ranks have different parts, and which they make alike."""


def _in_a_batch(comm: Any) -> None:
    x, y = np.ones(2), np.ones(2)
    with comm.batch():
        comm.send(x, (comm.rank + 1) % comm.size)
        comm.recv(y, (comm.rank - 1) % comm.size)
        comm.all_reduce(x)
    assert (y == 1).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", sorted(LATE))
def test_a_late_rank_is_no_mismatch_and_not_lost(mpi_comm: Any, kind: str) -> None:
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, options=hpccomm.CommOptions(self_check=False))
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    LATE[kind](comm)
    comm.finalize()
