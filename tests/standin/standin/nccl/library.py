"""The library itself, as what loads it by ctypes has it: functions that take C's arguments.

Addresses, handles, counts and numbers are Python ints or ctypes' simple values; what a function gives
back is written through ``ctypes.byref``. A function that the version lacks is no attribute.
"""

import ctypes
import itertools
import os
from functools import partial

import numpy as np

from standin import control, heap
from standin.driver import behind
from standin.errors import CUDARuntimeError
from standin.nccl import calls, rendezvous
from standin.nccl.algorithms import Allowed
from standin.nccl.collectives import Terms
from standin.nccl.reductions import DTYPES, PREMUL

_SINCE = {
    **dict.fromkeys(("ncclAlltoAll", "ncclGather", "ncclScatter"), 22803),
    "ncclCommShrink": 22703,
    "ncclCommRevoke": 22807,
}
"""Versions that functions came with. Those of memory came with 2.19; the others were there before."""

_PIECE = 2 << 20

_own_ops = itertools.count(PREMUL)
"""Numbers of reductions that were made for a communicator."""

_allocated: dict[int, heap.Block] = {}

TEXTS = (
    "no error,unhandled cuda error,unhandled system error,internal error,invalid argument,invalid usage,"
    "remote process exited or there was a network error,NCCL operation in progress"
).split(",")
"""How NCCL names its statuses."""


def _number(x):
    """Return an argument that C takes by value."""
    if isinstance(x, bool) or (not isinstance(x, int | None) and not hasattr(x, "value")):
        raise ctypes.ArgumentError(f"cannot pass {x!r}")
    return (x if isinstance(x, int | None) else x.value) or 0


def _refused(kind, communicator, settings):
    """Tell whether NCCL refuses a call's settings: of those that name no algorithm, by commas, in any case."""
    if settings.size < 72 or settings.magic != 0xCAFEBEEF:
        return True
    text = (settings.algSelection or b"").decode()
    control.seen("settings", kind, text)
    permitted = Allowed(text).permits(kind) and communicator.algorithms.permits(kind)
    return bool(settings.forceAlgSelection) and not permitted


def _given(status_and_value, reference):
    status, value = status_and_value
    if not status:
        behind(reference).value = value
    return status


def _taking(kind, of_it=""):
    """Return the function of a collective, which takes C's arguments of these names, and settings from 2.32 on."""
    words = f"send recv count datatype {of_it} comm stream".split()

    def call(_library, *given):
        of = dict(zip(words, map(_number, given), strict=False))
        terms = Terms(kind, of["count"], of["datatype"], of.get("op", 0), of.get("root", 0))
        if len(given) > len(of) and _refused(kind, calls.find(of["comm"]), behind(given[-1])):
            return calls.INVALID_ARGUMENT
        # NCCL 2.30 misc/argcheck.cc, ArgsCheck
        checked = os.environ.get("NCCL_CHECK_POINTERS") == "1" and kind in ("gather", "scatter")
        if checked and not (of["send"] and of["recv"]):
            return calls.INVALID_ARGUMENT
        return calls.collective(of["comm"], terms, of["send"], of["recv"], of["stream"])

    return call


def _message(sends):
    def call(_library, *given):
        pointer, count, datatype, peer, comm, stream = map(_number, given)
        call = calls.Message(sends, peer, pointer, count, datatype)
        return calls.message(comm, call, stream)

    return call


def _plain(function):
    """Return a function that takes numbers."""
    return lambda _library, *given: function(*map(_number, given))


def _telling(attribute):
    """Return a function that gives back what a communicator tells of itself."""
    return lambda _library, comm, told: _given(calls.told(_number(comm), attribute), told)


