"""Calls that reduce: every operation with every dtype, in place and out of place, all roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.dtypes import BFLOAT16, REDUCIBLE
from hpccomm.errors import UsageError
from hpccomm.reductions import meaningful
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.inputs import (
    OPS,
    PAIRS,
    SHAPES,
    float_info,
    poison,
    ranks_for,
    reduced,
    reduction,
    tolerance,
)

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

REDUCTIONS = Behaviours("reductions")

LARGE = (1 << 18) + 3
"""Elements, in float32 a little over 1 MiB: more than one segment or eager message, and odd."""


def dtypes_of(op: ReduceOp) -> list[np.dtype[Any]]:
    """Return the dtypes for which `op` means something."""
    return [dtype for dtype in REDUCIBLE if meaningful(op, dtype)]


@REDUCTIONS.behaviour(pair=PAIRS)
def all_reduce(comm: Communicator, pair: tuple[ReduceOp, np.dtype[Any]]) -> None:
    """In place without `out`; else into `out`, which may have another shape, and x stays."""
    op, dtype = pair
    rtol = tolerance(op, dtype)
    arrays = reduced(op, comm.size, (5, 7), dtype)
    expected = reduction(op, arrays)
    x = arrays[comm.rank].copy()
    assert comm.all_reduce(x, op) is x, "all_reduce works in place"
    equal(x, expected, "in place", rtol=rtol)
    x, out = arrays[comm.rank].copy(), poison(expected, (35,))
    assert comm.all_reduce(x, op=op, out=out) is out, "the result is out"
    equal(out.reshape(expected.shape), expected, "out", rtol=rtol)
    equal(x, arrays[comm.rank], "x")


@REDUCTIONS.behaviour(op=OPS)
def reduce(comm: Communicator, op: ReduceOp) -> None:
    """The root gets the result in x or `out`; elsewhere it is None and x stays."""
    for dtype in dtypes_of(op):
        rtol = tolerance(op, dtype)
        for root in ranks_for(dtype, comm.size):
            what = f"{dtype}, root {root}"
            arrays = reduced(op, comm.size, (2, 3), dtype, seed=root)
            expected = reduction(op, arrays)
            x, out = arrays[comm.rank].copy(), None
            result = comm.reduce(x, root, op)
            if comm.rank == root:
                assert result is x, "reduce works in place"
                equal(x, expected, what, rtol=rtol)
                x, out = arrays[root].copy(), poison(expected, (6,))
            else:
                assert result is None, "reduce returns None elsewhere"
                equal(x, arrays[comm.rank], f"{what}, x elsewhere")
            assert comm.reduce(x, root, op, out=out) is out, "the result is out"
            equal(x, arrays[comm.rank], f"{what}, x beside out")
            if out is not None:
                equal(out.reshape(expected.shape), expected, what, rtol=rtol)


@REDUCTIONS.behaviour(op=OPS)
def reduce_scatter(comm: Communicator, op: ReduceOp) -> None:
    """Block r of the reduction arrives at rank r, new, in `out`, or in x's own block."""
    for dtype in dtypes_of(op):
        rtol = tolerance(op, dtype)
        arrays = reduced(op, comm.size, (2 * comm.size, 3), dtype)
        expected = np.split(reduction(op, arrays), comm.size)[comm.rank]
        x = arrays[comm.rank].copy()
        equal(comm.reduce_scatter(x, op), expected, str(dtype), rtol=rtol)
        out = poison(expected, (6,))
        assert comm.reduce_scatter(x, op, out=out) is out, "the result is out"
        equal(out.reshape(expected.shape), expected, f"{dtype}, out", rtol=rtol)
        equal(x, arrays[comm.rank], f"{dtype}, x")
        own = x[2 * comm.rank : 2 * comm.rank + 2]
        comm.reduce_scatter(x, op, out=own)
        equal(own, expected, f"{dtype}, own block", rtol=rtol)


