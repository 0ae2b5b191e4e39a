"""Asynchronous calls: what `Work` promises."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ReduceOp, Work
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal
from hpccomm.testing.conformance.inputs import moved, poison, reduced, reduction

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

WORKS = Behaviours("works")

PATIENCE = 20.0
"""Seconds after which something that should happen by itself counts as never."""

CALLS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "scan",
    "barrier",
    "all_gather_v",
    "reduce_scatter_v",
    "all_to_all_v",
    "gather_v",
    "scatter_v",
    "send_recv",
)


def started(comm: Communicator, call: str, arrays: list[Array]) -> tuple[Work, Array | None]:
    """Start `call` asynchronously on rank r's `arrays[r]`, of shape (size, n), from root 0.

    Returns
    -------
    work : Work
        Under way.
    expected : ndarray or None
        Its result.
    """
    size, rank = comm.size, comm.rank
    x = arrays[rank].copy()
    total = reduction(ReduceOp.SUM, arrays)
    mine = slice(rank, rank + 1)
    column = np.stack([array[rank] for array in arrays])
    counts = [1] * size
    root = rank == 0
    table: dict[str, tuple[Callable[[], Any], Array | None]] = {
        "all_reduce": (lambda: comm.all_reduce(x, async_op=True), total),
        "broadcast": (lambda: comm.broadcast(x, async_op=True), arrays[0]),
        "reduce": (lambda: comm.reduce(x, async_op=True), total if root else None),
        "all_gather": (lambda: comm.all_gather(x, async_op=True), np.stack(arrays)),
        "reduce_scatter": (lambda: comm.reduce_scatter(x, async_op=True), total[mine]),
        "all_to_all": (lambda: comm.all_to_all(x, async_op=True), column),
        "gather": (lambda: comm.gather(x, async_op=True), np.stack(arrays) if root else None),
        "scatter": (
            lambda: comm.scatter(
                x if root else None, out=None if root else poison(x[mine]), async_op=True
            ),
            arrays[0][mine],
        ),
        "scan": (
            lambda: comm.scan(x, async_op=True),
            reduction(ReduceOp.SUM, arrays[: rank + 1]),
        ),
        "barrier": (lambda: comm.barrier(async_op=True), None),
        "all_gather_v": (
            lambda: comm.all_gather_v(x, [size] * size, async_op=True),
            np.concatenate(arrays),
        ),
        "reduce_scatter_v": (
            lambda: comm.reduce_scatter_v(x, counts, async_op=True),
            total[mine],
        ),
        "all_to_all_v": (lambda: comm.all_to_all_v(x, counts, async_op=True), column),
        "gather_v": (
            lambda: comm.gather_v(x, async_op=True),
            np.concatenate(arrays) if root else None,
        ),
        "scatter_v": (
            lambda: comm.scatter_v(
                x if root else None, 0, counts, out=poison(x[mine]), async_op=True
            ),
            arrays[0][mine],
        ),
        "send_recv": (
            lambda: comm.send_recv(
                x, (rank + 1) % size, np.full_like(x, -1), (rank - 1) % size, async_op=True
            ),
            arrays[(rank - 1) % size],
        ),
    }
    start, expected = table[call]
    work = start()
    assert isinstance(work, Work), f"{call} with async_op=True returns a Work"
    return work, expected


@WORKS.behaviour(call=CALLS)
def result(comm: Communicator, call: str) -> None:
    """`wait` returns what the synchronous call would; again when asked again."""
    for length in (3, 10_000):
        work, expected = started(
            comm, call, reduced(ReduceOp.SUM, comm.size, (comm.size, length), np.int64)
        )
        outcome = work.wait()
        if expected is None:
            assert outcome is None, f"{outcome!r} instead of None"
        else:
            equal(outcome, expected, f"length {length}")
        assert work.done(), "done after wait"
        assert work.exception() is None, "no exception"
        assert work.wait() is outcome, "the same result again"


@WORKS.behaviour(call=CALLS)
def done_without_waiting(comm: Communicator, call: str) -> None:
    """`done` becomes True by itself while it is asked, and `wait` then has the result."""
    work, expected = started(comm, call, moved(comm.size, (comm.size, 5), np.int32))
    deadline = time.monotonic() + PATIENCE
    while not work.done():
        assert time.monotonic() < deadline, f"{call} is not done after {PATIENCE} s"
        time.sleep(0.001)
    if expected is not None:
        equal(work.wait(), expected)


@WORKS.behaviour()
def many_in_flight(comm: Communicator) -> None:
    """Calls of all kinds are under way at once and waited for in any order."""
    works = []
    for step in range(3):
        for call in CALLS:
            arrays = reduced(ReduceOp.SUM, comm.size, (comm.size, 10), np.int32, seed=step)
            works.append(started(comm, call, arrays))
    order = np.random.default_rng(comm.rank).permutation(len(works))
    for index in order:
        work, expected = works[index]
        outcome = work.wait()
        if expected is not None:
            equal(outcome, expected, CALLS[index % len(CALLS)])


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
    comm.all_reduce(arrays[comm.rank].copy(), ReduceOp.MIN, out=out, async_op=True)
    gc.collect()
    equal(work.wait(), reduction(ReduceOp.SUM, arrays), "the one waited for")
    expected = reduction(ReduceOp.MIN, arrays)
    deadline = time.monotonic() + PATIENCE
    # Every rank must call as often as the others, so that they agree when to stop.
    while not comm.all_reduce(np.array(np.array_equal(out, expected)), ReduceOp.MIN):
        assert time.monotonic() < deadline, "the dropped call never wrote its result"


@WORKS.behaviour()
def results_keep_to_their_call(comm: Communicator) -> None:
    """Twenty calls on slices of one array each write their own."""
    x = np.arange(2000, dtype=np.int64).reshape(20, 100) + comm.rank
    expected = sum(np.arange(2000).reshape(20, 100) + rank for rank in range(comm.size))
    works = [comm.all_reduce(row, async_op=True) for row in x]
    for work in works:
        work.wait()
    equal(x, np.asarray(expected, np.int64))
