"""Ranks that are late are let come, and ranks whose calls meet wrongly are told, over MPI."""

import re
import time
from typing import Any

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm.errors import CommunicatorAborted, RankMismatch

LATE_SECONDS = 0.45
"""In this time the ranks that wait ask the late one."""


LATE = {
    "counts": lambda comm: comm.all_gather_v(np.ones(comm.rank + 1), list(range(1, comm.size + 1))),
    "plan": lambda comm: comm.plan("all_gather_v", np.ones(1), [1] * comm.size)(),
    "window": lambda comm: comm.window(np.ones(comm.rank + 1)).close(),
    "split": lambda comm: comm.split(0, key=-comm.rank).finalize(),
    "messages": lambda comm: comm.send_recv(
        np.ones(2), (comm.rank + 1) % comm.size, np.ones(2), (comm.rank - 1) % comm.size
    ),
    "objects": lambda comm: comm.all_gather_object("x" * comm.rank),
}
"""Calls in which ranks have different parts, and which they make alike."""


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", sorted(LATE))
def test_a_late_rank_is_no_mismatch_and_not_lost(mpi_comm: Any, kind: str) -> None:
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, options=hpccomm.CommOptions(self_check=False))
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    LATE[kind](comm)
    comm.finalize()


TRUNCATED = {
    "a count": lambda comm, odd: comm.broadcast(room(np.float64)[: 4 if odd else 8]),
    "a dtype": lambda comm, odd: comm.broadcast(room(np.float32 if odd else np.float64)[:4]),
    "a number": lambda comm, odd: comm.broadcast(2.0 if odd else room(np.float64)[:4]),
}
"""Known calls of which rank 1 makes another one; the library ends those that receive by an error of truncation."""


def room(dtype: Any) -> Any:
    """Return an array with room behind what is given, into which a library may write."""
    return np.ones(64, dtype)


@by_default_on(3)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", TRUNCATED)
def test_a_truncation_is_told_as_the_calls_that_met(mpi_comm: Any, kind: str) -> None:
    """That both calls are named is checked against the program; MPI knows of sizes alone."""
    if mpi_comm.size > 3:
        pytest.skip("in a larger tree a rank waits in the library for rank 1, and the job ends")
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60)
    for odd in (False, True):
        TRUNCATED[kind](comm, odd)
    comm.barrier(algorithm="dissemination")

    def call() -> None:
        TRUNCATED[kind](comm, comm.rank == 1)
        for _ in range(2):  # who has not received hears of it
            time.sleep(LATE_SECONDS)
            comm.barrier(algorithm="dissemination")

    with pytest.raises(RankMismatch, match="call different things") as caught:
        call()
    said = str(caught.value)  # of a rank that is late it tells nothing
    assert re.search(r"ranks? 0( and 2)?: .*test_agreement.py line", said)
    assert re.search(r"rank 1: .*test_agreement.py line", said)
    with pytest.raises(CommunicatorAborted):
        comm.broadcast(np.ones(4))
    comm.abort()
    mpi_comm.Barrier()


@by_default_on(3)
@pytest.mark.mpi(min_size=2)
def test_what_ranks_compare_meets_no_asynchronous_call(mpi_comm: Any) -> None:
    """A library pairs non-blocking collectives by their order on a communicator (MPI 4.1, 6.12), whatever they are."""
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60)
    gradient = np.ones(20_000)
    comm.all_reduce(gradient, async_op=True).wait()
    with pytest.raises(RankMismatch, match="call different things"):
        comm.all_reduce(gradient if comm.rank else gradient[:7].copy(), async_op=True).wait()
    comm.abort()
    mpi_comm.Barrier()
