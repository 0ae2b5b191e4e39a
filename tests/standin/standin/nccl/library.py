"""The library itself, as what loads it by ctypes has it: functions that take C's arguments.

Addresses, handles, counts and numbers are Python ints or ctypes' simple values; what a function gives
back is written through ``ctypes.byref``. A function that the version lacks is no attribute.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from standin import control, heap
from standin.driver import behind
from standin.errors import CUDARuntimeError
from standin.nccl import algorithms, calls, rendezvous
from standin.nccl.collectives import Terms
from standin.nccl.reductions import DTYPES

_SINCE = {
    "ncclMemAlloc": 21900,
    "ncclMemFree": 21900,
    "ncclCommRegister": 21900,
    "ncclCommDeregister": 21900,
    "ncclCommShrink": 22703,
    "ncclCommRevoke": 22807,
    "ncclAlltoAll": 22803,
    "ncclGather": 22803,
    "ncclScatter": 22803,
}
"""Versions that the functions came with; the others were there before."""

_SELECTING = {
    "ncclAllReduceConfig": "all_reduce",
    "ncclReduceConfig": "reduce",
    "ncclBroadcastConfig": "broadcast",
    "ncclReduceScatterConfig": "reduce_scatter",
    "ncclAllGatherConfig": "all_gather",
}
"""Functions that take settings of a call as well, from NCCL 2.32 on."""

_PIECE = 2 << 20

_allocated: dict[int, heap.Block] = {}

configs: list[dict[str, Any]] = []
"""What the settings of communicators that were made with some say, by the members' names."""

TEXTS = {
    0: b"no error",
    1: b"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    2: b"unhandled system error (run with NCCL_DEBUG=INFO for details)",
    3: b"internal error - please report this issue to the NCCL developers",
    4: b"invalid argument (run with NCCL_DEBUG=WARN for details)",
    5: b"invalid usage (run with NCCL_DEBUG=WARN for details)",
    6: b"remote process exited or there was a network error",
    7: b"NCCL operation in progress",
}


def _number(x: Any) -> int:
    """Return an argument that C takes by value."""
    if isinstance(x, bool) or (not isinstance(x, int | None) and not hasattr(x, "value")):
        raise ctypes.ArgumentError(f"cannot pass {x!r}")
    return (x if isinstance(x, int | None) else x.value) or 0


selected: list[tuple[str, str]] = []
"""Collectives that were called with settings, and the algorithms that these named."""


def _selecting(kind: str, plain: Callable[..., int], *arguments: Any) -> int:
    """Make a call with settings, which stand last; NCCL refuses what names no algorithm: by commas, in any case."""
    *_, comm, _, config = arguments
    settings = behind(config)
    if settings.size < 72 or settings.magic != 0xCAFEBEEF:
        return calls.INVALID_ARGUMENT
    text = (settings.algSelection or b"").decode()
    selected.append((kind, text))
    allowed = algorithms.Allowed(text)
    communicator = calls.find(_number(comm))
    left = communicator.algorithms.permits(kind)
    if settings.forceAlgSelection and not (allowed.permits(kind) and left):
        return calls.INVALID_ARGUMENT
    return plain(*arguments[:-1])


def _given(status_and_value: tuple[int, int], reference: Any) -> int:
    status, value = status_and_value
    if not status:
        behind(reference).value = value
    return status


def _taking(kind: str, words: str) -> Callable[..., int]:
    """Return the function of a collective, which takes C's arguments of these names."""

    def call(_library: object, *given: Any) -> int:
        of = dict(zip(words.split(), map(_number, given), strict=True))
        terms = Terms(kind, of["count"], of["datatype"], of.get("op", 0), of.get("root", 0))
        checked = (
            os.environ.get("NCCL_CHECK_POINTERS") == "1"
        )  # NCCL 2.30 misc/argcheck.cc, ArgsCheck
        if checked and kind in ("gather", "scatter") and not (of["send"] and of["recv"]):
            return calls.INVALID_ARGUMENT
        return calls.collective(of["comm"], terms, of["send"], of["recv"], of["stream"])

    return call


def _message(sends: bool) -> Callable[..., int]:
    def call(_library: object, *given: Any) -> int:
        pointer, count, datatype, peer, comm, stream = map(_number, given)
        return calls.message(comm, sends, pointer, count, datatype, peer, stream)

    return call


def _plain(function: Callable[..., int]) -> Callable[..., int]:
    """Return a function that takes numbers."""
    return lambda _library, *given: function(*map(_number, given))


def _telling(attribute: str) -> Callable[..., int]:
    """Return a function that gives back what a communicator tells of itself."""
    return lambda _library, comm, told: _given(calls.told(_number(comm), attribute), told)


