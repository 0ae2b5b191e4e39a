"""Cases: asynchronous calls progress by themselves, and are awaited in any order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import Work
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, happens
from hpccomm.testing.conformance.inputs import moved, poison
from hpccomm.testing.conformance.oracle import NEW, Spec
from hpccomm.testing.conformance.trials import trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

WORKS = Behaviours("works")

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
        exchanged = call in ("gather_v", "all_to_all_v")
        rows: dict[str, Any] = {"rest": (length,), "exchanged": exchanged}
        spec = Spec(collective, count, np.dtype(dtype), results=(NEW,), **rows)
        attempt = trial(comm, spec, frozen=False)
        attempt.fill(seed)
        work = getattr(comm, call)(**attempt.arguments, async_op=True)
        check = partial(attempt.check, what=call, seed=seed)
    assert isinstance(work, Work), f"{call} with async_op=True returns a Work"
    return work, check


@WORKS.behaviour(call=CALLS)
def done_without_waiting(comm: Communicator, call: str) -> None:
    """`done` becomes True by itself while it is asked, and `wait` then has the result."""
    work, check = started(comm, call, 5, np.int32)
    happens(work.done, f"{call} is done")
    check(work.wait())


@WORKS.behaviour()
def many_in_flight(comm: Communicator) -> None:
    """Calls of all kinds are under way at once and waited for in any order."""
    works = [started(comm, call, 10, np.int32, seed) for seed in range(3) for call in CALLS]
    for index in np.random.default_rng(comm.rank).permutation(len(works)):
        work, check = works[index]
        check(work.wait())
