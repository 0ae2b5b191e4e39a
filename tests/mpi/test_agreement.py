"""Ranks that are late, and ranks that wait for each other, over MPI: the first are let come, the second are told."""

import re
import time
from collections.abc import Callable
from itertools import product
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


MESSAGES = {
    "recv": lambda comm, x: comm.recv(x, 1 - comm.rank),
    "recv, asynchronous": lambda comm, x: comm.recv(x, 1 - comm.rank, async_op=True).wait(),
    "recv of another tag": lambda comm, x: comm.recv(x, 1 - comm.rank, tag=3),
    "recv_object": lambda comm, x: comm.recv_object(1 - comm.rank),
    "send": lambda comm, x: comm.send(x, 1 - comm.rank),
    "send_recv": lambda comm, x: comm.send_recv(x, 1 - comm.rank, x.copy(), 1 - comm.rank),
}
"""Messages of ranks 0 and 1, of so many bytes that they cannot be sent without a receiver."""
COLLECTIVES = {
    "all_reduce": lambda comm, x: comm.all_reduce(x),
    "all_reduce, asynchronous": lambda comm, x: comm.all_reduce(x, async_op=True).wait(),
    "broadcast": lambda comm, x: comm.broadcast(x, 0),
    "barrier": lambda comm, x: comm.barrier(),
}
CROSSED = [
    pytest.param(one, other, marks=() if number % 9 == 0 else pytest.mark.thorough)
    for number, (one, other) in enumerate(
        [
            *product(MESSAGES, COLLECTIVES),
            *((each, each) for each in ("recv", "recv_object", "send")),
        ]
    )
]


@by_default_on(3)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("one", "other"), CROSSED)
def test_messages_that_wait_for_ranks_which_wait_for_them_are_a_mismatch(
    mpi_comm: Any, one: str, other: str
) -> None:
    unchecked = hpccomm.CommOptions(self_check=False)
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60, options=unchecked)
    calls = MESSAGES | COLLECTIVES
    call = calls[one if comm.rank == 1 else other]
    if comm.rank < 2 or other in COLLECTIVES:
        with pytest.raises(RankMismatch, match="wait for each other") as caught:
            call(comm, np.ones(100_000))
        assert 1 in caught.value.ranks
        assert (caught.value.elapsed or 0) < 30  # before the deadline
    comm.abort()
    mpi_comm.Barrier()


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


def barrier(comm: hpccomm.Communicator) -> Callable[[], object]:
    return lambda: comm.barrier(algorithm="dissemination")


def in_two_orders(comm: hpccomm.Communicator) -> list[Callable[[], object]]:
    calls = [barrier(comm.dup()), barrier(comm.dup())]
    return calls[::-1] if comm.rank == 1 else calls


def a_message_before_a_barrier(comm: hpccomm.Communicator) -> list[Callable[[], object]]:
    first, second = comm.dup(), comm.dup()
    if comm.rank == 1:
        return [lambda: first.recv(np.ones(3), 0), barrier(second)]
    return [barrier(second), *[lambda: first.send(np.ones(3), 1)] * (comm.rank == 0)]


def each_its_own_pair_first(comm: hpccomm.Communicator) -> list[Callable[[], object]]:
    pairs = [comm.split_ranks(pair) for pair in ([0, 1], [1, 2], [2, 0])]
    mine = (pairs[comm.rank], pairs[comm.rank - 1]) if comm.rank < 3 else ()
    return [barrier(each) for each in mine if each is not None]


@by_default_on(3)
@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    "calls", [in_two_orders, a_message_before_a_barrier, each_its_own_pair_first]
)
def test_communicators_that_are_called_in_another_order_are_a_mismatch(
    mpi_comm: Any, calls: Callable[[hpccomm.Communicator], list[Callable[[], object]]]
) -> None:
    unchecked = hpccomm.CommOptions(self_check=False)
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60, options=unchecked)
    mine = calls(comm)
    if mine:
        with pytest.raises(RankMismatch, match="in several communicators: rank") as caught:
            [each() for each in mine]
        assert (caught.value.elapsed or 0) < 30  # before the deadline
    comm.abort()
    mpi_comm.Barrier()
