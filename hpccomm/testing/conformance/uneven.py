"""Calls whose blocks differ in size: counts are rows of axis 0, one a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import BufferMismatch, RankMismatch
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import (
    MOVABLE,
    OPS,
    RECORD,
    moved,
    poison,
    ranks_for,
    reduced,
    reduction,
    tolerance,
)
from hpccomm.testing.conformance.reductions import dtypes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

UNEVEN = Behaviours("uneven")

REST = ((), (3,), (2, 0))
"""What follows axis 0."""


def growing(size: int) -> list[int]:
    """0, 1, 2, ... rows."""
    return list(range(size))


def only_the_last(size: int) -> list[int]:
    """All rows on one rank."""
    return [0] * (size - 1) + [4]


def none(size: int) -> list[int]:
    """No rows at all."""
    return [0] * size


def long(size: int) -> list[int]:
    """Rows for more than one segment, on every other rank."""
    return [20_001 * (rank % 2) + 1 for rank in range(size)]


COUNTS = (growing, only_the_last, none, long)

Counts = list[int]


def rows(array: Array, counts: Counts, rank: int) -> Array:
    """Return block `rank` of `array`, cut on axis 0 by `counts`."""
    start = sum(counts[:rank])
    return array[start : start + counts[rank]]


def cut(source: Array, counts: Counts) -> list[Array]:
    """Return every rank's block."""
    return [rows(source, counts, rank) for rank in range(len(counts))]


def whole(counts: Counts, dtype: Any, rest: tuple[int, ...]) -> Array:
    """Return the concatenation of all ranks' rows."""
    return moved(1, (sum(counts), *rest), dtype)[0].copy()


def dtypes_for(counts: Counts, exchanged: bool) -> tuple[np.dtype[Any], ...]:
    """Every dtype, but one for the long arrays, and three where the exchange is in question."""
    if max(counts) > 100:
        return (np.dtype(np.int32),)
    return (np.dtype(np.float32), BFLOAT16, RECORD) if exchanged else MOVABLE


@UNEVEN.behaviour(of=COUNTS, exchanged=(False, True))
def all_gather_v(comm: Communicator, of: Callable[[int], Counts], exchanged: bool) -> None:
    """All ranks' rows follow one another, with counts given or exchanged."""
    counts = of(comm.size)
    for dtype in dtypes_for(counts, exchanged):
        for rest in REST:
            expected = whole(counts, dtype, rest)
            x = rows(expected, counts, comm.rank).copy()
            given = None if exchanged else counts
            what = f"{dtype}, rest {rest}"
            equal(comm.all_gather_v(x, given), expected, what)
            out = poison(expected, (expected.size,))
            assert comm.all_gather_v(x, given, out=out) is out, "the result is out"
            equal(out.reshape(expected.shape), expected, f"{what}, out")
            equal(x, rows(expected, counts, comm.rank), f"{what}, x")


@UNEVEN.behaviour(of=COUNTS, exchanged=(False, True))
def gather_v(comm: Communicator, of: Callable[[int], Counts], exchanged: bool) -> None:
    """Every root gets all rows, the others None."""
    counts = of(comm.size)
    for dtype in dtypes_for(counts, exchanged):
        for root in ranks_for(dtype, comm.size):
            expected = whole(counts, dtype, (2,))
            x = rows(expected, counts, comm.rank).copy()
            given = None if exchanged else counts
            what = f"{dtype}, root {root}"
            result = comm.gather_v(x, root, given)
            out = poison(expected) if comm.rank == root else None
            assert comm.gather_v(x, root, given, out=out) is out, "the result is out"
            equal(x, rows(expected, counts, comm.rank), f"{what}, x")
            if comm.rank == root:
                equal(result, expected, what)
                equal(out, expected, f"{what}, out")
            else:
                assert result is None, "gather_v returns None elsewhere"


@UNEVEN.behaviour(of=COUNTS, exchanged=(False, True))
def scatter_v(comm: Communicator, of: Callable[[int], Counts], exchanged: bool) -> None:
    """Each rank gets its rows of the root's array in `out`.

    Without counts, the rows of each rank's `out` say them.
    """
    counts = of(comm.size)
    for dtype in dtypes_for(counts, exchanged):
        for root in ranks_for(dtype, comm.size):
            source = whole(counts, dtype, (2,))
            expected = rows(source, counts, comm.rank)
            x = source.copy() if comm.rank == root else None
            given = None if exchanged else counts
            out = poison(expected)
            assert comm.scatter_v(x, root, given, out=out) is out, "the result is out"
            equal(out, expected, f"{dtype}, root {root}")
            if x is not None:
                equal(x, source, "x")
    if not exchanged:
        source = whole(counts, np.float32, ())
        expected = rows(source, counts, comm.rank)
        if comm.rank == 0:
            equal(comm.scatter_v(source, 0, counts), expected, "the root without out")
        else:
            comm.scatter_v(None, 0, counts, out=poison(expected))


