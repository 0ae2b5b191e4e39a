"""The NCCL library: a table of its functions, by ctypes, the maker of communicators, groups and errors.

ctypes releases the interpreter's lock in each call. CuPy's binding makes the communicators, if CuPy
has one; else `own_binding` does. The modules of this package call NCCL through it.
"""

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Mapping
from ctypes import c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpccomm.errors import CommunicationError, HpccommError, PeerLost
from hpccomm.memory.cuda.library import cupy

HOST_IMMEDIATE = 1
"""ncclScalarHostImmediate: a scalar in host memory that is read before the call returns."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", c_char * 128),)


class CommConfig(ctypes.Structure):
    """ncclConfig_t as of 2.32. Members are added at its end: an older NCCL has the first of them."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cgaClusterSize", c_int),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("netName", c_char_p),
        ("splitShare", c_int),
        ("trafficClass", c_int),
        ("commName", c_char_p),
        ("collnetEnable", c_int),
        ("CTAPolicy", c_int),
        ("shrinkShare", c_int),
        ("nvlsCTAs", c_int),
        ("nChannelsPerNetPeer", c_int),
        ("nvlinkCentricSched", c_int),
        ("graphUsageMode", c_int),
        ("numRmaCtx", c_int),
        ("maxP2pPeers", c_int),
        ("graphStreamOrdering", c_int),
        ("launchOrderImplicit", c_int),
        ("numRmaSig", c_int),
        ("rmaEagerInit", c_int),
        ("hostCftMode", c_int),
        ("nvlsHostMode", c_int),
    )


class CallConfig(ctypes.Structure):
    """ncclCollConfig_t as of 2.32: settings of one collective."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("ext", c_void_p),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("nvlsCTAs", c_int),
        ("cgaClusterSize", c_int),
        ("algSelection", c_char_p),
        ("forceAlgSelection", c_int),
        ("CTAPolicy", c_int),
        ("userProfilerTag", c_uint64),
        ("launchCompletionEvent", c_void_p),
    )


CONFIG_SINCE = 22800
"""NCCL version from which hpccomm sets the name of communicators."""

ORDER_SINCE = 23200
"""NCCL version from which communicators also order their calls."""

CALL_CONFIG_SINCE = 23200
"""NCCL version that has all members of `CallConfig`. 2.30 and 2.31 have shorter ones."""

CONFIG_MAGIC = 0xCAFEBEEF
UNDEFINED = -(2**31)
"""NCCL_CONFIG_UNDEF_INT: NCCL decides."""


Settings = TypeVar("Settings", CommConfig, CallConfig)


def config(name: str, version: int, given: Mapping[str, int | str]) -> CommConfig:
    """Return the settings of a new communicator, for a version of NCCL.

    They hold its name, which NCCL's messages and tools show. From 2.32 on they order its calls with
    other communicators' calls, unless the user's variable forbids it; NCCL prefers the variable.
    `given` has the program's fields.
    """
    from hpccomm.contracts.variables import (
        members,  # its tables are read where they are needed
    )

    config = _settings(CommConfig, version)
    last = CommConfig._fields_[2 + members(version)][0]  # behind size, magic and version
    field = getattr(CommConfig, last)
    config.size = -(-(field.offset + field.size) // 8) * 8  # as C aligns it
    if version >= CONFIG_SINCE:
        config.commName = name.encode()
    if version >= ORDER_SINCE:
        config.launchOrderImplicit = 1
    for each, value in given.items():
        setattr(config, each, value.encode() if isinstance(value, str) else value)
    return config


def orders_calls(version: int) -> bool:
    """Tell whether `config` orders the calls of communicators, as CuPy's binding does not make them."""
    return version >= ORDER_SINCE and _of_cupy() is None


def call_config(algorithm: str) -> CallConfig:
    """Return the settings of a call: its algorithm, by NCCL's name. NCCL checks it."""
    config = _settings(CallConfig, CALL_CONFIG_SINCE)
    config.algSelection, config.forceAlgSelection = algorithm.encode(), 1
    return config


