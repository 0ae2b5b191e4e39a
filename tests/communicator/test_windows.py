"""Windows: what no case of the conformance suite or of ``front`` shows."""

import time
from itertools import product

import numpy as np
import pytest
from ranked import on_threads

from hpccomm import Communicator, ReduceOp, UsageError, WindowOp
from hpccomm.backends.loopback import LoopbackBackend
from hpccomm.communicator.windows.access import Array
from hpccomm.testing import run_ranks


def slowly_added(comm: Communicator) -> float:
    """What rank 0 has when all ranks have added to it at the same time, and took their time."""

    def slowly(a: Array, b: Array) -> Array:
        total: Array = a + b
        time.sleep(0.002)
        return total

    memory = np.zeros(1)
    with comm.window(memory) as window:
        for turn in range(5):
            if (comm.rank + turn) % 2:
                window.accumulate(np.ones(1), 0, op=slowly)
            else:
                window.fetch_and_op(1.0, 0, op=slowly)
    return float(memory[0])


@pytest.mark.parametrize("per_node", [4, 2])
def test_no_accumulate_meets_another(per_node: int) -> None:
    assert run_ranks(4, slowly_added, ranks_per_node=per_node)[0] == 20.0


@on_threads(3)
def test_a_function_that_fails_gives_the_lock_back(comm: Communicator) -> None:
    memory = np.zeros(1)

    def fails_at_last(a: Array, b: Array) -> Array:
        if 0.0 in a:  # not when it is tried, before anything is sent
            raise ZeroDivisionError
        return np.asarray(a + b)

    with comm.dup() as other:
        window = other.window(memory)
        comm.barrier()
        if comm.rank == 1:
            with pytest.raises(ZeroDivisionError):
                window.accumulate(np.ones(1), 0, op=fails_at_last)
        comm.barrier()
        if comm.rank != 1:
            window.accumulate(np.ones(1), 0, timeout=60.0)
        comm.barrier()
        other.abort()
    assert comm.rank or memory[0] == 2.0


@on_threads(2)
def test_asynchronous_calls_go_on_beside_a_window(comm: Communicator) -> None:
    """The reduction ends only after the put, on the other rank: so the put must not wait for it."""
    memory, x, other = np.zeros(50_000), np.ones(50_000), 1 - comm.rank
    with comm.window(memory) as window:
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True)
        else:
            window.wait_signal(0)
        window.put(np.full(50_000, 7.0), other)
        window.signal(other)
        if comm.rank == 1:
            work = comm.all_reduce(x, async_op=True)
        work.wait()
        if comm.rank == 0:
            window.wait_signal(1)
        assert (memory == 7.0).all()
        assert (x == 2).all()


NUMBERS = [2**63 - 1, 5, -7, -(2**63), 0]
FOLDS = {ReduceOp.SUM: np.add, ReduceOp.MAX: np.maximum, ReduceOp.MIN: np.minimum}


@on_threads(2)
def test_a_counter_wraps_and_folds_as_numpy_does(comm: Communicator) -> None:
    peer = 1 - comm.rank
    with comm.window(np.zeros(1, np.int64)) as window:
        for start, (op, fold), number in product(NUMBERS, FOLDS.items(), NUMBERS):
            window.fetch_and_op(start, peer, op=WindowOp.REPLACE)
            assert window.fetch_and_op(number, peer, op=op) == start
            came = window.fetch_and_op(0, peer, op=WindowOp.NO_OP)
            truth = fold(np.array([start]), np.array([number]))
            assert (type(came), came) == (np.int64, truth[0]), (start, op, number)


def test_a_backend_without_one_sided_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    # As of the backends of others: every one of hpccomm's has it.
    monkeypatch.setattr(LoopbackBackend, "window", lambda self: None)

    def run(comm: Communicator) -> None:
        with pytest.raises(UsageError, match=r"one-sided.*send and recv"):
            comm.window(np.zeros(1))
        comm.barrier()

    run_ranks(2, run)
