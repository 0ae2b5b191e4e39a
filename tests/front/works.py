"""Asynchronous calls: the promises of `Work`."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpccomm import Communicator, ReduceOp, Work
from hpccomm.testing.conformance.case import Behaviours, equal, happens
from hpccomm.testing.conformance.collectives import BLOCKWISE, trial
from hpccomm.testing.conformance.oracle import (
    NEW,
    SEMANTICS,
    Spec,
    moved,
    poison,
    reduced,
    reduction,
)

WORKS = Behaviours("works")

CALLS = (
    *(name for name in SEMANTICS if name != "neighbor_all_to_all"),
    *(f"{name}_v" for name in BLOCKWISE),
    *("barrier", "send_recv"),
)


def returned_nothing(outcome: object) -> None:
    """Assert that a call returned None."""
    assert outcome is None, f"{outcome!r} instead of None"


def started(
    comm: Communicator, call: str, length: int, dtype: Any, seed: int = 0
) -> tuple[Work, Callable[[Any], None]]:
    """Start `call` asynchronously on rows of `length` elements, from or to root 0 where it has one.

    Returns
    -------
    work : Work
        Under way.
    check : callable
        Looks at its result.
    """
    collective = call.removesuffix("_v")
    if call == "barrier":
        work = comm.barrier(async_op=True)
        check: Callable[[Any], None] = returned_nothing
    elif call == "send_recv":
        arrays = moved(comm.size, (length,), dtype, seed)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        out = poison(arrays[left])
        work = comm.send_recv(arrays[comm.rank], right, out, left, async_op=True)
        check = partial(equal, expected=arrays[left], what=call)
    else:
        count = (1,) * comm.size if call != collective else 1
        spec = Spec(collective, count, np.dtype(dtype), results=(NEW,), rest=(length,))
        attempt = trial(comm, spec)
        attempt.fill(seed)
        work = getattr(comm, call)(**attempt.arguments, async_op=True)
        check = partial(attempt.check, what=call, seed=seed)
    assert isinstance(work, Work), f"{call} with async_op=True returns a Work"
    return work, check


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
def many_in_flight(comm: Communicator) -> None:
    """Calls of all kinds are under way at once and waited for in any order.

    `done` becomes True by itself, and `wait` returns what the synchronous call would, again when asked again.
    """
    works = [started(comm, call, 10, np.int32, seed) for seed in range(2) for call in CALLS]
    works += [started(comm, call, 10_000, np.int64, 2) for call in CALLS]
    for index in np.random.default_rng(comm.rank).permutation(len(works)):
        work, check = works[index]
        happens(work.done, f"call {index} is done by itself")
        outcome = work.wait()
        check(outcome)
        assert work.exception() is None, "no exception"
        assert work.wait() is outcome, "the same result again"
