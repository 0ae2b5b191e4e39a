"""NCCL's own collectives, which `hpccomm.calls.on_device` launches, and its reductions where the meaning is hpccomm's.

A call takes two steps. The look-up of a signature, done once, gives a function that binds it to a
communicator. The resulting launch is called with addresses and a stream, and goes straight into
NCCL. Collectives that only move data move it as bytes, so that they take every dtype.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.libnccl import NcclGroup
from hpccomm.contracts.device import Launch
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.memory import copy
from hpccomm.memory.cuda.streams import on_device
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
    if factor and dtypes.is_narrow(dtype):
        held = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        if not float(held.smallest_normal) <= abs(factor) <= float(held.max):
            return None
    with np.errstate(over="ignore"):
        return np.array([factor], np.float64).astype(dtype)


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


Bind = Callable[[Any], Launch]
"""``bind(communicator)`` gives the launch over it."""

PINNABLE = {
    "all_reduce": ("ring", "tree"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
}
"""Algorithms that NCCL can be held to. Tree exists for all-reduce alone. Collectives that consist of
messages have no algorithm."""


def algorithms(call: Signature, ability: Ability) -> tuple[str, ...]:
    """Return the names of NCCL's algorithms for a call, its own choice first; or none."""
    if call.collective in _SINCE_2_28:
        return (
            ("native",)
            if call.uniform and _SINCE_2_28[call.collective] in ability.functions
            else ()
        )
    factor_of_one = ability.size == 1 and isinstance(call.op, PremulSum)  # which changes the data
    if (
        factor_of_one
        or (call.collective, call.uniform) not in _MAKERS
        or _elements(call, ability) is None
    ):
        return ()
    return ("native", *(PINNABLE.get(call.collective, ()) if call.uniform else ()))


def selectable(call: Signature, ability: Ability) -> bool:
    """Tell whether each call can name its algorithm, on a communicator that is pinned to none."""
    name = "".join(word.title() for word in call.collective.split("_"))
    return call.collective in PINNABLE and f"nccl{name}Config" in ability.functions


def bind(call: Signature, ability: Ability) -> Bind:
    """Return the function that binds a call to a communicator. The call must have `algorithms`.

    A premultiplied sum is an operation of one communicator, made for each call. NCCL copies its
    data, so that the operation may be destroyed once the call has returned, also in a group.
    """
    name = _SINCE_2_28.get(call.collective)
    if name is not None:
        return partial(_by_ctypes, name, call)
    maker, how = _MAKERS[call.collective, call.uniform], _elements(call, ability)
    assert how is not None, f"NCCL has no {call.name}"
    factor = how.factor
    if factor is None:
        return lambda communicator: maker(communicator, call, ability, how, how.op)

    def scaled(communicator: Any) -> Launch:
        def launch(send: int, recv: int, stream: int) -> None:
            with _premultiplied(communicator, factor, how.datatype) as op:
                maker(communicator, call, ability, how, op)(send, recv, stream)

        return launch

    return scaled


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


def _elements(call: Signature, ability: Ability) -> Reduction | None:
    """Return NCCL's elements of a call, and their reduction if there is one; None if NCCL lacks it."""
    if call.op is None:
        return Reduction(INT8, call.dtype.itemsize, SUM)
    return reduction(call.op, call.dtype, ability)


Maker = Callable[[Any, Signature, Ability, Reduction, int], Launch]
"""``maker(communicator, call, ability, how, op)`` gives the launch of a call over a communicator."""


def _reduced(
    method: str, communicator: Any, call: Signature, _: Ability, how: Reduction, op: int
) -> Launch:
    """Reduce without a root, by CuPy's name of it."""
    run, count, datatype = getattr(communicator, method), call.counts[0] * how.width, how.datatype
    return lambda send, recv, stream: run(send, recv, count, datatype, op, stream)


def _reduce(communicator: Any, call: Signature, _: Ability, how: Reduction, op: int) -> Launch:
    run, count, datatype = communicator.reduce, call.counts[0] * how.width, how.datatype
    root = call.root
    return lambda send, recv, stream: run(send, recv, count, datatype, op, root, stream)


def _broadcast(communicator: Any, call: Signature, _: Ability, how: Reduction, __: int) -> Launch:
    run, count, root = communicator.broadcast, call.counts[0] * how.width, call.root
    return lambda _send, recv, stream: run(recv, recv, count, INT8, root, stream)


def _all_gather(communicator: Any, call: Signature, _: Ability, how: Reduction, __: int) -> Launch:
    run, count = communicator.allGather, call.counts[0] * how.width
    return lambda send, recv, stream: run(send, recv, count, INT8, stream)


def _all_gather_v(
    communicator: Any, call: Signature, ability: Ability, how: Reduction, _: int
) -> Launch:
    """Broadcast each rank's block, all of them in one group."""
    run, group, rank = communicator.broadcast, NcclGroup(), ability.rank
    blocks = _blocks(call, how)

    def launch(send: int, recv: int, stream: int) -> None:
        with group:
            for root, offset, count in blocks:
                target = recv + offset
                run(send if root == rank else target, target, count, INT8, root, stream)

    return launch


def _reduce_scatter_v(
    communicator: Any, call: Signature, ability: Ability, how: Reduction, op: int
) -> Launch:
    """Reduce each rank's block to it, all of them in one group."""
    run, group, rank = communicator.reduce, NcclGroup(), ability.rank
    blocks, datatype = _blocks(call, how), how.datatype

    def launch(send: int, recv: int, stream: int) -> None:
        with group:
            for root, offset, count in blocks:
                here = recv if root == rank else 0
                run(send + offset, here, count, datatype, op, root, stream)

    return launch


def _blocks(call: Signature, how: Reduction) -> list[tuple[int, int, int]]:
    """Return rank, offset in bytes and NCCL's elements of each block that has any; they lie one after the other."""
    counts, itemsize = call.counts, call.dtype.itemsize
    return [
        (rank, start * itemsize, count * how.width)
        for rank, (start, count) in enumerate(
            zip(accumulate(counts, initial=0), counts, strict=False)
        )
        if count
    ]


def _by_ctypes(name: str, call: Signature, communicator: Any) -> Launch:
    """Bind NCCL's own collective on equal blocks, which CuPy does not offer."""
    nbytes, root = call.counts[0] * call.dtype.itemsize, (call.root,) if call.root >= 0 else ()
    function, check = getattr(libnccl.functions(), name), libnccl.check
    # The pointer is looked up each time: it is 0 once the communicator is aborted. NCCL_CHECK_POINTERS
    # has NCCL refuse an address of 0, also where it is not used.
    return lambda send, recv, stream: check(
        function(send or recv, recv or send, nbytes, INT8, *root, communicator.comm, stream)
    )


_MAKERS: dict[tuple[str, bool], Maker] = {
    ("all_reduce", True): partial(_reduced, "allReduce"),
    ("broadcast", True): _broadcast,
    ("reduce", True): _reduce,
    ("all_gather", True): _all_gather,
    ("all_gather", False): _all_gather_v,
    ("reduce_scatter", True): partial(_reduced, "reduceScatter"),
    ("reduce_scatter", False): _reduce_scatter_v,
}
"""By collective and whether blocks are equal. What consists of messages is one of hpccomm's schedules."""

_SINCE_2_28 = {"all_to_all": "ncclAlltoAll", "gather": "ncclGather", "scatter": "ncclScatter"}
"""NCCL's functions on equal blocks."""