@REDUCTIONS.behaviour(op=OPS)
def scan(comm: Communicator, op: ReduceOp) -> None:
    """Rank r gets the reduction of ranks 0 to r, new, in `out`, or in x.

    An average is refused: of how many would it be?
    """
    if op is ReduceOp.AVG:
        with raises(UsageError, "avg"):
            comm.scan(np.ones(3), op)
        comm.barrier()
        return
    for dtype in dtypes_of(op):
        arrays = reduced(op, comm.size, (2, 3), dtype)
        expected = reduction(op, arrays[: comm.rank + 1])
        x = arrays[comm.rank].copy()
        equal(comm.scan(x, op), expected, str(dtype))
        out = poison(expected, (6,))
        assert comm.scan(x, op, out=out) is out, "the result is out"
        equal(out.reshape(expected.shape), expected, f"{dtype}, out")
        equal(x, arrays[comm.rank], f"{dtype}, x")
        assert comm.scan(x, op, out=x) is x, "the result is out"
        equal(x, expected, f"{dtype}, in place")


@REDUCTIONS.behaviour(op=OPS)
def exclusive_scan(comm: Communicator, op: ReduceOp) -> None:
    """Rank r gets the reduction of ranks 0 to r - 1, and rank 0 what changes nothing.

    An average is refused here too.
    """
    if op is ReduceOp.AVG:
        with raises(UsageError, "avg"):
            comm.scan(np.ones(3), op, exclusive=True)
        comm.barrier()
        return
    for dtype in dtypes_of(op):
        arrays = reduced(op, comm.size, (2, 3), dtype)
        x = arrays[comm.rank].copy()
        if comm.rank:
            expected = reduction(op, arrays[: comm.rank])
        else:
            expected = np.full((2, 3), identity(op, dtype), dtype)
        equal(comm.scan(x, op, exclusive=True), expected, str(dtype))
        equal(x, arrays[comm.rank], f"{dtype}, x")
        comm.scan(x, op, out=x, exclusive=True)
        equal(x, expected, f"{dtype}, in place")


@REDUCTIONS.behaviour()
def sum_is_the_default(comm: Communicator) -> None:
    """Without `op`, each call sums."""
    ranks = np.arange(comm.size)
    ones = np.full((comm.size, 2), comm.rank, np.int64)
    total = np.full((comm.size, 2), ranks.sum())
    equal(comm.scan(ones), np.full((comm.size, 2), ranks[: comm.rank + 1].sum()), "scan")
    equal(comm.reduce_scatter(ones), total[:1], "reduce_scatter")
    result = comm.reduce(ones.copy())
    if comm.rank == 0:
        equal(result, total, "reduce")
    equal(comm.all_reduce(ones), total, "all_reduce")


@REDUCTIONS.behaviour(dtype=(np.float32, BFLOAT16), length=(6, 20_000))
def some_ranks_in_place(comm: Communicator, dtype: np.dtype[Any], length: int) -> None:
    """Whether a rank works in place, in a new array or in `out` is its own affair."""
    arrays = reduced(ReduceOp.SUM, comm.size, (comm.size, length), dtype)
    total = reduction(ReduceOp.SUM, arrays)
    column = np.stack([array[comm.rank] for array in arrays])
    for turn in range(3):
        way = (comm.rank + turn) % 3
        mine, own = arrays[comm.rank], slice(comm.rank, comm.rank + 1)
        x, whole = mine.copy(), poison(total)
        out = (None, x, whole)[way]
        equal(comm.all_reduce(x, out=out), total, "all_reduce")
        x = mine.copy()
        out = (None, x, whole)[way]
        prefix = reduction(ReduceOp.SUM, arrays[: comm.rank + 1])
        equal(comm.scan(x, out=out), prefix, "scan")
        x = mine.copy()
        equal(comm.all_to_all(x, out=(None, x, whole)[way]), column, "all_to_all")
        x = mine.copy()
        equal(
            comm.reduce_scatter(x, out=(None, x[own], whole[own])[way]),
            total[own],
            "reduce_scatter",
        )
        gathered = np.stack(arrays)
        place = poison(gathered)
        place[comm.rank] = mine
        x = place[comm.rank] if way == 1 else mine.copy()
        equal(comm.all_gather(x, out=None if way == 0 else place), gathered, "all_gather")


