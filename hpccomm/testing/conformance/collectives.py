"""Cases: collectives that move data, and the forms of every collective: in place, `out`, roots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, same_bits
from hpccomm.testing.conformance.inputs import MOVABLE, RECORD, SHAPES, ranks_for
from hpccomm.testing.conformance.inputs import moved as moved_elements
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, NEW, OUT, SEMANTICS, Spec
from hpccomm.testing.conformance.trials import carry_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpccomm.communicator import Communicator

COLLECTIVES = Behaviours("collectives")

BLOCKS = ((2,), (2, 3), (2, 2, 0), (2, 2, 5))
"""Shapes of one rank's block in the calls that cut their array into such."""

SHAPES_OF = {
    "broadcast": SHAPES,
    "all_gather": SHAPES,
    "gather": SHAPES,
    "scatter": BLOCKS,
    "all_to_all": BLOCKS,
}
"""The collectives that move data, and what each rank, or the root for each, brings."""

LARGE = 1 << 18
"""Elements, in float32 1 MiB: more than one segment or eager message."""


def specs(comm: Communicator, collective: str, dtype: Any, *results: str) -> Iterator[Spec]:
    """Give a collective of each shape, for the roots that are tried."""
    meaning = SEMANTICS[collective]
    roots = ranks_for(dtype, comm.size) if meaning.root_gives or meaning.root_gets else [0]
    for root in roots:
        for shape in SHAPES_OF[collective]:
            count, rest = (shape[0], shape[1:]) if shape else (None, ())
            yield Spec(collective, count, np.dtype(dtype), root=root, results=results, rest=rest)


@COLLECTIVES.behaviour(called="{collective}", collective=tuple(SHAPES_OF), dtype=MOVABLE)
def moved(comm: Communicator, collective: str, dtype: np.dtype[Any]) -> None:
    """Without `out`, every rank that gets something has it in a new array, and x stays.

    A broadcast overwrites x, but the root's; a rank that scatters nothing has an `out`.
    """
    for spec in specs(comm, collective, dtype, NEW):
        carry_out(comm, spec)


@COLLECTIVES.behaviour(
    called="{collective}_out", collective=tuple(name for name in SHAPES_OF if name != "broadcast")
)
def moved_out(comm: Communicator, collective: str) -> None:
    """`out` of any shape with the right number of elements takes the result, or x's memory does.

    In place, x is `out`'s block of this rank, or `out` x's, or one is the other.
    """
    for result in (OUT, FLAT, IN_PLACE):
        for spec in specs(comm, collective, np.float32, result):
            carry_out(comm, spec)


@COLLECTIVES.behaviour()
def scattered_to_ranks_that_give_an_x_like_the_root_s(comm: Communicator) -> None:
    """Such a rank needs no `out`: it gets a new array, and its x is not touched."""
    root, counts = comm.size - 1, tuple(range(comm.size))
    for dtype in (np.dtype(np.float32), RECORD):
        for name, rows, listed in (
            ("scatter", (2,) * comm.size, {}),
            ("scatter_v", counts, {"counts": counts}),
        ):
            shape = (sum(rows), 3)
            whole = moved_elements(comm.size, shape, dtype)[root]
            expected = np.split(whole, np.cumsum(rows)[:-1])[comm.rank]
            before = whole if comm.rank == root else np.zeros(shape, dtype)
            for form in ("call", "asynchronous", "plan"):
                x = before.copy()
                if form == "plan":
                    result = comm.plan(name, x, root, **listed)()
                elif form == "asynchronous":
                    result = getattr(comm, name)(x, root, **listed, async_op=True).wait()
                else:
                    result = getattr(comm, name)(x, root, **listed)
                equal(result, expected, f"{name}, {form}")
                equal(x, before, f"{name}, {form}: x")
                assert not np.shares_memory(result, x), "apart from x"


@COLLECTIVES.behaviour()
def large_arrays_move_whole(comm: Communicator) -> None:
    """Arrays of more than 1 MiB arrive to the last element."""
    for collective in SHAPES_OF:
        carry_out(comm, Spec(collective, LARGE // comm.size + 3, results=(NEW,)))


@COLLECTIVES.behaviour()
def broadcast_is_from_rank_0_by_default(comm: Communicator) -> None:
    """Without `root`, rank 0 is it."""
    x = np.full(3, comm.rank, np.int16)
    comm.broadcast(x)
    equal(x, np.zeros(3, np.int16))


@COLLECTIVES.behaviour()
def roots_may_be_numpy_integers(comm: Communicator) -> None:
    """A rank that NumPy computed is a rank."""
    root: Any
    for root in np.arange(comm.size):
        x = np.array([comm.rank])
        comm.broadcast(x, root)
        assert x[0] == root, f"from {root}"


@COLLECTIVES.behaviour()
def bits_survive(comm: Communicator) -> None:
    """Moved data keep their bits: also the payload of a NaN and the sign of zero."""
    patterns = np.array([0x7FF8_0000_0000_1234, 0xFFF0_0000_0000_0001, 1 << 63, 1], np.uint64)
    source = patterns.view(np.float64)
    x = source.copy() if comm.rank == 0 else np.zeros_like(source)
    same_bits(comm.broadcast(x), source, "broadcast")
    same_bits(comm.all_gather(x), np.stack([source] * comm.size), "all_gather")
    tiled = np.stack([source] * comm.size)
    same_bits(comm.all_to_all(tiled), tiled, "all_to_all")


@COLLECTIVES.behaviour()
def results_are_owned(comm: Communicator) -> None:
    """A result is the caller's: writable, C-contiguous, and unchanged by later calls."""
    x = np.full((comm.size, 2), comm.rank, np.int32)
    first = comm.all_gather(x)
    second = comm.all_to_all(x)
    copies = first.copy(), second.copy()
    comm.all_gather(x + 1)
    comm.all_to_all(x + 1)
    for result, before in zip((first, second), copies, strict=True):
        equal(result, before, "after later calls")
        assert result.flags.writeable, "writable"
        assert result.flags.c_contiguous, "C-contiguous"
        assert not np.shares_memory(result, x), "apart from x"


def waits_for(comm: Communicator, late: int, barrier: Callable[[], object]) -> None:
    """Assert that no rank leaves a barrier before the last has come, which is `late`.

    Only ranks of one node are compared: they share a monotonic clock.
    """
    if comm.rank == late:
        time.sleep(0.005)
    entered = time.monotonic()
    assert barrier() is None, "barrier returns None"
    left = time.monotonic()
    stamps = comm.node_comm.all_gather_object((entered, left))
    assert min(s[1] for s in stamps) >= max(s[0] for s in stamps), f"left early: {stamps}"


@COLLECTIVES.behaviour()
def barrier_waits_for_all(comm: Communicator) -> None:
    """No rank leaves before the last has come."""
    for late in range(comm.size):
        waits_for(comm, late, comm.barrier)


@COLLECTIVES.behaviour()
def many_calls_in_a_row(comm: Communicator) -> None:
    """Calls of different kinds follow one another without confusing their messages."""
    for step in range(25):
        x = np.full(1 + step % 3, comm.rank + step, np.int64)
        equal(comm.all_gather(x)[:, 0], np.arange(comm.size, dtype=np.int64) + step, "all_gather")
        root = step % comm.size
        comm.broadcast(x, root)
        assert x[0] == root + step, "broadcast"
        assert comm.all_reduce(x)[0] == comm.size * (root + step), "all_reduce"