def _settings(kind: type[Settings], since: int) -> Settings:
    """Return settings that leave all to NCCL."""
    config = kind(**{name: UNDEFINED for name, of in kind._fields_ if of is c_int})
    config.size, config.magic, config.version = ctypes.sizeof(config), CONFIG_MAGIC, since
    return config


class Function(NamedTuple):
    """A function of NCCL.

    Attributes
    ----------
    since : int
        NCCL version that it came with, as its code.
    arguments : tuple
        Their types, of ctypes.
    result : type
        A status, unless it returns a text.
    """

    since: int
    arguments: tuple[Any, ...]
    result: Any = c_int


_MOVE = (c_void_p, c_void_p, c_size_t, c_int)  # send, receive, count, datatype
_END = (c_void_p, c_void_p)  # communicator, stream

FUNCTIONS: dict[str, Function] = {
    "ncclGetVersion": Function(20400, (c_void_p,)),
    "ncclGetErrorString": Function(20400, (c_int,), c_char_p),
    "ncclGetLastError": Function(21300, (c_void_p,), c_char_p),
    "ncclGetUniqueId": Function(20400, (c_void_p,)),
    "ncclCommInitRankConfig": Function(21400, (c_void_p, c_int, UniqueId, c_int, c_void_p)),
    "ncclCommShrink": Function(22703, (c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int)),
    "ncclCommGetAsyncError": Function(20400, (c_void_p, c_void_p)),
    "ncclCommCount": Function(20400, (c_void_p, c_void_p)),
    "ncclCommUserRank": Function(20400, (c_void_p, c_void_p)),
    "ncclCommCuDevice": Function(20400, (c_void_p, c_void_p)),
    "ncclCommRevoke": Function(22807, (c_void_p, c_int)),
    "ncclCommAbort": Function(20400, (c_void_p,)),
    "ncclCommDestroy": Function(20400, (c_void_p,)),
    "ncclMemAlloc": Function(21900, (c_void_p, c_size_t)),
    "ncclMemFree": Function(21900, (c_void_p,)),
    "ncclCommRegister": Function(21900, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "ncclCommDeregister": Function(21900, (c_void_p, c_void_p)),
    "ncclRedOpCreatePreMulSum": Function(21100, (c_void_p, c_void_p, c_int, c_int, c_void_p)),
    "ncclRedOpDestroy": Function(21100, (c_int, c_void_p)),
    "ncclGroupStart": Function(20400, ()),
    "ncclGroupEnd": Function(20400, ()),
    "ncclAllReduce": Function(20400, (*_MOVE, c_int, *_END)),
    "ncclReduce": Function(20400, (*_MOVE, c_int, c_int, *_END)),
    "ncclBroadcast": Function(20400, (*_MOVE, c_int, *_END)),
    "ncclReduceScatter": Function(20400, (*_MOVE, c_int, *_END)),
    "ncclAllGather": Function(20400, (*_MOVE, *_END)),
    "ncclSend": Function(20700, (c_void_p, c_size_t, c_int, c_int, *_END)),
    "ncclRecv": Function(20700, (c_void_p, c_size_t, c_int, c_int, *_END)),
    "ncclAlltoAll": Function(22803, (*_MOVE, *_END)),
    "ncclGather": Function(22803, (*_MOVE, c_int, *_END)),
    "ncclScatter": Function(22803, (*_MOVE, c_int, *_END)),
}
FUNCTIONS |= {
    f"{name}Config": Function(CALL_CONFIG_SINCE, (*FUNCTIONS[name].arguments, c_void_p))
    for name in (
        "ncclAllReduce",
        "ncclReduce",
        "ncclBroadcast",
        "ncclReduceScatter",
        "ncclAllGather",
    )
}
"""All functions of NCCL that hpccomm calls, as nccl.h declares them. An older library lacks some."""

ON_STREAM = frozenset(
    name for name, function in FUNCTIONS.items() if function.arguments[-2:] == _END
)
"""The functions that put work on a stream."""


def binding() -> Any:
    """Return ``cupy.cuda.nccl``, which CuPy itself does not import; without it `own_binding`.

    Raises
    ------
    BackendUnavailable
        If device arrays cannot be used here.
    """
    cupy()
    binding = _of_cupy()
    return own_binding() if binding is None else binding


def own_binding() -> Any:
    """Return hpccomm's own binding."""
    return import_module("hpccomm.backends.nccl.own_binding")


def _of_cupy() -> Any:
    """Return CuPy's binding of NCCL; None if it lacks one, or finds no library for it."""
    try:
        module = import_module("cupy.cuda.nccl")
    except ImportError:
        return None
    return module if getattr(module, "available", False) else None


def _path() -> str:
    """Return the file through which NCCL's functions are found; '' without one."""
    of_cupy = _of_cupy()
    if of_cupy is not None:
        # A lookup in an extension module also searches the libraries that it is linked to. So this is
        # the NCCL whose communicators CuPy holds, whichever others are loaded.
        module = sys.modules[of_cupy.NcclCommunicator.__module__]
        path = getattr(module, "__file__", None) or ""
        return path if path.endswith(".so") else ""
    wheel = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl")
    folders = (wheel.submodule_search_locations if wheel else None) or ()
    wheels = (Path(folder) / "lib" / "libnccl.so.2" for folder in folders)
    return next((str(path) for path in wheels if path.exists()), "libnccl.so.2")


@cache
def functions() -> Any:
    """Return the NCCL library that communicators are of, with typed functions; None without one.

    Each function is an attribute and returns NCCL's status. Functions that the library lacks are missing.
    """
    path = _path()
    try:
        library = ctypes.CDLL(path) if path else None
    except OSError:
        return None
    for name, declared in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = declared.arguments, declared.result
    return library


def present() -> tuple[str, ...]:
    """Return the names in `FUNCTIONS` that the library has."""
    library = functions()
    return tuple(name for name in FUNCTIONS if library is not None and hasattr(library, name))


def check(status: int) -> None:
    """Raise the binding's error for a status other than success."""
    if status:
        raise binding().NcclError(status)


def revoke(pointer: int) -> bool:
    """End all calls of a communicator without freeing it; return whether NCCL can. Blocks."""
    function = getattr(functions(), "ncclCommRevoke", None)
    if function is not None:
        function(pointer, 0)
    return function is not None


def last_error() -> str:
    """Return NCCL's message about the last error of this process; empty without one."""
    function = getattr(functions(), "ncclGetLastError", None)
    text = function(None) if function is not None else b""
    return text.decode(errors="replace").strip() if text else ""


class NcclGroup:
    """Issues the calls of its block together, at its end. Groups nest; the outermost one issues.

    A group ends even if the block raises: NCCL counts groups per thread, and an open group would hold
    back every later call.
    """

    __slots__ = ("_end", "_start")

    def __init__(self) -> None:
        library = binding()
        self._start = library.groupStart
        self._end = library.groupEnd

    def __enter__(self) -> None:
        self._start()

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is None:
            self._end()
            return
        # NCCL's own error repeats that a call of the block failed; the original error is raised.
        with contextlib.suppress(RuntimeError, KeyError):
            self._end()


REMOTE = 6
"""ncclRemoteError: the connection to a rank broke, mostly because its process ended."""

UNKNOWN_TO_CUPY = {7: "is still in progress", 8: "timed out"}
"""Statuses for which CuPy raises a KeyError instead of its own error."""


def translate(error: Exception) -> HpccommError | None:
    """Return an error of NCCL or CUDA as one of hpccomm's; None for other errors."""
    if isinstance(error, binding().NcclError):
        detail = last_error()
        text = f"NCCL has failed: {error}{f' ({detail})' if detail else ''}"
        if error.status == REMOTE:
            return PeerLost(f"{text}; a rank has ended: look at its own report")
        return CommunicationError(f"{text}; NCCL_DEBUG=WARN shows where")
    if isinstance(error, KeyError) and error.args and error.args[0] in UNKNOWN_TO_CUPY:
        return CommunicationError(
            f"NCCL reports that the call {UNKNOWN_TO_CUPY[error.args[0]]} (status {error.args[0]}), "
            "which a blocking communicator should not; unset NCCL_COMM_BLOCKING"
        )
    if isinstance(error, cupy().cuda.runtime.CUDARuntimeError):
        return CommunicationError(
            f"CUDA has failed: {error}; the device's memory and streams may be lost to this process"
        )
    return None