@UNEVEN.behaviour(op=OPS)
def reduce_scatter_v(comm: Communicator, op: ReduceOp) -> None:
    """Each rank gets its rows of the reduction, in a new array or in `out`."""
    counts = growing(comm.size)
    for dtype in dtypes_of(op):
        rtol = tolerance(op, dtype)
        arrays = reduced(op, comm.size, (sum(counts), 2), dtype)
        expected = rows(reduction(op, arrays), counts, comm.rank)
        x = arrays[comm.rank].copy()
        equal(comm.reduce_scatter_v(x, counts, op), expected, str(dtype), rtol=rtol)
        out = poison(expected, (expected.size,))
        assert comm.reduce_scatter_v(x, counts, op, out=out) is out, "the result is out"
        equal(out.reshape(expected.shape), expected, f"{dtype}, out", rtol=rtol)
        equal(x, arrays[comm.rank], f"{dtype}, x")


@UNEVEN.behaviour(of=COUNTS)
def reduce_scatter_v_of_any_counts(comm: Communicator, of: Callable[[int], Counts]) -> None:
    """Some ranks, or all, may get nothing, and some more than a segment."""
    counts = of(comm.size)
    for dtype in (np.dtype(np.int32), BFLOAT16):
        arrays = reduced(ReduceOp.SUM, comm.size, (sum(counts), 2), dtype)
        expected = rows(reduction(ReduceOp.SUM, arrays), counts, comm.rank)
        equal(comm.reduce_scatter_v(arrays[comm.rank], counts), expected, str(dtype))


@UNEVEN.behaviour()
def reduce_scatter_v_by_premultiplied_sum(comm: Communicator) -> None:
    """`premul_sum` goes with uneven blocks too."""
    counts = growing(comm.size)
    arrays = reduced(ReduceOp.SUM, comm.size, (sum(counts),), np.float32)
    expected = rows(reduction(ReduceOp.SUM, arrays), counts, comm.rank) / np.float32(2)
    mine = arrays[comm.rank]
    equal(comm.reduce_scatter_v(mine, counts, hpccomm.premul_sum(0.5)), expected)


def matrix(size: int, of: Callable[[int], Counts]) -> list[Counts]:
    """Return how many rows each rank (first index) sends to each (second index)."""
    counts = of(size)
    return [counts[rank:] + counts[:rank] for rank in range(size)]


@UNEVEN.behaviour(of=COUNTS, exchanged=(False, True))
def all_to_all_v(comm: Communicator, of: Callable[[int], Counts], exchanged: bool) -> None:
    """Rank j's rows for this rank follow rank j - 1's, with receive counts given or exchanged."""
    table = matrix(comm.size, of)
    send = table[comm.rank]
    receive = [row[comm.rank] for row in table]
    for dtype in dtypes_for(of(comm.size), exchanged):
        for rest in REST:
            sources = [
                moved(1, (sum(row), *rest), dtype, seed=rank)[0] for rank, row in enumerate(table)
            ]
            parts = [
                cut(source, row)[comm.rank] for source, row in zip(sources, table, strict=True)
            ]
            expected = np.concatenate(parts)
            x = sources[comm.rank].copy()
            given = None if exchanged else receive
            what = f"{dtype}, rest {rest}"
            equal(comm.all_to_all_v(x, send, given), expected, what)
            out = poison(expected)
            assert comm.all_to_all_v(x, send, given, out=out) is out, "the result is out"
            equal(out, expected, f"{what}, out")
            equal(x, sources[comm.rank], f"{what}, x")


@UNEVEN.behaviour(of=COUNTS, asynchronous=(False, True))
def own_blocks(comm: Communicator, of: Callable[[int], Counts], asynchronous: bool) -> None:
    """In place at the own block, wherever uneven blocks put it; all_to_all_v in x itself."""

    def finished(outcome: Any) -> Any:
        return outcome.wait() if asynchronous else outcome

    counts = of(comm.size)
    how: Any = {"async_op": asynchronous}
    root = comm.size - 1
    arrays = reduced(ReduceOp.SUM, comm.size, (sum(counts), 2), np.float32)
    expected, total = arrays[0], reduction(ReduceOp.SUM, arrays)
    mine = rows(expected, counts, comm.rank)
    place = poison(expected)
    own = rows(place, counts, comm.rank)
    own[:] = mine
    equal(finished(comm.all_gather_v(own, counts, out=place, **how)), expected, "all_gather_v")
    place = poison(expected)
    own = rows(place, counts, comm.rank)
    own[:] = mine
    finished(comm.gather_v(own, root, counts, out=place if comm.rank == root else None, **how))
    if comm.rank == root:
        equal(place, expected, "gather_v")
    x = arrays[comm.rank].copy()
    out = rows(x, counts, comm.rank)
    finished(comm.reduce_scatter_v(x, counts, out=out, **how))
    equal(out, rows(total, counts, comm.rank), "reduce_scatter_v")
    x = expected.copy()
    out = rows(x, counts, comm.rank) if comm.rank == root else poison(mine)
    finished(comm.scatter_v(x if comm.rank == root else None, root, counts, out=out, **how))
    equal(out, mine, "scatter_v")
    if comm.rank == root:
        equal(x, expected, "scatter_v, x")


