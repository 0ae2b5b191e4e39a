"""MPI's names for dtypes, reductions and sizes."""

from functools import cache

import numpy as np
from mpi4py import MPI

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.reductions import Op, ReduceOp, fold

INT_MAX = 2**31 - 1
"""Counts above are refused by some libraries (Open MPI 5), although mpi4py passes them on."""

PIECE_BYTES = 1 << 30
"""Larger messages are described by a datatype of so many bytes, larger reductions cut up."""

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
# A NumPy bool is a byte that is 0 or 1, on which these say the same.
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
"""Elements on which the library's reductions are tried."""


@cache
def reduction(op: Op, dtype: DType) -> tuple[MPI.Datatype, MPI.Op] | None:
    """Return MPI's datatype and operation for a reduction, or None where they mean something else.

    MIN and MAX of floats are not MPI's: libraries leave ranks with different results where there is
    a NaN. float16 is not either: where a library has it at all, it is an extension.
    """
    if not isinstance(op, ReduceOp):
        return None
    if dtype == dtypes.BOOL:
        return MPI.UINT8_T, _BOOL_OPS[op]
    if dtype not in _TYPES or (op in (ReduceOp.MIN, ReduceOp.MAX) and not dtypes.is_integer(dtype)):
        return None
    datatype, mpi_op = _TYPES[dtype], _OPS[op]
    return (datatype, mpi_op) if _works(op, dtype, datatype, mpi_op) else None


def _works(op: ReduceOp, dtype: DType, datatype: MPI.Datatype, mpi_op: MPI.Op) -> bool:
    """Whether the library reduces as NumPy does, tried on this process alone."""
    if datatype == MPI.DATATYPE_NULL:
        return False
    # Long enough for vector instructions and a rest, and over the whole range of integers: Open MPI's
    # vector code saturates sums of 8 and 16 bits where they must wrap.
    if dtypes.is_integer(dtype):
        bounds = np.iinfo(dtype)
        a = np.linspace(bounds.min, bounds.max, _TRIED).astype(dtype)
    else:
        a = np.linspace(-3, 4, _TRIED).astype(dtype)
    b, expected = a[::-1].copy(), np.empty(_TRIED, dtype)
    b[::3] = a[::3]
    fold(op, (a, b), expected)
    try:
        mpi_op.Reduce_local([a, _TRIED, datatype], [b, _TRIED, datatype])
    except MPI.Exception:
        return False
    return np.array_equal(b, expected)


@cache
def block(nbytes: int) -> tuple[int, MPI.Datatype]:
    """Return count and datatype that describe `nbytes` contiguous bytes, however many.

    Beyond what a count holds, the block is one element of a datatype of its own.
    """
    if nbytes <= INT_MAX:
        return nbytes, MPI.BYTE
    return 1, _large(nbytes)


def one(nbytes: int) -> tuple[int, MPI.Datatype]:
    """Return count and datatype of a block, so that n of them stay within MPI's counts."""
    return (1, _large(nbytes)) if nbytes else (0, MPI.BYTE)


@cache
def _large(nbytes: int) -> MPI.Datatype:
    # Cached for the life of the process: there are as many as there are sizes in use.
    pieces, rest = divmod(nbytes, PIECE_BYTES)
    piece = MPI.BYTE.Create_contiguous(PIECE_BYTES)
    whole = MPI.Datatype.Create_struct([pieces, rest], [0, pieces * PIECE_BYTES], [piece, MPI.BYTE])
    piece.Free()
    return whole.Commit()
