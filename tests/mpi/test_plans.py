"""Plans of messages over MPI, whose requests the library keeps: what they hold, and when they let go of it."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import hpccomm
from hpccomm import Communicator
from hpccomm.backends.mpi.transport import DIRECT_BYTES
from hpccomm.errors import CollectiveTimeout


def ring(comm: Communicator, x: Any, out: Any) -> Any:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.plan("send_recv", x, right, out, left)


@pytest.mark.parametrize("length", [2, DIRECT_BYTES])
def test_plans_come_and_go_and_let_go_of_their_arrays(comm: Communicator, length: int) -> None:
    plans, dropped = [], []
    for turn in range(12):
        x, out = np.zeros(length), np.zeros(length)
        plans.append((ring(comm, x, out), x, out))
        if turn % 3 == 2:  # not the last one
            dropped += map(weakref.ref, plans.pop(turn // 6)[1:])
        for number, (plan, x, out) in enumerate(plans):
            x[:] = 100 * turn + 10 * number + comm.rank
            assert plan() is out
            assert (out == 100 * turn + 10 * number + (comm.rank - 1) % comm.size).all()
    gc.collect()
    plan = ring(comm, np.zeros(2), np.zeros(2))
    plan()
    assert "requests of the library are made once" in plan.choice.reason
    assert "requests" not in comm.plan("send", x, None).choice.reason
    assert [each() for each in dropped] == [None] * 8


@pytest.mark.mpi(min_size=2)
def test_the_arrays_of_a_plan_that_failed_are_kept(mpi_comm: Any) -> None:
    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=20.0)
    out = np.zeros(3)
    kept = weakref.ref(out)
    if comm.rank == 0:
        plan = comm.plan("recv", out, 1, timeout=0.2)
        with pytest.raises(CollectiveTimeout, match="recv"):
            plan()
        del plan
    else:
        comm.plan("send", out, 0 if comm.rank == 1 else None)
    comm.abort()
    del out, comm
    gc.collect()
    assert kept() is not None or mpi_comm.rank
    mpi_comm.Barrier()
