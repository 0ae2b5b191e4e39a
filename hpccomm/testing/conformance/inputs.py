"""The inputs of each rank, computed without communication. Cases and the oracle use them.

Every rank computes the inputs of all ranks from a seed, so that it knows the right answer. The
values are chosen so that every partial result is exact in the dtype: then any order of reduction
gives the same bits, and a case asks for equality.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from hpccomm import ReduceOp
from hpccomm.dtypes import NARROW, REDUCIBLE
from hpccomm.reductions import LOCATING, meaningful

Array = npt.NDArray[Any]

OPS = tuple(op for op in ReduceOp if op not in LOCATING)
"""The plain dtypes."""

PAIRS = tuple((op, dtype) for op in OPS for dtype in REDUCIBLE if meaningful(op, dtype))
"""Every reduction with every dtype that it means something for."""

RECORD = np.dtype([("index", np.int32), ("point", np.float64, (2,)), ("flag", np.bool_)])
"""A structured dtype of odd size, with a sub-array."""

MOVABLE = (*REDUCIBLE, RECORD, np.dtype("S5"), np.dtype("U3"), np.dtype("datetime64[ns]"))
"""Dtypes that the calls without a reduction carry."""

SHAPES = ((), (1,), (7,), (0,), (3, 5), (2, 0, 3))
"""0-d, one element, odd, empty, and two axes."""


def ranks_for(dtype: npt.DTypeLike, size: int) -> list[int]:
    """Return the roots or partners that a case tries: all for float32, else the last alone.

    What a rank is to do does not depend on the dtype, so that one dtype shows it for all.
    """
    return list(range(size)) if np.dtype(dtype) == np.float32 else [size - 1]


def moved(size: int, shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0) -> list[Array]:
    """Return each rank's contribution to a call that moves data.

    Parameters
    ----------
    size : int
        Number of ranks.
    shape : tuple of int
        Of each rank's array.
    dtype : dtype
        One of `MOVABLE`.
    seed : int
        Another seed gives other values.

    Returns
    -------
    list of ndarray
        Entry r is rank r's; random, writable, C-contiguous, without NaN.
    """
    dtype = np.dtype(dtype)
    arrays = []
    for rank in range(size):
        random = np.random.default_rng([seed, size, rank])
        array = np.empty(shape, dtype)
        _fill(array, random)
        arrays.append(array)
    return arrays


def _fill(array: Array, random: np.random.Generator) -> None:
    if array.dtype.names is not None:
        for name in array.dtype.names:
            _fill(array[name], random)
        return
    numbers = random.integers(1, 120, array.shape)
    array[...] = (numbers % 2).astype(bool) if array.dtype.kind == "b" else numbers


def reduced(
    op: ReduceOp, size: int, shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0
) -> list[Array]:
    """Return each rank's contribution to a reduction with exact partial results.

    Parameters
    ----------
    op : ReduceOp
        SUM and AVG get small integers, PROD powers of two, the others any values. Integer dtypes
        get their full range, because wrapping is exact too. AVG of floats gets an element of one
        sign on all ranks, since rounded shares may not cancel.
    size : int
        Number of ranks.
    shape : tuple of int
        Of each rank's array.
    dtype : dtype
        A dtype with a meaning of `op`.
    seed : int
        Another seed gives other values.

    Returns
    -------
    list of ndarray
        Entry r is rank r's; writable, C-contiguous.
    """
    dtype = np.dtype(dtype)
    arrays = []
    for rank in range(size):
        random = np.random.default_rng([seed, size, rank, list(ReduceOp).index(op)])
        if op in LOCATING:
            arrays.append(_located(random, shape, dtype))
            continue
        if dtype.kind == "b":
            values: Any = random.integers(0, 2, shape)
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            values = random.integers(info.min, info.max, shape, dtype, endpoint=True)
        elif op is ReduceOp.PROD:
            # Six ranks of factors from 1/2 to 2 stay within float8's exponents; the others turn
            # the sign only.
            exponent = random.integers(-1, 2, shape) if rank < 6 else np.zeros(shape)
            units = (1, 1j, -1, -1j) if dtype.kind == "c" else (1, -1)
            values = np.ldexp(1.0, exponent.astype(np.intp)) * random.choice(units, shape)
        elif op in (ReduceOp.MIN, ReduceOp.MAX):
            values = random.normal(size=shape)
        else:
            magnitude = _magnitude(dtype, size, rank)
            values = random.integers(-magnitude, magnitude + 1, shape)
            if dtype.kind == "c":
                values = values + 1j * random.integers(-magnitude, magnitude + 1, shape)
            if op is ReduceOp.AVG:
                sign = np.random.default_rng([seed, size]).choice((-1, 1), shape)
                values = sign * (abs(values.real) + 1j * abs(values.imag))
                values = values if dtype.kind == "c" else values.real
        arrays.append(np.ascontiguousarray(np.asarray(values).astype(dtype)).reshape(shape))
    return arrays


def _located(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return few values, so that some are equal, some of them NaN; indices are not in the ranks' order."""
    array = np.zeros(shape, dtype)
    values = random.integers(0, 4, shape).astype(np.float64)
    if dtype["value"].kind not in "biu":
        values = np.where(random.integers(0, 6, shape) == 0, np.nan, values - 2)
    array["value"] = values.astype(dtype["value"])
    array["index"] = random.integers(0, 100, shape)
    return array


