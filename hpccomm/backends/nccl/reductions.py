"""NCCL's reduction and datatype for each of hpccomm's reductions, if the meaning is the same.

`collectives` asks it for each signature.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.backends.nccl import libnccl
from hpccomm.contracts.device import Launch
from hpccomm.dtypes import DType
from hpccomm.reductions import Op, PremulSum, ReduceOp

# Numbers of nccl.h. CuPy exports all except float8; they are part of NCCL's binary interface.
INT8, UINT8, INT32, UINT32, INT64, UINT64 = range(6)
FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2 = range(6, 12)
SUM, PROD, MAX, MIN, AVG = range(5)

FLOAT8_SINCE = 22400
"""NCCL version that knows float8."""
FLOAT8_CAPABILITY = 90
"""Compute capability, ten times, from which devices reduce float8."""

_DATATYPES: dict[DType, int] = {
    np.dtype(np.int8): INT8,
    np.dtype(np.uint8): UINT8,
    np.dtype(np.int32): INT32,
    np.dtype(np.uint32): UINT32,
    np.dtype(np.int64): INT64,
    np.dtype(np.uint64): UINT64,
    np.dtype(np.float16): FLOAT16,
    np.dtype(np.float32): FLOAT32,
    np.dtype(np.float64): FLOAT64,
    dtypes.BFLOAT16: BFLOAT16,
    dtypes.FLOAT8_E4M3FN: FLOAT8_E4M3,
    dtypes.FLOAT8_E5M2: FLOAT8_E5M2,
}
"""The dtypes that NCCL reduces. It has no 16-bit integers."""

_OPS: dict[object, int] = {
    ReduceOp.SUM: SUM,
    ReduceOp.PROD: PROD,
    ReduceOp.MAX: MAX,
    ReduceOp.MIN: MIN,
    ReduceOp.AVG: AVG,
}

_OF_BOOL: dict[object, int] = {
    # A bool is a byte of 0 or 1: "or" is the largest, "and" the smallest.
    ReduceOp.SUM: MAX,
    ReduceOp.BOR: MAX,
    ReduceOp.MAX: MAX,
    ReduceOp.PROD: MIN,
    ReduceOp.BAND: MIN,
    ReduceOp.MIN: MIN,
}

_OF_COMPLEX: dict[object, int] = {ReduceOp.SUM: SUM, ReduceOp.AVG: AVG}
"""Reductions that treat real and imaginary parts alike."""

_SPACING: dict[DType, float] = {
    np.dtype(np.float16): 2.0**-10,
    dtypes.BFLOAT16: 2.0**-7,
    dtypes.FLOAT8_E4M3FN: 2.0**-3,
    dtypes.FLOAT8_E5M2: 2.0**-2,
}
"""Relative distance of neighboring values of a narrow float, except subnormal ones."""

_FLOAT8 = (FLOAT8_E4M3, FLOAT8_E5M2)


@dataclass(frozen=True, slots=True)
class Ability:
    """The abilities of NCCL between the ranks of a communicator. Equal on all, except `rank`.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    version : int
        NCCL's, as its code.
    capability : int
        The lowest compute capability, ten times.
    functions : frozenset of str
        The functions of `libnccl.FUNCTIONS` that every rank has.
    """

    rank: int
    size: int
    version: int
    capability: int
    functions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction as NCCL does it.

    Attributes
    ----------
    datatype : int
        NCCL's.
    width : int
        Number of its elements in one of the array's.
    op : int
        NCCL's.
    factor : ndarray or None
        Factor by which contributions are multiplied first, as one element of the datatype. The
        operation is then made for each call, and `op` is not used.
    """

    datatype: int
    width: int
    op: int
    factor: NDArray[Any] | None = None


def reduction(op: Op | None, dtype: DType, ability: Ability) -> Reduction | None:
    """Return NCCL's reduction with hpccomm's meaning of `op` on `dtype`; None without one."""
    if dtype == dtypes.BOOL:
        known = _OF_BOOL.get(op)
        return None if known is None else Reduction(UINT8, 1, known)
    width, table = 1, _OPS
    if dtypes.is_complex(dtype):
        width, table = 2, _OF_COMPLEX
        dtype = np.empty(0, dtype).real.dtype
    datatype = _DATATYPES.get(dtype)
    if datatype is None:
        return None
    if datatype in _FLOAT8 and (
        ability.version < FLOAT8_SINCE or ability.capability < FLOAT8_CAPABILITY
    ):
        return None
    if isinstance(op, PremulSum):
        factor = _factor(op.factor, dtype)
        if factor is None or not {"ncclRedOpCreatePreMulSum", "ncclRedOpDestroy"} <= set(
            ability.functions
        ):
            return None
        return Reduction(datatype, width, SUM, factor)
    number = table.get(op)
    return None if number is None else Reduction(datatype, width, number)


def _factor(factor: complex, dtype: DType) -> NDArray[Any] | None:
    """Return the factor as one element of `dtype`, as NCCL takes it; None if it loses too much.

    NCCL multiplies by a factor of the datatype's own width. A narrow float rounds it, as it rounds each
    product. A factor that overflows or becomes subnormal would make products wrong that are not.
    """
    if isinstance(factor, complex):
        if factor.imag:
            return None
        factor = factor.real
    if dtypes.is_integer(dtype):
        return np.array([factor], dtype)
    wide = np.array([factor], np.float64)
    with np.errstate(over="ignore"):
        rounded = wide.astype(dtype)
    if dtypes.is_narrow(dtype):
        exact, stored = float(wide[0]), float(rounded[0])
        if not abs(stored - exact) <= _SPACING[dtype] * abs(exact):
            return None
    return rounded


def with_op(communicator: Any, how: Reduction, bind: Callable[[int], Launch]) -> Launch:
    """Return the launch that `bind` makes for the number of an operation.

    A premultiplied sum is an operation of one communicator, made for each call. NCCL copies its
    data, so that the operation may be destroyed once the call has returned, also in a group.
    """
    factor = how.factor
    if factor is None:
        return bind(how.op)

    def launch(send: int, recv: int, stream: int) -> None:
        with _premultiplied(communicator, factor, how.datatype) as op:
            bind(op)(send, recv, stream)

    return launch


@contextmanager
def _premultiplied(communicator: Any, factor: NDArray[Any], datatype: int) -> Iterator[int]:
    library = libnccl.functions()
    op = ctypes.c_int()
    libnccl.check(
        library.ncclRedOpCreatePreMulSum(
            ctypes.byref(op),
            factor.ctypes.data,
            datatype,
            libnccl.HOST_IMMEDIATE,
            communicator.comm,
        )
    )
    try:
        yield op.value
    finally:
        library.ncclRedOpDestroy(op.value, communicator.comm)