@UNEVEN.behaviour(min_size=3)
def ranks_with_little_and_with_much(comm: Communicator) -> None:
    """Ranks take the same way in all_to_all_v, however many elements each of them has."""
    size = comm.size
    table = np.ones((size, size), np.int64)
    table[0, 1] = table[1, 0] = 1000
    send, recv = (tuple(map(int, each)) for each in (table[comm.rank], table[:, comm.rank]))
    x = np.repeat(np.arange(size, dtype=np.float32), send) + 100 * comm.rank
    expected = np.repeat(100 * np.arange(size, dtype=np.float32), recv) + comm.rank
    with another(comm, options=CommOptions(self_check=False, segment=64)) as small:
        equal(small.all_to_all_v(x, send, recv), expected, "call")
        equal(small.plan("all_to_all_v", x, send, recv)(), expected, "plan")


@UNEVEN.behaviour()
def all_to_all_v_in_place(comm: Communicator) -> None:
    """Out may be x where as many rows come as go, even if in blocks of other sizes."""
    size = comm.size
    # Rank i and rank j exchange |i - j| rows each way: the table is symmetric.
    table = [[abs(i - j) for j in range(size)] for i in range(size)]
    sources = [moved(1, (sum(row), 3), np.int64, seed=i)[0] for i, row in enumerate(table)]
    parts = [cut(source, row)[comm.rank] for source, row in zip(sources, table, strict=True)]
    x = sources[comm.rank].copy()
    for given in (None, table[comm.rank]):
        x[:] = sources[comm.rank]
        assert comm.all_to_all_v(x, table[comm.rank], given, out=x) is x, "the result is out"
        equal(x, np.concatenate(parts))


@UNEVEN.behaviour()
def counts_of_any_kind(comm: Communicator) -> None:
    """Counts may be a list, a tuple, a range or an integer array."""
    expected = np.arange(comm.size * (comm.size - 1) // 2, dtype=np.int16)
    counts = growing(comm.size)
    mine = rows(expected, counts, comm.rank)
    for given in (counts, tuple(counts), range(comm.size), np.array(counts)):
        equal(comm.all_gather_v(mine, given), expected, type(given).__name__)


@UNEVEN.behaviour()
def uneven_calls_may_be_asynchronous(comm: Communicator) -> None:
    """`async_op=True` with exchanged counts as well."""
    counts = growing(comm.size)
    expected = whole(counts, np.float64, (2,))
    mine = rows(expected, counts, comm.rank).copy()
    works = [comm.all_gather_v(mine, given, async_op=True) for given in (None, counts)]
    works.append(
        comm.all_to_all_v(
            np.concatenate([mine] * comm.size), [len(mine)] * comm.size, async_op=True
        )
    )
    equal(works[0].wait(), expected, "exchanged")
    equal(works[1].wait(), expected, "given")
    equal(works[2].wait(), expected, "all_to_all_v")


@UNEVEN.behaviour(min_size=2)
def an_out_that_does_not_fit_what_comes(comm: Communicator) -> None:
    """It shows only once counts were exchanged: that rank is told which, and all others too."""
    last = comm.rank == comm.size - 1
    x = np.ones((2, 3))
    wrong = np.ones((2 * comm.size + 1, 3))
    expected = BufferMismatch if last else RankMismatch
    calls: tuple[Callable[[], object], ...] = (
        lambda: comm.all_gather_v(x, out=wrong if last else None),
        lambda: comm.gather_v(x, comm.size - 1, out=wrong if last else None),
        lambda: comm.all_to_all_v(
            np.ones((2 * comm.size, 3)), [2] * comm.size, out=wrong if last else None
        ),
        lambda: comm.scatter_v(wrong if last else None, comm.size - 1, out=x.copy()),
    )
    for call in calls:
        with raises(expected):
            call()
    y = np.ones(1)
    comm.all_reduce(y)
    assert y[0] == comm.size, "a later call"
