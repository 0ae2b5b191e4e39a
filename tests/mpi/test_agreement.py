"""Ranks that are late, over MPI: they are let come."""

import time
from typing import Any

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm

LATE_SECONDS = 0.45
"""In this time the ranks that wait ask the late one."""


LATE = {
    "counts": lambda comm: comm.all_gather_v(np.ones(comm.rank + 1), list(range(1, comm.size + 1))),
    "batch": lambda comm: _in_a_batch(comm),
    "plan": lambda comm: comm.plan("all_gather_v", np.ones(1), [1] * comm.size)(),
    "window": lambda comm: comm.window(np.ones(comm.rank + 1)).close(),
    "message first": lambda comm: _message_first(comm),
    "split": lambda comm: comm.split(0, key=-comm.rank).finalize(),
    "messages": lambda comm: comm.send_recv(
        np.ones(2), (comm.rank + 1) % comm.size, np.ones(2), (comm.rank - 1) % comm.size
    ),
    "objects": lambda comm: comm.all_gather_object("x" * comm.rank),
}
"""Calls in which ranks have different parts, and which they make alike."""


def _message_first(comm: Any) -> None:
    x = np.ones(100_000)
    if comm.rank == 0:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)
    comm.all_reduce(x)


def _in_a_batch(comm: Any) -> None:
    x, y = np.ones(2), np.ones(2)
    with comm.batch():
        comm.send(x, (comm.rank + 1) % comm.size)
        comm.recv(y, (comm.rank - 1) % comm.size)
        comm.all_reduce(x)
    assert (y == 1).all()


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", sorted(LATE))
def test_a_late_rank_is_no_mismatch_and_not_lost(mpi_comm: Any, kind: str) -> None:
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, options=hpccomm.CommOptions(self_check=False))
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    LATE[kind](comm)
    comm.finalize()