def _best(op: ReduceOp, contributions: Sequence[Array]) -> Array:
    """Return, element by element, what `numpy.argmin` or `numpy.argmax` finds among the indices in order."""
    stacked = np.stack(contributions)
    order = np.argsort(stacked["index"], axis=0, kind="stable")
    by_index = np.take_along_axis(stacked, order, axis=0)
    values = by_index["value"]
    if values.dtype in NARROW:
        values = values.astype(np.float32)
    find = np.argmin if op is ReduceOp.MINLOC else np.argmax
    at = np.asarray(find(values, axis=0))
    return np.asarray(np.take_along_axis(by_index, at[np.newaxis], axis=0)[0])


def float_info(dtype: np.dtype[Any]) -> Any:
    """Return `numpy.finfo` of a float or complex dtype, the narrow ones included."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def _magnitude(dtype: np.dtype[Any], size: int, rank: int) -> int:
    """Return the largest integer that rank may put into an exact sum over `size` ranks."""
    exact = 2 ** (int(float_info(dtype).nmant) + 1)
    return min(100, exact // size) or int(rank < exact)


def reduction(op: ReduceOp, contributions: Sequence[Array]) -> Array:
    """Return the reduction of `contributions`, computed by NumPy.

    Parameters
    ----------
    op : ReduceOp
        The operation.
    contributions : sequence of ndarray
        In rank order, of one shape and dtype. They are folded in that order; narrow floats in
        float32, rounded once.

    Returns
    -------
    ndarray
        New, of the same shape and dtype.
    """
    if op in LOCATING:
        return _best(op, contributions)
    dtype = contributions[0].dtype
    wide = np.dtype(np.float32) if dtype in NARROW else dtype
    operands = [array.astype(wide) for array in contributions]
    with np.errstate(all="ignore"):
        total = np.asarray(reduce(_FOLD[op], operands)).astype(wide)
        if op is ReduceOp.AVG:
            total = _divided(total, len(operands))
        return np.asarray(total.astype(dtype))


_FOLD: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVG: np.add,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def _divided(total: Array, size: int) -> Array:
    if total.dtype.kind not in "iu":
        return np.asarray(total / total.dtype.type(size))
    # Python's integers: no dtype's wrap, and no float's rounding, between the sum and the result.
    quotients = [abs(int(t)) // size * (-1 if t < 0 else 1) for t in total.flat]
    return np.array(quotients, dtype=total.dtype).reshape(total.shape)


def tolerance(op: ReduceOp, dtype: npt.DTypeLike, size: int) -> float:
    """Return the relative error that a reduction of `reduced` inputs may have.

    Parameters
    ----------
    op : ReduceOp
        The operation.
    dtype : dtype
        Of the arrays.
    size : int
        Number of ranks.

    Returns
    -------
    float
        For AVG of floats, whose division may be a multiplication of each contribution by the reciprocal:
        half a unit in the last place for the reciprocal, for the product, and for each sum. Else 0.
    """
    dtype = np.dtype(dtype)
    if op is ReduceOp.AVG and dtype.kind not in "iu":
        return float(float_info(dtype).eps) * (size + 1) / 2
    return 0.0


def poison(expected: Array, shape: tuple[int, ...] | None = None) -> Array:
    """Return an array that differs from `expected` in every element.

    Parameters
    ----------
    expected : ndarray
        The expected result.
    shape : tuple of int, optional
        Another shape of the same size.

    Returns
    -------
    ndarray
        Writable, C-contiguous, of `expected`'s dtype: its bytes inverted, or its truth.
    """
    if expected.dtype.kind == "b":
        inverted = ~expected
    elif expected.dtype.kind == "U":
        inverted = np.full(expected.shape, "?", expected.dtype)
    else:
        bits = np.frombuffer(expected.tobytes(), np.uint8)
        inverted = np.frombuffer(bytearray(~bits), expected.dtype)
    return np.ascontiguousarray(inverted).reshape(expected.shape if shape is None else shape)
