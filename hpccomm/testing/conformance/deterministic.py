"""`deterministic=True`: every element is folded in rank order, and narrow floats round once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from hpccomm import ReduceOp
from hpccomm.dtypes import NARROW
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, same_bits
from hpccomm.testing.conformance.inputs import reduction

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

DETERMINISTIC = Behaviours("deterministic")

FLOATS = tuple(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def cancelling(size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
    """Return contributions whose sum depends on the order: large ones cancel, small ones stay."""
    arrays = []
    for rank in range(size):
        random = np.random.default_rng([size, rank])
        if dtype in NARROW:
            # Their range is small, and so is the number of bits that an order can change.
            values = random.normal(size=shape) * 2.0 ** random.integers(-3, 3, shape)
        else:
            values = random.normal(size=shape) * 10.0 ** random.integers(-6, 7, shape)
        if dtype.kind == "c":
            values = values + 1j * random.permuted(values)
        arrays.append(values.astype(dtype))
    return arrays


def rounded(size: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Array]:
    """Return factors near one, whose product depends on the order and stays in range."""
    wide = np.complex128 if dtype.kind == "c" else np.float64
    return [
        (1 + np.tanh(array.astype(wide).real) / 8 * (1 + 1j if dtype.kind == "c" else 1)).astype(
            dtype
        )
        for array in cancelling(size, shape, dtype)
    ]


@DETERMINISTIC.behaviour(dtype=(*FLOATS, *NARROW), op=(ReduceOp.SUM, ReduceOp.PROD))
def the_order_is_the_ranks(comm: Communicator, dtype: np.dtype[Any], op: ReduceOp) -> None:
    """Every call gives the bits of a fold from rank 0 upwards."""
    make = rounded if op is ReduceOp.PROD else cancelling
    arrays = make(comm.size, (2 * comm.size, 33), dtype)
    expected = reduction(op, arrays)
    mine = arrays[comm.rank]
    same_bits(comm.all_reduce(mine.copy(), op, deterministic=True), expected, "all_reduce")
    block = np.split(expected, comm.size)[comm.rank]
    same_bits(comm.reduce_scatter(mine, op, deterministic=True), block, "reduce_scatter")
    counts = [2] * comm.size
    same_bits(comm.reduce_scatter_v(mine, counts, op, deterministic=True), block, "uneven")
    prefix = reduction(op, arrays[: comm.rank + 1])
    same_bits(comm.scan(mine, op, deterministic=True), prefix, "scan")
    for root in {0, comm.size - 1}:
        result = comm.reduce(mine.copy(), root, op, deterministic=True)
        if result is not None:
            same_bits(result, expected, f"reduce to {root}")


@DETERMINISTIC.behaviour(min_size=3)
def narrow_floats_round_once(comm: Communicator) -> None:
    """256 + 1 + 1 is 258 in bfloat16, and would be 256 if each sum were rounded."""
    x = np.array([256 if comm.rank == 0 else int(comm.rank < 3)], ml_dtypes.bfloat16)
    expected = np.array([258], ml_dtypes.bfloat16)
    equal(comm.all_reduce(x, deterministic=True), expected)


@DETERMINISTIC.behaviour()
def the_run_does_not_matter(comm: Communicator) -> None:
    """The same input gives the same bits again, synchronous or not, in place or out."""
    mine = cancelling(comm.size, (4001,), np.dtype(np.float32))[comm.rank]
    first = comm.all_reduce(mine.copy(), deterministic=True)
    for _ in range(3):
        out = np.empty_like(mine)
        comm.all_reduce(mine, out=out, deterministic=True)
        same_bits(out, first, "out")
    work = comm.all_reduce(mine.copy(), deterministic=True, async_op=True)
    same_bits(work.wait(), first, "async_op")
    everywhere = comm.all_gather(first)
    same_bits(everywhere, np.stack([first] * comm.size), "on every rank")
