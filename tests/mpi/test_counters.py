"""One-sided calls on a counter give what mpi4py's own give."""

import numpy as np
import pytest
from mpi4py import MPI

import hpccomm

pytestmark = pytest.mark.mpi(min_size=2)


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