class Library:
    """The functions, as ctypes.CDLL has them."""

    _name = os.devnull  # no file that is mapped

    def __getattribute__(self, name):
        since = 21900 if name.startswith(("ncclMem", "ncclCommReg", "ncclCommDereg")) else 0
        if name.endswith("Config") and name != "ncclCommInitRankConfig":
            since = 23200
        if control.nccl_version() < _SINCE.get(name, since):
            raise AttributeError(f"libnccl.so.2: undefined symbol: {name}")
        plain = object.__getattribute__(self, name)
        # What loads it gives a function its types.
        return partial(plain) if name.startswith("nccl") else plain

    def ncclGetVersion(self, version):
        behind(version).value = control.nccl_version()
        return 0

    def ncclGetErrorString(self, status):
        return TEXTS[_number(status)].encode()

    def ncclGetLastError(self, comm):
        return b""

    # Memory

    def ncclMemAlloc(self, pointer, size):
        try:  # in pieces of 2 MiB
            block = heap.malloc(-(-_number(size) // _PIECE) * _PIECE)
        except CUDARuntimeError:
            return calls.CUDA_ERROR
        _allocated[block.pointer] = block
        behind(pointer).value = block.pointer
        return 0

    def ncclMemFree(self, pointer):
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

    def ncclCommRegister(self, comm, pointer, size, handle):
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

    def ncclCommDeregister(self, comm, handle):
        communicator = calls.find(_number(comm))
        if communicator.registered.pop(_number(handle), None) is None:
            control.violation("ncclCommDeregister of what is not registered")
            return calls.INVALID_ARGUMENT
        return 0

    # Reductions of a communicator

    def ncclRedOpCreatePreMulSum(self, op, scalar, datatype, residence, comm):
        kind = _number(datatype)
        if _number(residence) != 1:  # ncclScalarHostImmediate of nccl.h
            control.violation("a factor in host memory is given as one that the device reads")
        value = ctypes.string_at(_number(scalar), DTYPES[kind].itemsize)
        factors, number = calls.find(_number(comm)).factors, next(_own_ops)
        factors[number] = kind, np.frombuffer(value, DTYPES[kind])
        behind(op).value = number
        return 0

    def ncclRedOpDestroy(self, op, comm):
        del calls.find(_number(comm)).factors[_number(op)]
        return 0

    # Communicators

    def ncclGetUniqueId(self, unique):
        control.seen("ncclGetUniqueId")
        ctypes.memmove(ctypes.addressof(behind(unique)), rendezvous.unique_id(), 128)
        return 0

    def ncclCommInitRankConfig(self, made, size, unique, rank, config):
        if config is not None:  # init.cc, parseCommConfig
            settings = behind(config)
            if settings.magic != 0xCAFEBEEF or settings.size > 4096:
                return calls.INVALID_ARGUMENT
            names = [name for name, _ in settings._fields_[3:]]  # ctypes's own name
            own = [n for n in names if getattr(type(settings), n).offset < settings.size]
            control.seen("ncclCommInitRankConfig", {n: getattr(settings, n) for n in own})
        return _given(calls.init(_number(size), bytes(unique), _number(rank)), made)

    def ncclCommShrink(self, comm, exclude, count, made, config, flags):
        left_out = [int(exclude[i]) for i in range(_number(count))]
        return _given(calls.shrink(_number(comm), left_out), made)

    ncclCommDestroy, ncclCommAbort = _plain(calls.destroy), _plain(calls.abort)

    def ncclCommRevoke(self, comm, flags):
        return calls.revoke(_number(comm)) if not _number(flags) else calls.INVALID_ARGUMENT

    ncclCommGetAsyncError = _telling("error")
    ncclCommCount, ncclCommUserRank = _telling("size"), _telling("rank")
    ncclCommCuDevice = _telling("device")

    # Groups

    ncclGroupStart, ncclGroupEnd = _plain(calls.group_start), _plain(calls.group_end)

    # Calls

    ncclAllReduce = ncclAllReduceConfig = _taking("all_reduce", "op")
    ncclReduce = ncclReduceConfig = _taking("reduce", "op root")
    ncclBroadcast = ncclBroadcastConfig = _taking("broadcast", "root")
    ncclReduceScatter = ncclReduceScatterConfig = _taking("reduce_scatter", "op")
    ncclAllGather = ncclAllGatherConfig = _taking("all_gather")
    ncclAlltoAll, ncclGather = _taking("all_to_all"), _taking("gather", "root")
    ncclScatter = _taking("scatter", "root")
    ncclSend, ncclRecv = _message(True), _message(False)


library = Library()
"""What `ctypes.CDLL` gives of the real one, see `standin.driver.Loader`."""