@REDUCTIONS.behaviour(shape=SHAPES)
def shapes(comm: Communicator, shape: tuple[int, ...]) -> None:
    """Any shape goes: 0-d, one element, none."""
    for dtype in (np.float32, BFLOAT16):
        arrays = reduced(ReduceOp.SUM, comm.size, shape, dtype)
        expected = reduction(ReduceOp.SUM, arrays)
        mine = arrays[comm.rank]
        equal(comm.all_reduce(mine.copy()), expected, "all_reduce")
        equal(comm.all_reduce(mine, out=poison(expected)), expected, "all_reduce, out")
        equal(comm.scan(mine), reduction(ReduceOp.SUM, arrays[: comm.rank + 1]), "scan")
        equal(comm.reduce_scatter(np.stack([mine] * comm.size)), expected[np.newaxis], "blocks")
        result = comm.reduce(mine)
        if comm.rank == 0:
            equal(result, expected, "reduce")


@REDUCTIONS.behaviour(dtype=(np.float32, np.int8, BFLOAT16))
def large_arrays_reduce_whole(comm: Communicator, dtype: np.dtype[Any]) -> None:
    """Arrays of more than one segment are reduced to the last element."""
    arrays = reduced(ReduceOp.SUM, comm.size, (LARGE,), dtype)
    expected = reduction(ReduceOp.SUM, arrays)
    x = arrays[comm.rank].copy()
    equal(comm.all_reduce(x), expected, "all_reduce")
    result = comm.reduce(arrays[comm.rank].copy(), comm.size - 1)
    if comm.rank == comm.size - 1:
        equal(result, expected, "reduce")
    rows = [np.resize(array, (comm.size, LARGE // comm.size)) for array in arrays]
    blocks = reduction(ReduceOp.SUM, [row[comm.rank : comm.rank + 1] for row in rows])
    equal(comm.reduce_scatter(rows[comm.rank]), blocks, "reduce_scatter")


@REDUCTIONS.behaviour(op=(ReduceOp.MIN, ReduceOp.MAX))
def nan_spreads(comm: Communicator, op: ReduceOp) -> None:
    """A NaN from any rank is the result on every rank, for every float."""
    for dtype in dtypes_of(op):
        if dtype.kind in "biu":
            continue
        arrays = reduced(op, comm.size, (comm.size + 1,), dtype)
        for rank, array in enumerate(arrays):
            array[rank] = np.nan
        expected = reduction(op, arrays)
        x = arrays[comm.rank].copy()
        equal(comm.all_reduce(x.copy(), op), expected, f"all_reduce of {dtype}")
        equal(comm.scan(x, op), reduction(op, arrays[: comm.rank + 1]), f"scan of {dtype}")
        result = comm.reduce(x.copy(), 0, op)
        if comm.rank == 0:
            equal(result, expected, f"reduce of {dtype}")
        tiled = np.stack([x] * comm.size)
        equal(comm.reduce_scatter(tiled, op), expected[np.newaxis], f"reduce_scatter of {dtype}")


@REDUCTIONS.behaviour()
def average_of_integers_rounds_towards_zero(comm: Communicator) -> None:
    """The sum is divided by the size, and the fraction dropped on both sides of zero."""
    for dtype in (np.int8, np.int64):
        first = int(comm.rank == 0)
        x = np.array([-1 - first, 1 + first, -comm.size - first, 0], dtype)
        sums = [-comm.size - 1, comm.size + 1, -comm.size * comm.size - 1, 0]
        expected = [int(total / comm.size) for total in sums]
        equal(comm.all_reduce(x, ReduceOp.AVG), np.array(expected, dtype), str(dtype))


@REDUCTIONS.behaviour(call=("all_reduce", "reduce", "reduce_scatter", "scan"))
def premultiplied_sum(comm: Communicator, call: str) -> None:
    """`premul_sum(factor)` multiplies each contribution before it is added."""
    for dtype, factor in ((np.float64, 0.5), (np.float32, -2.0), (BFLOAT16, 0.5)):
        arrays = reduced(ReduceOp.SUM, comm.size, (comm.size, 4), dtype)
        scaled = [(array * array.dtype.type(factor)).astype(dtype) for array in arrays]
        op = hpccomm.premul_sum(factor)
        x = arrays[comm.rank].copy()
        total = reduction(ReduceOp.SUM, scaled)
        what = f"{call} of {np.dtype(dtype)}"
        if call == "reduce":
            out = poison(total) if comm.rank == comm.size - 1 else None
            result = comm.reduce(x, comm.size - 1, op, out=out)
            assert result is out, what
            if out is not None:
                equal(out, total, what)
        elif call == "scan":
            equal(comm.scan(x, op), reduction(ReduceOp.SUM, scaled[: comm.rank + 1]), what)
        elif call == "reduce_scatter":
            equal(comm.reduce_scatter(x, op), total[comm.rank : comm.rank + 1], what)
        else:
            equal(comm.all_reduce(x, op, out=poison(total)), total, what)
        equal(x, arrays[comm.rank], f"{what}, x")
        equal(comm.all_reduce(x, op), total, f"{what}, in place")


@REDUCTIONS.behaviour()
def callables_reduce(comm: Communicator) -> None:
    """Any commutative elementwise function of two arrays is an operation on the host."""

    def modular(a: Any, b: Any) -> Any:
        return a * b % 251

    for function in (np.gcd, modular, np.fmax):
        dtype = np.dtype(np.float32 if function is np.fmax else np.int64)
        arrays = [a % 251 for a in reduced(ReduceOp.BXOR, comm.size, (comm.size, 3), np.int64)]
        arrays = [array.astype(dtype) for array in arrays]
        partial = [arrays[0]]
        for array in arrays[1:]:
            partial.append(function(partial[-1], array))
        mine, total = arrays[comm.rank], partial[-1]
        what = str(function)
        equal(comm.all_reduce(mine.copy(), function), total, f"all_reduce, {what}")
        equal(comm.scan(mine, function), partial[comm.rank], f"scan, {what}")
        block = total[comm.rank : comm.rank + 1]
        equal(comm.reduce_scatter(mine, function), block, f"reduce_scatter, {what}")
        result = comm.reduce(mine.copy(), comm.size - 1, function)
        if comm.rank == comm.size - 1:
            equal(result, total, f"reduce, {what}")


@REDUCTIONS.behaviour()
def callables_have_no_identity(comm: Communicator) -> None:
    """An exclusive scan by a function is refused: rank 0 would have no value."""
    with raises(UsageError, "hypot", "identity"):
        comm.scan(np.ones(3), np.hypot, exclusive=True)
    comm.barrier()


def identity(op: ReduceOp, dtype: np.dtype[Any]) -> Any:
    """Return the value that changes nothing under `op`."""
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        if dtype.kind == "b":
            return op is ReduceOp.MIN
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return info.max if op is ReduceOp.MIN else info.min
        # The largest finite value where a dtype has no infinity (float8_e4m3fn).
        with np.errstate(all="ignore"):
            largest = np.array(np.inf).astype(dtype)
        if np.isnan(largest.astype(np.float32)):
            largest = np.asarray(float_info(dtype).max)
        return largest if op is ReduceOp.MIN else -largest
    if op is ReduceOp.BAND:
        return True if dtype.kind == "b" else np.invert(dtype.type(0))
    return op is ReduceOp.PROD
