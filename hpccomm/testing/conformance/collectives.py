"""Collectives that move data, and the forms that every collective has: in place, `out`, roots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, same_bits
from hpccomm.testing.conformance.inputs import MOVABLE, SHAPES, moved, poison, ranks_for

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

COLLECTIVES = Behaviours("collectives")

REST = ((), (3,), (2, 0), (2, 5))
"""What follows axis 0 in the calls that cut their array into one block a rank."""

LARGE = 1 << 18
"""Elements, in float32 1 MiB: more than one segment or eager message."""


def blocks(arrays: list[Array], rank: int) -> list[Array]:
    """Return block `rank` of each of `arrays`, cut on axis 0 into as many blocks as arrays."""
    return [np.split(array, len(arrays))[rank] for array in arrays]


@COLLECTIVES.behaviour(dtype=MOVABLE)
def broadcast(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Every root's array overwrites the others'."""
    for root in ranks_for(dtype, comm.size):
        for shape in SHAPES:
            source = moved(comm.size, shape, dtype, seed=root)[root]
            x = source.copy() if comm.rank == root else poison(source)
            result = comm.broadcast(x, root)
            assert result is x, "broadcast returns x"
            equal(x, source, f"root {root}, shape {shape}")


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


@COLLECTIVES.behaviour(dtype=MOVABLE)
def all_gather(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """A new array of shape (size, *s) holds every rank's, in rank order; x stays."""
    for shape in SHAPES:
        arrays = moved(comm.size, shape, dtype)
        x = arrays[comm.rank].copy()
        equal(comm.all_gather(x), np.stack(arrays), f"shape {shape}")
        equal(x, arrays[comm.rank], "x")


@COLLECTIVES.behaviour()
def all_gather_out(comm: Communicator) -> None:
    """`out` of any shape with the right number of elements takes the result."""
    for shape in SHAPES:
        arrays = moved(comm.size, shape, np.int32)
        expected = np.stack(arrays)
        for target in (expected.shape, (expected.size,), (1, expected.size, 1)):
            out = poison(expected, target)
            assert comm.all_gather(arrays[comm.rank], out=out) is out, "the result is out"
            equal(out, expected.reshape(target), f"shape {shape}, out {target}")


@COLLECTIVES.behaviour()
def all_gather_from_its_own_block(comm: Communicator) -> None:
    """In place, x is `out`'s block of this rank."""
    for shape in SHAPES:
        expected = np.stack(moved(comm.size, shape, np.float64))
        out = poison(expected)
        out[comm.rank] = expected[comm.rank]
        comm.all_gather(out[comm.rank, ...], out=out)
        equal(out, expected, f"shape {shape}")


@COLLECTIVES.behaviour(dtype=MOVABLE)
def gather(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Every root gets a new array of shape (size, *s), the others None."""
    for root in ranks_for(dtype, comm.size):
        for shape in SHAPES:
            arrays = moved(comm.size, shape, dtype, seed=root)
            x = arrays[comm.rank].copy()
            result = comm.gather(x, root)
            if comm.rank == root:
                equal(result, np.stack(arrays), f"root {root}, shape {shape}")
            else:
                assert result is None, "gather returns None elsewhere"
            equal(x, arrays[comm.rank], "x")


@COLLECTIVES.behaviour()
def gather_out(comm: Communicator) -> None:
    """The root's `out` takes the result, from its own block as well."""
    for root in range(comm.size):
        expected = np.stack(moved(comm.size, (3, 2), np.float32, seed=root))
        for own_block in (False, True):
            x, out = expected[comm.rank].copy(), None
            if comm.rank == root:
                out = poison(expected)
                if own_block:
                    out[root] = x
                    x = out[root]
                else:
                    out = out.reshape(-1)
            result = comm.gather(x, root, out=out)
            assert result is out, "the result is out"
            if out is not None:
                equal(out.reshape(expected.shape), expected, f"root {root}, own {own_block}")


@COLLECTIVES.behaviour(dtype=MOVABLE)
def scatter(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Block r of the root's array arrives in rank r's `out`; the root may go without one."""
    for root in ranks_for(dtype, comm.size):
        for rest in REST:
            source = moved(comm.size, (2 * comm.size, *rest), dtype, seed=root)[root]
            expected = np.split(source, comm.size)[comm.rank]
            what = f"root {root}, rest {rest}"
            if comm.rank == root:
                x = source.copy()
                equal(comm.scatter(x, root), expected, what)
                equal(x, source, "x")
            else:
                out = poison(expected)
                assert comm.scatter(None, root, out=out) is out, "the result is out"
                equal(out, expected, what)


@COLLECTIVES.behaviour()
def scatter_out(comm: Communicator) -> None:
    """The root's `out` may be apart, of another shape, or its own block of x."""
    for root in range(comm.size):
        source = moved(comm.size, (2 * comm.size, 3), np.int64, seed=root)[root]
        expected = np.split(source, comm.size)[comm.rank]
        for own_block in (False, True):
            x, out = None, poison(expected, (6,))
            if comm.rank == root:
                x = source.copy()
                out = x[2 * root : 2 * root + 2] if own_block else out
            assert comm.scatter(x, root, out=out) is out, "the result is out"
            equal(out.reshape(expected.shape), expected, f"root {root}, own {own_block}")
            if x is not None:
                equal(x, source, "x")


@COLLECTIVES.behaviour(dtype=MOVABLE)
def all_to_all(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Block j of the result is rank j's block for this rank; x stays."""
    for rest in REST:
        arrays = moved(comm.size, (2 * comm.size, *rest), dtype)
        x = arrays[comm.rank].copy()
        expected = np.concatenate(blocks(arrays, comm.rank))
        equal(comm.all_to_all(x), expected, f"rest {rest}")
        equal(x, arrays[comm.rank], "x")


@COLLECTIVES.behaviour()
def all_to_all_out(comm: Communicator) -> None:
    """`out` may be apart, of another shape, or x itself."""
    arrays = moved(comm.size, (3 * comm.size, 2), np.int32)
    expected = np.concatenate(blocks(arrays, comm.rank))
    out = poison(expected, (expected.size,))
    x = arrays[comm.rank].copy()
    assert comm.all_to_all(x, out=out) is out, "the result is out"
    equal(out.reshape(expected.shape), expected, "out")
    assert comm.all_to_all(x, out=x) is x, "the result is out"
    equal(x, expected, "in place")


@COLLECTIVES.behaviour()
def large_arrays_move_whole(comm: Communicator) -> None:
    """Arrays of more than 1 MiB arrive to the last element."""
    arrays = moved(comm.size, (comm.size, LARGE // comm.size + 3), np.float32)
    mine, first = arrays[comm.rank], arrays[0]
    equal(comm.broadcast(mine.copy()), first, "broadcast")
    equal(comm.all_gather(mine[0]), np.stack([array[0] for array in arrays]), "all_gather")
    equal(comm.all_to_all(mine), np.concatenate(blocks(arrays, comm.rank)), "all_to_all")
    gathered = comm.gather(mine[0])
    if comm.rank == 0:
        equal(gathered, np.stack([array[0] for array in arrays]), "gather")
    expected = first[comm.rank : comm.rank + 1]
    out = poison(expected)
    comm.scatter(first if comm.rank == 0 else None, out=out)
    equal(out, expected, "scatter")


@COLLECTIVES.behaviour()
def bits_survive(comm: Communicator) -> None:
    """What moves is bits: the payload of a NaN and the sign of zero stay."""
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
    kept = first.copy(), second.copy()
    comm.all_gather(x + 1)
    comm.all_to_all(x + 1)
    for result, before in zip((first, second), kept, strict=True):
        equal(result, before, "after later calls")
        assert result.flags.writeable, "writable"
        assert result.flags.c_contiguous, "C-contiguous"
        assert not np.shares_memory(result, x), "apart from x"


@COLLECTIVES.behaviour()
def barrier_waits_for_all(comm: Communicator) -> None:
    """No rank leaves before the last has come.

    Only ranks of one node are compared: they share a monotonic clock.
    """
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.005)
        entered = time.monotonic()
        assert comm.barrier() is None, "barrier returns None"
        left = time.monotonic()
        stamps = comm.node_comm.all_gather_object((entered, left))
        assert min(s[1] for s in stamps) >= max(s[0] for s in stamps), f"left early: {stamps}"


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
