"""NCCL's own collectives, which `hpccomm.calls.on_device` launches, and its reductions where the meaning is hpccomm's.

A call is bound to a communicator once. The resulting launch is called with addresses and a stream, and goes straight
into NCCL. Collectives that only move data move it as bytes, so that they take every dtype.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.libnccl import NcclGroup, RawCommunicator
from hpccomm.contracts.device import Launch
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.memory import copy
from hpccomm.memory.cuda.streams import on_device
from hpccomm.reductions import Op, PremulSum, ReduceOp
from hpccomm.schedules.algorithms.partition import offsets

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
    """Elements as NCCL takes them, and their reduction.

    Attributes
    ----------
    datatype : int
        NCCL's.
    width : int
        Number of its elements in one of the array's.
    op : int
        NCCL's; any for what only moves.
    factor : ndarray or None
        Factor by which contributions are multiplied first, as one element of the datatype. The
        operation is then made for each call, and `op` is not used.
    """

    datatype: int
    width: int
    op: int
    factor: NDArray[Any] | None = None


def reduction(op: Op | None, dtype: DType, ability: Ability) -> Reduction | None:
    """Return NCCL's reduction with hpccomm's meaning of `op` on `dtype`; None without one.

    Without an operation data only move, as bytes.
    """
    if op is None:
        return Reduction(INT8, dtype.itemsize, SUM)
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
    if factor and dtypes.is_narrow(dtype):
        held = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        if not float(held.smallest_normal) <= abs(factor) <= float(held.max):
            return None
    with np.errstate(over="ignore"):
        return np.array([factor], np.float64).astype(dtype)


@contextmanager
def _premultiplied(
    communicator: RawCommunicator, factor: NDArray[Any], datatype: int
) -> Iterator[int]:
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


PINNABLE = {
    "all_reduce": ("ring", "tree"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
}
"""Algorithms that NCCL can be held to. Tree exists for all-reduce alone. Collectives that consist of
messages have no algorithm."""

_EQUAL = {
    "all_reduce": "ncclAllReduce",
    "broadcast": "ncclBroadcast",
    "reduce": "ncclReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll",
    "gather": "ncclGather",
    "scatter": "ncclScatter",
}
"""NCCL's functions on equal blocks; the last three from 2.28 on."""

_UNEVEN = {"all_gather": "ncclBroadcast", "reduce_scatter": "ncclReduce"}
"""NCCL's functions that move the block of one rank, of which a group has all. What consists of messages is one of
hpccomm's schedules."""


def algorithms(call: Signature, ability: Ability) -> tuple[str, ...]:
    """Return the names of NCCL's algorithms for a call, its own choice first; or none."""
    name = (_EQUAL if call.uniform else _UNEVEN).get(call.collective)
    factor_of_one = ability.size == 1 and isinstance(call.op, PremulSum)  # which changes the data
    if (
        factor_of_one
        or name not in ability.functions
        or reduction(call.op, call.dtype, ability) is None
    ):
        return ()
    return ("native", *(PINNABLE.get(call.collective, ()) if call.uniform else ()))


def selectable(call: Signature, ability: Ability) -> bool:
    """Tell whether each call can name its algorithm, on a communicator that is pinned to none."""
    return f"{_EQUAL[call.collective]}Config" in ability.functions


def bind(
    call: Signature, ability: Ability, communicator: RawCommunicator, algorithm: str = ""
) -> Launch:
    """Return the launch of a call over a communicator. The call must have `algorithms`.

    With NCCL's name of an algorithm each call names it to NCCL; the call must be `selectable`.

    A premultiplied sum is an operation of one communicator, made for each call. NCCL copies its
    data, so that the operation may be destroyed once the call has returned, also in a group.
    """
    how = reduction(call.op, call.dtype, ability)
    assert how is not None, f"NCCL has no {call.name}"
    by_op = partial(_launch, call, ability.rank, communicator, algorithm, how)
    factor = how.factor
    if factor is None:
        return by_op(how.op)

    def scaled(send: int, recv: int, stream: int) -> None:
        with _premultiplied(communicator, factor, how.datatype) as op:
            by_op(op)(send, recv, stream)

    return scaled


def _launch(
    call: Signature,
    rank: int,
    communicator: RawCommunicator,
    algorithm: str,
    how: Reduction,
    op: int,
) -> Launch:
    """Return the launch by NCCL's operation: of equal blocks one call, of uneven ones a group with a call of each.

    Each rank's uneven block is broadcast or reduced.
    """
    reduces, root = () if call.op is None else (op,), () if call.root < 0 else (call.root,)
    if call.uniform:
        arguments = call.counts[0] * how.width, how.datatype, *reduces, *root
        return communicator.launching(_EQUAL[call.collective], arguments, algorithm)
    name, itemsize, group = _UNEVEN[call.collective], call.dtype.itemsize, NcclGroup()
    blocks = [
        (
            owner,
            start * itemsize,
            communicator.launching(name, (count * how.width, how.datatype, *reduces, owner)),
        )
        for owner, (start, count) in enumerate(zip(offsets(call.counts), call.counts, strict=True))
        if count
    ]

    def launch(send: int, recv: int, stream: int) -> None:
        with group:
            for owner, offset, run in blocks:
                mine = owner == rank
                if reduces:
                    run(send + offset, recv if mine else 0, stream)
                else:
                    run(send if mine else 0, recv + offset, stream)

    return launch


def copying(call: Signature, device: int) -> Launch:
    """Return the launch of a call between one rank, which is a copy. NCCL is not called.

    NCCL's own way copies on the device that is current, whose default stream is another one than the
    array's, and refuses averages of float8.
    """
    if call.description.in_place == "always":
        return lambda _send, _recv, _stream: None
    _, received = call.lengths(np.zeros(1, np.int64))
    nbytes = int(received[0]) * call.dtype.itemsize

    def launch(send: int, recv: int, stream: int) -> None:
        with on_device(device):
            copy(send, recv, nbytes, stream)

    return launch
