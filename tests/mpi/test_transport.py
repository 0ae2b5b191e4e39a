"""Messages whose size is part of their tag, and messages too large for that."""

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from until import until

import hpccomm
from hpccomm.backends.mpi.transport import PATIENT_POLLS, CheckedTransport, SizedTransport
from hpccomm.contracts.transport import DTYPES, dtype_code
from hpccomm.errors import RankMismatch


def neighbors(mpi_comm: Any) -> tuple[int, int]:
    return (mpi_comm.rank + 1) % mpi_comm.size, (mpi_comm.rank - 1) % mpi_comm.size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("most", [0, 100, 1 << 20])
def test_messages_of_all_sizes_keep_their_order(mpi_comm: Any, most: int) -> None:
    transport = SizedTransport(mpi_comm)
    transport.most = min(most, transport.most)
    right, left = neighbors(mpi_comm)
    sizes = [0, 1, 100, 101, 100, 5000, 0, 100, 70_000, 1]
    sent = [np.full(size, 10 * mpi_comm.rank + i, np.uint8) for i, size in enumerate(sizes)]
    sends = [transport.isend(data, right, 3) for data in sent]
    for i, size in enumerate(sizes):
        data = np.zeros(size, np.uint8)
        until(transport.irecv(data, left, 3))
        np.testing.assert_array_equal(data, 10 * left + i)
    for each in sends:
        until(each)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("most", [0, 100])
def test_messages_that_begin_again_match_those_that_do_not(mpi_comm: Any, most: int) -> None:
    transport = SizedTransport(mpi_comm)
    transport.most = min(most, transport.most)
    right, left = neighbors(mpi_comm)
    for size in (0, 24):
        sent, taken = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        again = transport.isend_again(sent, right, 3), transport.irecv_again(taken, left, 3)
        for number in range(6):
            sent[:], taken[:] = 10 * number + mpi_comm.rank, 255
            mpi_comm.Barrier()
            tests = []
            if number % 3 != 1:
                again[1].start()
            tests.append(again[1].test if number % 3 != 1 else transport.irecv(taken, left, 3))
            if number % 3 != 2:
                again[0].start()
            tests.append(again[0].test if number % 3 != 2 else transport.isend(sent, right, 3))
            for test in tests:
                until(test)
            assert again[0].test()  # also after that
            assert again[1].test()
            assert (taken == 10 * number + left).all()
    transport.free()
    transport.free()


@pytest.mark.mpi(min_size=1)
def test_a_message_that_comes_with_one_of_another_dtype_is_taken_first(mpi_comm: Any) -> None:
    looks = iter([None] * PATIENT_POLLS)  # the messages come after the last of these

    class Late(MPI.Intracomm):
        def Improbe(self, *args: Any) -> Any:  # noqa: N802 (MPI names it)
            return next(looks, ...) and super().Improbe(*args)

    transport = CheckedTransport(Late(mpi_comm), DTYPES)
    tagged = [(array, dtype_code(array.dtype)) for array in (np.arange(3.0), np.arange(4))]
    sends = [transport.isend(array, mpi_comm.rank, tag) for array, tag in tagged]
    for array, tag in tagged:
        out = np.empty_like(array)
        until(transport.irecv(out, mpi_comm.rank, tag))
        np.testing.assert_array_equal(out, array)
    for each in sends:
        until(each)


@pytest.mark.mpi(min_size=2)
def test_what_came_instead_is_seen_and_taken(mpi_comm: Any) -> None:
    transport = SizedTransport(mpi_comm)
    data = np.zeros(8, np.uint8)
    large = np.ones(1 << 20, np.uint8)
    if mpi_comm.rank == 1:
        until(transport.isend(large, 0, 3))
    if mpi_comm.rank == 0:
        late = transport.irecv(data, 1, 3)
        assert not transport.look(1, 4, 8)
        while not transport.look(1, 3, 8):
            assert not late()
        with pytest.raises(hpccomm.BufferMismatch, match="rank 1 sent 1048576 bytes"):
            transport.look(1, 3, 8, take=True)
    mpi_comm.Barrier()  # some libraries complete the first before it is taken
    if mpi_comm.rank == 1:
        transport.isend(large[:8], 0, 3)
    if mpi_comm.rank == 0:
        until(late)
        assert data.all()
        assert not transport.look(1, 3, 8)
    mpi_comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_forgotten_call_does_not_pass_for_a_later_one(mpi_comm: Any) -> None:
    unchecked = hpccomm.CommOptions(check="off")
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, options=unchecked)
    root = 0
    counts = [1, 2, 1]
    if comm.rank == root:
        for count in counts:
            comm.broadcast(np.ones(count), root, algorithm="binomial")
    elif comm.rank == 1:
        with pytest.raises(RankMismatch, match=r"rank 0 sent 8 bytes|call different things"):
            comm.broadcast(np.zeros(2), root, algorithm="binomial")
    mpi_comm.Barrier()


def test_the_largest_tag_is_a_tag_like_others(comm: hpccomm.Communicator) -> None:
    right, left = neighbors(comm)
    with pytest.raises(hpccomm.UsageError, match="from 0 to") as refused:
        comm.send(np.ones(1), right, tag=1 << 62)
    largest = int(str(refused.value).split()[-1])
    assert (
        largest >= 32767 // 16
    )  # MPI promises 32,767 tags, and hpccomm puts the dtype into some of their bits
    for count in (1, 1 << 20):  # the second is copied from the sender's memory within a node
        sends = [
            comm.send(np.full(count, comm.rank), right, tag=largest, async_op=True),
            comm.send_object(comm.rank, right, tag=largest, async_op=True),
        ]
        assert (comm.recv(np.zeros(count, int), left, tag=largest) == left).all()
        assert comm.recv_object(left, tag=largest) == left
        hpccomm.wait_all(sends)
