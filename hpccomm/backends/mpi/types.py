"""MPI's counterparts of hpccomm's datatypes, reductions and counts.

`backend`, `collectives`, `transport` and `window` use them.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from mpi4py import MPI

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.memory.folding import Folder
from hpccomm.reductions import ReduceOp, meaningful

INT_MAX = 2**31 - 1
"""Largest count that MPI gets: some libraries (Open MPI 5) refuse larger counts, although mpi4py passes them on."""

PIECE_BYTES = 1 << 30
"""Bytes of a piece. A datatype of this size describes larger messages; larger reductions are cut into pieces."""

_TYPES: dict[DType, MPI.Datatype] = {
    np.dtype(np.int8): MPI.INT8_T,
    np.dtype(np.int16): MPI.INT16_T,
    np.dtype(np.int32): MPI.INT32_T,
    np.dtype(np.int64): MPI.INT64_T,
    np.dtype(np.uint8): MPI.UINT8_T,
    np.dtype(np.uint16): MPI.UINT16_T,
    np.dtype(np.uint32): MPI.UINT32_T,
    np.dtype(np.uint64): MPI.UINT64_T,
    np.dtype(np.float32): MPI.FLOAT,
    np.dtype(np.float64): MPI.DOUBLE,
    np.dtype(np.complex64): MPI.C_FLOAT_COMPLEX,
    np.dtype(np.complex128): MPI.C_DOUBLE_COMPLEX,
}
_OPS: dict[ReduceOp, MPI.Op] = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.AVG: MPI.SUM,  # divided afterwards
    ReduceOp.PROD: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
    ReduceOp.BAND: MPI.BAND,
    ReduceOp.BOR: MPI.BOR,
    ReduceOp.BXOR: MPI.BXOR,
}
# A NumPy bool is a byte of 0 or 1, for which these bitwise operations give the reductions of booleans.
_BOOL_OPS: dict[ReduceOp, MPI.Op] = {
    ReduceOp.SUM: MPI.BOR,
    ReduceOp.MAX: MPI.BOR,
    ReduceOp.BOR: MPI.BOR,
    ReduceOp.PROD: MPI.BAND,
    ReduceOp.MIN: MPI.BAND,
    ReduceOp.BAND: MPI.BAND,
    ReduceOp.BXOR: MPI.BXOR,
}


_TRIED = 131
"""Number of elements in the trial of the library's reductions."""

Pair = tuple[ReduceOp, DType]
Reductions = Mapping[Pair, tuple[MPI.Datatype, MPI.Op]]
"""The pairs that the library reduces with hpccomm's meaning, with MPI's datatype and operation for each."""


def _candidates() -> dict[Pair, tuple[MPI.Datatype, MPI.Op]]:
    """Return the pairs that have names in MPI.

    MIN and MAX of floats are left out, because with a NaN libraries give ranks different results.
    float16 is left out, because it is an extension that few libraries have.
    """
    named: dict[Pair, tuple[MPI.Datatype, MPI.Op]] = {
        (op, dtypes.BOOL): (MPI.UINT8_T, mpi_op) for op, mpi_op in _BOOL_OPS.items()
    }
    for dtype, datatype in _TYPES.items():
        for op, mpi_op in _OPS.items():
            ordered = op in (ReduceOp.MIN, ReduceOp.MAX)
            if meaningful(op, dtype) and (dtypes.is_integer(dtype) or not ordered):
                named[op, dtype] = datatype, mpi_op
    return named


@cache
def tried() -> tuple[bool, ...]:
    """Return, for each candidate, whether the library's result is right in this process. Local; cached."""
    return tuple(_works(*pair, *named) for pair, named in _candidates().items())


def agreed(answers: Sequence[Sequence[bool]]) -> Reductions:
    """Return the reductions that are right on every rank, from the result of `tried` on every rank.

    Ranks may differ, because libraries choose their code by the processor.
    """
    everywhere = [all(column) for column in zip(*answers, strict=True)]
    candidates = _candidates().items()
    return {
        pair: named for (pair, named), right in zip(candidates, everywhere, strict=True) if right
    }


def _works(op: ReduceOp, dtype: DType, datatype: MPI.Datatype, mpi_op: MPI.Op) -> bool:
    """Return whether the library reduces as NumPy does, from a trial on this process alone."""
    if datatype == MPI.DATATYPE_NULL:
        return False
    # The arrays are long enough for vector instructions and a rest, and have values over the whole range. Open MPI's
    # vector code saturates sums of 8 and 16 bits that must wrap. Libraries multiply complex numbers as C
    # does, which gives infinities where NumPy gives NaN (C99, annex G).
    part = np.empty(0, dtype).real.dtype
    if dtype == dtypes.BOOL or dtypes.is_integer(dtype):
        bits = _scattered(2, _TRIED)
        a, b = (bits % 2 if dtype == dtypes.BOOL else bits).astype(dtype)
    else:
        limits = np.finfo(part)
        extremes = (0, 1, 3, limits.eps, limits.max, limits.tiny, limits.smallest_subnormal, np.inf)
        values = np.array([*extremes, np.nan, *(-each for each in extremes)], part)
        a, b = values[_scattered(2, 2 * _TRIED) % len(values)].view(dtype)[:, :_TRIED]
    expected = np.empty(_TRIED, dtype)
    Folder(op, dtype)((a, b), expected)
    try:
        mpi_op.Reduce_local([a, _TRIED, datatype], [b, _TRIED, datatype])
    except MPI.Exception:
        return False
    return np.array_equal(b.view(part), expected.view(part), equal_nan=part.kind == "f")


def _scattered(rows: int, columns: int) -> np.ndarray:
    """Return integers spread over the whole range, always the same ones.

    They come from multiplicative hashing (D. E. Knuth, The Art of Computer Programming 3, section 6.4). NumPy's
    generators would load ten modules.
    """
    bits = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (bits ^ (bits >> np.uint64(32))).reshape(rows, columns)


def block(nbytes: int) -> tuple[int, MPI.Datatype]:
    """Return count and datatype that describe any number `nbytes` of contiguous bytes.

    A block that is larger than `INT_MAX` is one element of a datatype of its size.
    """
    return (nbytes, MPI.BYTE) if nbytes <= INT_MAX else (1, _large(nbytes))


def one(nbytes: int) -> tuple[int, MPI.Datatype]:
    """Return count and datatype of a block, with the count 1 or 0, so that n blocks stay within MPI's counts."""
    return (1, _large(nbytes)) if nbytes else (0, MPI.BYTE)


@cache
def strided(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> MPI.Datatype:
    """Return the datatype of an array of that layout, from its first element on. Cached, never freed."""
    datatype = MPI.BYTE.Create_contiguous(itemsize)
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        inner = datatype
        if stride == -1:  # in a vector, Open MPI 5.0.11 takes -1 for the inner extent
            datatype = inner.Create_hindexed_block(1, range(0, -length, -1))
        else:
            datatype = inner.Create_hvector(length, 1, stride)
        inner.Free()
    return datatype.Commit()


@cache
def _large(nbytes: int) -> MPI.Datatype:
    # Cached and never freed: there is one datatype for each size in use.
    pieces, rest = divmod(nbytes, PIECE_BYTES)
    piece = MPI.BYTE.Create_contiguous(PIECE_BYTES)
    whole = MPI.Datatype.Create_struct([pieces, rest], [0, pieces * PIECE_BYTES], [piece, MPI.BYTE])
    piece.Free()
    return whole.Commit()
