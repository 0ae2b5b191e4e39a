"""The NCCL library, by ctypes: a table of its functions, communicators by their pointers, groups and errors.

ctypes releases the interpreter's lock in each call. The modules of this package call NCCL through it alone: CuPy's binding
has neither settings of communicators nor NCCL's later functions. It tells which library is NCCL.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hpccomm.contracts.device import Launch
from hpccomm.errors import CommunicationError, CommunicatorAborted, HpccommError, PeerLost
from hpccomm.memory.cuda.library import cupy

HOST_IMMEDIATE = 1
"""ncclScalarHostImmediate: a scalar in host memory that is read before the call returns."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", c_char * 128),)


_HEAD = (("size", c_size_t), ("magic", c_uint), ("version", c_uint))
"""How NCCL's structures of settings begin."""


@cache
def comm_config() -> Any:
    """Return ncclConfig_t as of 2.32, a class of ctypes.

    Members are added at its end: an older NCCL has the first of them.
    """
    from hpccomm.contracts.variables import (
        config_fields,  # its tables are read where they are needed
    )

    given = [
        (name, c_char_p if each.kind == "text" else c_int) for name, each in config_fields().items()
    ]
    return type("CommConfig", (ctypes.Structure,), {"_fields_": (*_HEAD, *given)})


