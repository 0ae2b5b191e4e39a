"""Ranks that are late are let come, and ranks whose calls meet wrongly are told, over MPI."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
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


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("crossed", [False, True])
def test_threads_that_call_in_another_order_never_get_each_other_s_data(
    mpi_comm: Any, crossed: bool
) -> None:
    """All calls are of one kind, so only what the threads mean tells them apart: the main one sums 1, the other 2."""
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60)
    comm._core.check.threads = True  # as a group of PyTorch

    def start(value: float) -> Any:
        return comm.all_reduce(np.full(2, value), async_op=True)

    def in_thread() -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(start, 2.0).result()

    comm.all_reduce(np.ones(2), async_op=True).wait()
    order = (1.0, 2.0) if crossed and comm.rank == 1 else (2.0, 1.0)
    works = [start(value) if value == 1.0 else in_thread() for value in order]
    if crossed:
        with pytest.raises(RankMismatch, match="not the main one") as caught:
            works[0].wait()
        assert "test_agreement.py line" in str(caught.value)
        assert (caught.value.elapsed or 0) < 30  # before the deadline
        with pytest.raises(CommunicatorAborted):
            works[1].wait()
    else:
        assert [work.wait()[0] / comm.size for work in works] == [*order]
    comm.abort()
    mpi_comm.Barrier()
