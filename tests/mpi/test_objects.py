"""Calls on objects and counters give what mpi4py's own give."""

import functools
import operator

import numpy as np
import pytest
from mpi4py import MPI

import hpccomm

pytestmark = pytest.mark.mpi(min_size=2)


def test_objects() -> None:
    bare = MPI.COMM_WORLD.Dup()
    rank, size = bare.rank, bare.size
    value = {"rank": rank, "text": "x" * (3000 * rank), "array": np.arange(5 * rank).tolist()}
    each = [(rank, to) for to in range(size)]
    with hpccomm.new_comm(mpi_comm=bare) as comm:
        for root in range(size):
            assert comm.broadcast_object(value, root) == bare.bcast(value, root)
            assert comm.gather_object(value, root) == bare.gather(value, root)
            assert comm.scatter_object(each, root) == bare.scatter(each, root)
        assert comm.all_gather_object(value) == bare.allgather(value)
        # What the documentation shows in the place of mpi4py's alltoall and allreduce of objects.
        assert [row[rank] for row in comm.all_gather_object(each)] == bare.alltoall(each)
        words = comm.all_gather_object([rank])
        assert functools.reduce(operator.add, words) == bare.allreduce([rank])
        right, left = (rank + 1) % size, (rank - 1) % size
        sent, request = comm.send_object(value, right, async_op=True), bare.isend(value, right)
        assert comm.recv_object(left) == bare.recv(source=left)
        sent.wait()
        request.wait()
    bare.Free()


def test_a_counter_wraps_and_folds_as_mpi_does() -> None:
    bare = MPI.COMM_WORLD.Dup()
    theirs = MPI.Win.Allocate(8, 8, comm=bare)
    theirs.Lock_all()
    old, number = np.zeros(1, np.int64), np.zeros(1, np.int64)
    ops = [
        (hpccomm.ReduceOp.SUM, MPI.SUM),
        (hpccomm.ReduceOp.MAX, MPI.MAX),
        (hpccomm.ReduceOp.MIN, MPI.MIN),
        (hpccomm.WindowOp.REPLACE, MPI.REPLACE),
        (hpccomm.WindowOp.NO_OP, MPI.NO_OP),
    ]
    numbers = [2**63 - 1, 5, -7, -(2**63), 11, 3]
    with hpccomm.new_comm(mpi_comm=bare) as comm:
        window = comm.window(comm.empty(1, np.int64))
        window.put(np.zeros(1, np.int64), comm.rank)
        theirs.Fetch_and_op(np.zeros(1, np.int64), old, comm.rank, 0, MPI.REPLACE)
        peer = comm.rank ^ 1
        window.fence()
        if peer < comm.size:
            for turn in range(30):
                (op, same), number[0] = ops[turn % 5], numbers[turn % 6]
                theirs.Fetch_and_op(number, old, peer, 0, same)
                theirs.Flush(peer)
                fetched = window.fetch_and_op(int(number[0]), peer, op=op)
                assert (type(fetched), fetched) == (np.int64, old[0]), f"{op} at turn {turn}"
        window.fence()
        window.close()
    theirs.Unlock_all()
    theirs.Free()
    bare.Free()
