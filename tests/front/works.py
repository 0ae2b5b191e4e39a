"""Asynchronous calls: the promises of `Work`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np

from hpccomm import ReduceOp
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, happens
from hpccomm.testing.conformance.inputs import reduced, reduction
from hpccomm.testing.conformance.works import CALLS, started

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

WORKS = Behaviours("works")


@WORKS.behaviour(call=CALLS)
def result(comm: Communicator, call: str) -> None:
    """`wait` returns what the synchronous call would; again when asked again."""
    for length in (3, 10_000):
        work, check = started(comm, call, length, np.int64)
        outcome = work.wait()
        check(outcome)
        assert work.done(), "done after wait"
        assert work.exception() is None, "no exception"
        assert work.wait() is outcome, "the same result again"


@WORKS.behaviour()
def synchronous_calls_between(comm: Communicator) -> None:
    """A synchronous call after an asynchronous one needs no wait, and both are right."""
    arrays = reduced(ReduceOp.SUM, comm.size, (50_000,), np.float32)
    x, y = arrays[comm.rank].copy(), arrays[comm.rank].copy()
    work = comm.all_reduce(x, async_op=True)
    comm.all_reduce(y, ReduceOp.MAX)
    comm.barrier()
    equal(y, reduction(ReduceOp.MAX, arrays), "synchronous")
    equal(work.wait(), reduction(ReduceOp.SUM, arrays), "asynchronous")


@WORKS.behaviour()
def arrays_are_kept_alive(comm: Communicator) -> None:
    """Nobody else need hold the arrays, nor the Work itself."""
    arrays = reduced(ReduceOp.SUM, comm.size, (20_000,), np.float64)
    out = np.empty(20_000)
    work = comm.all_reduce(arrays[comm.rank].copy(), async_op=True)
    comm.all_reduce(arrays[comm.rank].copy(), ReduceOp.MIN, out=out, async_op=True).done()
    gc.collect()
    equal(work.wait(), reduction(ReduceOp.SUM, arrays), "the one waited for")
    expected = reduction(ReduceOp.MIN, arrays)
    # Every rank must call as often as the others, so that they agree when to stop.
    happens(
        lambda: comm.all_reduce(np.array(np.array_equal(out, expected)), ReduceOp.MIN),
        "the dropped call wrote its result",
    )


@WORKS.behaviour()
def results_keep_to_their_call(comm: Communicator) -> None:
    """Twenty calls on slices of one array each write their own."""
    x = np.arange(2000, dtype=np.int64).reshape(20, 100) + comm.rank
    expected = sum(np.arange(2000).reshape(20, 100) + rank for rank in range(comm.size))
    works = [comm.all_reduce(row, async_op=True) for row in x]
    for work in works:
        work.wait()
    equal(x, np.asarray(expected, np.int64))