class CallConfig(ctypes.Structure):
    """ncclCollConfig_t as of 2.32: settings of one collective."""

    _fields_ = (
        *_HEAD,
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


def config(name: str, version: int, given: Mapping[str, int | str]) -> Any:
    """Return the settings of a new communicator, for a version of NCCL.

    They hold its name, which NCCL's messages and tools show. From 2.32 on they order its calls with
    other communicators' calls, unless the user's variable forbids it; NCCL prefers the variable.
    `given` has the program's fields.
    """
    from hpccomm.contracts.variables import members

    config = _settings(comm_config(), version)
    last = config._fields_[len(_HEAD) - 1 + members(version)][0]
    field = getattr(type(config), last)
    config.size = -(-(field.offset + field.size) // 8) * 8  # as C aligns it
    if version >= CONFIG_SINCE:
        config.commName = name.encode()
    if version >= ORDER_SINCE:
        config.launchOrderImplicit = 1
    for each, value in given.items():
        setattr(config, each, value.encode() if isinstance(value, str) else value)
    return config


def call_config(algorithm: str) -> CallConfig:
    """Return the settings of a call: its algorithm, by NCCL's name. NCCL checks it."""
    config: CallConfig = _settings(CallConfig, CALL_CONFIG_SINCE)
    config.algSelection, config.forceAlgSelection = algorithm.encode(), 1
    return config


def _settings(kind: Any, since: int) -> Any:
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


def _path() -> str:
    """Return the file through which NCCL's functions are found."""
    of_cupy: Any = None
    with suppress(ImportError):
        of_cupy = import_module("cupy.cuda.nccl")
    if getattr(of_cupy, "available", False):
        # A lookup in an extension module also searches the libraries that it is linked to. So this is
        # the NCCL that CuPy has, whichever others are loaded.
        module = sys.modules[of_cupy.NcclCommunicator.__module__]
        path: str = getattr(module, "__file__", None) or ""
        if path.endswith(".so"):
            return path
    wheel = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.nccl")
    folders = (wheel.submodule_search_locations if wheel else None) or ()
    wheels = (Path(folder) / "lib" / "libnccl.so.2" for folder in folders)
    return next((str(path) for path in wheels if path.exists()), "libnccl.so.2")


@cache
def functions() -> Any:
    """Return the NCCL library, with typed functions; None without one.

    Each function is an attribute and returns NCCL's status. Functions that the library lacks are missing.
    """
    try:
        library = ctypes.CDLL(_path())
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


class NcclError(RuntimeError):
    """A status other than success.

    Attributes
    ----------
    status : int
        NCCL's.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(functions().ncclGetErrorString(status).decode())


def check(status: int) -> None:
    """Raise for a status other than success."""
    if status:
        raise NcclError(status)


def version() -> int:
    """Return NCCL's version as its code; 0 without a library. Asks for no device."""
    library, code = functions(), c_int()
    if library is not None:
        check(library.ncclGetVersion(ctypes.byref(code)))
    return code.value


def unique_id() -> bytes:
    """Return a unique id for a new communicator of all ranks."""
    unique = UniqueId()
    check(functions().ncclGetUniqueId(ctypes.byref(unique)))
    return bytes(unique)


class RawCommunicator:
    """NCCL's communicator by its pointer. It has no destructor, which could block for ever.

    Parameters
    ----------
    pointer : int
        NCCL's.
    """

    borrowed = False
    """Whether it belongs to another object, which ends it."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    @property
    def comm(self) -> int:
        """NCCL's pointer; 0 once the communicator is destroyed or aborted."""
        return self._pointer

    def launching(self, name: str, arguments: tuple[int, ...], algorithm: str = "") -> Launch:
        """Return the launch of one of NCCL's collectives.

        Parameters
        ----------
        name : str
            Of the function.
        arguments : tuple of int
            What stands between the addresses and the communicator.
        algorithm : str
            NCCL's name of one, which each call names to NCCL (from 2.32 on); '' leaves it to NCCL.
        """
        settings = (ctypes.byref(call_config(algorithm)),) if algorithm else ()
        function = getattr(functions(), f"{name}Config" if algorithm else name)

        def launch(send: int, recv: int, stream: int) -> None:
            # NCCL_CHECK_POINTERS has NCCL refuse an address of 0, also where it is not used. The pointer is looked up
            # each time: it is 0 once the communicator is aborted.
            given = send or recv, recv or send, *arguments, self.comm, stream, *settings
            check(function(*given))

        return launch

    def check_async_error(self) -> None:
        """Raise what NCCL noticed."""
        noticed = c_int()
        status = functions().ncclCommGetAsyncError(self.comm, ctypes.byref(noticed))
        check(noticed.value)
        check(status)

    def revoke(self) -> bool:
        """End all calls without freeing it; return whether NCCL can. Blocks."""
        function = getattr(functions(), "ncclCommRevoke", None)
        if function is not None:
            function(self.comm, 0)
        return function is not None

    def abort(self) -> None:
        """End it, with any calls under way."""
        if self._pointer:
            functions().ncclCommAbort(self._pointer)
            self._pointer = 0

    def destroy(self) -> None:
        """Free it."""
        if self._pointer:
            functions().ncclCommDestroy(self._pointer)
            self._pointer = 0


def make_communicator(
    size: int, unique: bytes, rank: int, name: str, given: Mapping[str, int | str]
) -> RawCommunicator:
    """Make a communicator; blocks until all ranks do.

    NCCL knows it by `name` from 2.28 on. `given` has fields that ncclConfig_t has in its version.
    """
    handle, of, code = c_void_p(), UniqueId.from_buffer_copy(unique), version()
    settings: Any = None
    if given or code >= CONFIG_SINCE:
        settings = ctypes.byref(config(name, code, given))
    check(functions().ncclCommInitRankConfig(ctypes.byref(handle), size, of, rank, settings))
    return RawCommunicator(handle.value or 0)


def shrunk(parent: RawCommunicator, exclude: Sequence[int]) -> RawCommunicator:
    """Return the communicator of those ranks of `parent` that are not in `exclude`.

    Called by these alone. Blocks in NCCL until all of them have called.
    """
    if not parent.comm:
        raise CommunicatorAborted("the communicator that is shrunk was aborted")
    made, left_out = c_void_p(), (c_int * len(exclude))(*exclude)
    shrink = functions().ncclCommShrink
    check(shrink(parent.comm, left_out, len(exclude), ctypes.byref(made), None, 0))
    return RawCommunicator(made.value or 0)


class NcclGroup:
    """Issues the calls of its block together, at its end. Groups nest; the outermost one issues.

    A group ends even if the block raises: NCCL counts groups per thread, and an open group would hold
    back every later call.
    """

    __slots__ = ("_end", "_start")

    def __init__(self) -> None:
        library = functions()
        self._start, self._end = library.ncclGroupStart, library.ncclGroupEnd

    def __enter__(self) -> None:
        check(self._start())

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        status = self._end()
        if error is None:  # else NCCL's own repeats that a call of the block failed
            check(status)


REMOTE = 6
"""ncclRemoteError: the connection to a rank broke, mostly because its process ended."""

UNFINISHED = {7: "is still in progress", 8: "timed out"}
"""Statuses that a blocking communicator does not have."""


def translate(error: Exception) -> HpccommError | None:
    """Return an error of NCCL or CUDA as one of hpccomm's; None for other errors."""
    if isinstance(error, NcclError):
        if error.status in UNFINISHED:
            return CommunicationError(
                f"NCCL reports that the call {UNFINISHED[error.status]} (status {error.status}), "
                "which a blocking communicator should not; unset NCCL_COMM_BLOCKING"
            )
        detail = last_error()
        text = f"NCCL has failed: {error}{f' ({detail})' if detail else ''}"
        if error.status == REMOTE:
            return PeerLost(f"{text}; a rank has ended: look at its own report")
        return CommunicationError(f"{text}; NCCL_DEBUG=WARN shows where")
    if isinstance(error, cupy().cuda.runtime.CUDARuntimeError):
        return CommunicationError(
            f"CUDA has failed: {error}; the device's memory and streams may be lost to this process"
        )
    return None


def last_error() -> str:
    """Return NCCL's message about the last error of this process; empty without one."""
    function = getattr(functions(), "ncclGetLastError", None)
    text = function(None) if function is not None else b""
    return text.decode(errors="replace").strip() if text else ""