class Library:
    """The functions, as ctypes.CDLL has them."""

    _name = os.devnull  # no file that is mapped

    def __getattribute__(self, name: str) -> Any:
        since = 23200 if name in _SELECTING else _SINCE.get(name, 0)
        if control.nccl_version() < since:
            raise AttributeError(f"libnccl.so.2: undefined symbol: {name}")
        plain = object.__getattribute__(
            self, name.removesuffix("Config") if name in _SELECTING else name
        )
        if name in _SELECTING:
            return partial(_selecting, _SELECTING[name], plain)
        # What loads it gives a function its types.
        return partial(plain) if name.startswith("nccl") else plain

    def ncclGetVersion(self, version: Any) -> int:
        behind(version).value = control.nccl_version()
        return 0

    def ncclGetErrorString(self, status: Any) -> bytes:
        return TEXTS.get(_number(status), b"unknown result code")

    def ncclGetLastError(self, comm: Any) -> bytes:
        return b""

    # Memory

    def ncclMemAlloc(self, pointer: Any, size: Any) -> int:
        try:  # in pieces of 2 MiB
            block = heap.malloc(-(-_number(size) // _PIECE) * _PIECE)
        except CUDARuntimeError:
            return calls.CUDA_ERROR
        _allocated[block.pointer] = block
        behind(pointer).value = block.pointer
        return 0

    def ncclMemFree(self, pointer: Any) -> int:
        block = _allocated.pop(_number(pointer), None)
        if block is None:
            control.violation("ncclMemFree of memory that ncclMemAlloc has not given")
            return calls.INVALID_ARGUMENT
        for communicator in calls.all_communicators():
            for start, size in communicator.registered.values():
                if start < block.pointer + block.size and block.pointer < start + size:
                    control.violation("ncclMemFree of memory that is registered")
        try:
            heap.free(block)
        except CUDARuntimeError:
            return calls.CUDA_ERROR
        return 0

    def ncclCommRegister(self, comm: Any, pointer: Any, size: Any, handle: Any) -> int:
        communicator = calls.find(_number(comm))
        block = heap.find(_number(pointer))
        end = _number(pointer) + _number(size)
        if block is None or block.device < 0 or end > block.pointer + block.size:
            return calls.INVALID_ARGUMENT
        if control.rank_is("STANDIN_FAIL_REGISTER", communicator.rank):
            return calls.INTERNAL_ERROR
        if os.environ.get("NCCL_LOCAL_REGISTER") == "0":
            behind(handle).value = 0
            return 0
        key = next(calls.handles)
        communicator.registered[key] = _number(pointer), _number(size)
        behind(handle).value = key
        return 0

    def ncclCommDeregister(self, comm: Any, handle: Any) -> int:
        communicator = calls.find(_number(comm))
        if communicator.registered.pop(_number(handle), None) is None:
            control.violation("ncclCommDeregister of what is not registered")
            return calls.INVALID_ARGUMENT
        return 0

    # Reductions of a communicator

    def ncclRedOpCreatePreMulSum(
        self, op: Any, scalar: Any, datatype: Any, residence: Any, comm: Any
    ) -> int:
        kind = _number(datatype)  # and ncclScalarHostImmediate
        value = ctypes.string_at(_number(scalar), DTYPES[kind].itemsize)
        return _given(calls.make_factor(_number(comm), value, kind), op)

    def ncclRedOpDestroy(self, op: Any, comm: Any) -> int:
        return calls.drop_factor(_number(comm), _number(op))

    # Communicators

    def ncclGetUniqueId(self, unique: Any) -> int:
        control.seen("ncclGetUniqueId")
        ctypes.memmove(ctypes.addressof(behind(unique)), rendezvous.unique_id(), 128)
        return 0

    def ncclCommInitRankConfig(
        self, made: Any, size: Any, unique: Any, rank: Any, config: Any
    ) -> int:
        if config is not None:  # init.cc, parseCommConfig
            settings = behind(config)
            if settings.magic != 0xCAFEBEEF or settings.size > 4096:
                return calls.INVALID_ARGUMENT
            own = [
                name
                for name, _ in type(settings)._fields_  # ctypes's own name
                if getattr(type(settings), name).offset < settings.size
            ]
            values = {name: getattr(settings, name) for name in own[3:]}
            configs.append(
                {n: value for n, value in values.items() if value not in (None, -(2**31))}
            )
        return _given(calls.init(_number(size), bytes(unique), _number(rank)), made)

    def ncclCommShrink(
        self, comm: Any, exclude: Any, count: Any, made: Any, config: Any, flags: Any
    ) -> int:
        left_out = [int(exclude[i]) for i in range(_number(count))]
        return _given(calls.shrink(_number(comm), left_out), made)

    ncclCommDestroy, ncclCommAbort = _plain(calls.destroy), _plain(calls.abort)

    def ncclCommRevoke(self, comm: Any, flags: Any) -> int:
        return calls.revoke(_number(comm)) if not _number(flags) else calls.INVALID_ARGUMENT

    ncclCommGetAsyncError = _telling("error")
    ncclCommCount, ncclCommUserRank = _telling("size"), _telling("rank")
    ncclCommCuDevice = _telling("device")

    # Groups

    ncclGroupStart, ncclGroupEnd = _plain(calls.group_start), _plain(calls.group_end)

    # Calls

    ncclAllReduce = _taking("all_reduce", "send recv count datatype op comm stream")
    ncclReduce = _taking("reduce", "send recv count datatype op root comm stream")
    ncclBroadcast = _taking("broadcast", "send recv count datatype root comm stream")
    ncclReduceScatter = _taking("reduce_scatter", "send recv count datatype op comm stream")
    ncclAllGather = _taking("all_gather", "send recv count datatype comm stream")
    ncclAlltoAll = _taking("all_to_all", "send recv count datatype comm stream")
    ncclGather = _taking("gather", "send recv count datatype root comm stream")
    ncclScatter = _taking("scatter", "send recv count datatype root comm stream")

    ncclSend, ncclRecv = _message(True), _message(False)


library = Library()
"""What `ctypes.CDLL` gives of the real one, see `standin.driver.Loader`."""
