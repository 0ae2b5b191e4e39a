"""Cases: calls that reduce: every operation and dtype, in place and out of place, all roots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.dtypes import BFLOAT16, REDUCIBLE
from hpccomm.errors import UsageError
from hpccomm.reductions import meaningful
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.inputs import OPS, PAIRS, SHAPES, ranks_for, reduced
from hpccomm.testing.conformance.oracle import FLAT, IN_PLACE, NEW, OUT, SEMANTICS, Spec
from hpccomm.testing.conformance.trials import carry_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpccomm.communicator import Communicator
    from hpccomm.reductions import Op

REDUCTIONS = Behaviours("reductions")

LARGE = (1 << 18) + 3
"""Elements, in float32 a little over 1 MiB: more than one segment or eager message, and odd."""

CALLS = tuple(name for name, meaning in SEMANTICS.items() if meaning.reduces)


def dtypes_of(op: ReduceOp) -> list[np.dtype[Any]]:
    """Return the dtypes with a meaning of `op`."""
    return [dtype for dtype in REDUCIBLE if meaningful(op, dtype)]


def carry_all_out(
    comm: Communicator,
    collectives: Sequence[str],
    op: Op,
    dtype: Any,
    shape: tuple[int, ...] = (2, 3),
    results: Sequence[str] = (NEW,),
    roots: Sequence[int] = (0,),
) -> None:
    """Reduce arrays, or blocks, of one shape by each of `collectives`, one kind of result at a time."""
    count, rest = (shape[0], shape[1:]) if shape else (None, ())
    for collective in collectives:
        for root in roots if collective == "reduce" else (0,):
            for result in results:
                spec = Spec(
                    collective, count, np.dtype(dtype), op, root, results=(result,), rest=rest
                )
                carry_out(comm, spec)


@REDUCTIONS.behaviour(pair=PAIRS)
def all_reduce(comm: Communicator, pair: tuple[ReduceOp, np.dtype[Any]]) -> None:
    """In place without `out`; else into `out`, which may have another shape, and x stays."""
    carry_all_out(comm, ["all_reduce"], *pair, (5, 7), (NEW, FLAT))


@REDUCTIONS.behaviour(called="{collective}", collective=("reduce", "reduce_scatter"), op=OPS)
def reduced_to_ranks(comm: Communicator, collective: str, op: ReduceOp) -> None:
    """The root gets the result, in x or `out`, or each rank its block: new, in `out`, or in x's own.

    On other ranks it is None, and x stays.
    """
    for dtype in dtypes_of(op):
        roots = ranks_for(dtype, comm.size)
        carry_all_out(comm, [collective], op, dtype, results=(NEW, FLAT, IN_PLACE), roots=roots)


@REDUCTIONS.behaviour(called="{kind}", kind=("scan", "exclusive_scan"), op=OPS)
def prefixes(comm: Communicator, kind: str, op: ReduceOp) -> None:
    """Rank r gets the reduction of ranks 0 to r, new, in `out`, or in x.

    An exclusive one leaves out rank r itself, and rank 0 gets what changes nothing. An average is
    refused: of how many would it be?
    """
    exclusive = kind == "exclusive_scan"
    if op is ReduceOp.AVG:
        with raises(UsageError, "avg"):
            comm.scan(np.ones(3), op, exclusive=exclusive)
        comm.barrier()
        return
    for dtype in dtypes_of(op):
        for result in (NEW, FLAT, IN_PLACE):
            spec = Spec("scan", 2, dtype, op, exclusive=exclusive, results=(result,), rest=(3,))
            carry_out(comm, spec)


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
def some_ranks_in_place(comm: Communicator, dtype: Any, length: int) -> None:
    """Whether a rank works in place, in a new array or in `out` is its own affair."""
    for results in ((NEW, IN_PLACE, OUT), (IN_PLACE, OUT, NEW), (OUT, NEW, IN_PLACE)):
        for collective in ("all_reduce", "scan", "all_to_all", "reduce_scatter", "all_gather"):
            carry_out(comm, Spec(collective, length, np.dtype(dtype), results=results))


@REDUCTIONS.behaviour(shape=SHAPES)
def shapes(comm: Communicator, shape: tuple[int, ...]) -> None:
    """Any shape goes: 0-d, one element, none."""
    for dtype in (np.float32, BFLOAT16):
        whole = [name for name in CALLS if name != "reduce_scatter"]
        carry_all_out(comm, whole, ReduceOp.SUM, dtype, shape, (NEW, OUT))
        carry_all_out(comm, ["reduce_scatter"], ReduceOp.SUM, dtype, (1, *shape))


@REDUCTIONS.behaviour(dtype=(np.float32, np.int8, BFLOAT16))
def large_arrays_reduce_whole(comm: Communicator, dtype: Any) -> None:
    """Arrays of more than one segment are reduced to the last element."""
    root = comm.size - 1
    carry_all_out(comm, ["all_reduce", "reduce"], ReduceOp.SUM, dtype, (LARGE,), roots=[root])
    carry_all_out(comm, ["reduce_scatter"], ReduceOp.SUM, dtype, (LARGE // comm.size,))


def with_nan(size: int, count: int, *, op: ReduceOp, dtype: Any) -> list[Any]:
    """Return contributions, each with a NaN at a place of its own."""
    arrays = reduced(op, size, (count,), dtype)
    for rank, array in enumerate(arrays):
        array[rank :: size + 1] = np.nan
    return arrays


@REDUCTIONS.behaviour(op=(ReduceOp.MIN, ReduceOp.MAX))
def nan_spreads(comm: Communicator, op: ReduceOp) -> None:
    """A NaN from any rank is the result on every rank, for every float."""
    for dtype in dtypes_of(op):
        if dtype.kind not in "biu":
            for collective in CALLS:
                inputs = partial(with_nan, op=op, dtype=dtype)
                count = comm.size + 1
                carry_out(comm, Spec(collective, count, dtype, op, results=(NEW,), inputs=inputs))


@REDUCTIONS.behaviour()
def average_of_integers_rounds_towards_zero(comm: Communicator) -> None:
    """The sum is divided by the size, and the fraction dropped on both sides of zero."""
    for dtype in (np.int8, np.int64):
        first = int(comm.rank == 0)
        x = np.array([-1 - first, 1 + first, -comm.size - first, 0], dtype)
        sums = [-comm.size - 1, comm.size + 1, -comm.size * comm.size - 1, 0]
        expected = [int(total / comm.size) for total in sums]
        equal(comm.all_reduce(x, ReduceOp.AVG), np.array(expected, dtype), str(dtype))


@REDUCTIONS.behaviour(call=CALLS)
def premultiplied_sum(comm: Communicator, call: str) -> None:
    """`premul_sum(factor)` multiplies each contribution before it is added."""
    for dtype, factor in ((np.float64, 0.5), (np.float32, -2.0), (BFLOAT16, 0.5)):
        op, roots = hpccomm.premul_sum(factor), [comm.size - 1]
        carry_all_out(comm, [call], op, dtype, (4,), (OUT, NEW), roots)


@REDUCTIONS.behaviour()
def callables_reduce(comm: Communicator) -> None:
    """Any commutative elementwise function of two arrays is an operation on the host."""

    def modular(a: Any, b: Any) -> Any:
        return a * b % 251

    for function in (np.gcd, modular, np.fmax):
        dtype = np.float32 if function is np.fmax else np.int64
        carry_all_out(comm, CALLS, function, dtype, roots=[comm.size - 1])


@REDUCTIONS.behaviour()
def callables_have_no_identity(comm: Communicator) -> None:
    """An exclusive scan by a function is refused: rank 0 would have no value."""
    with raises(UsageError, "hypot", "identity"):
        comm.scan(np.ones(3), np.hypot, exclusive=True)
    comm.barrier()
