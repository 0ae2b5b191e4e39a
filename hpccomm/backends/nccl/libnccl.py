"""The NCCL library: CuPy's binding, and by ctypes the functions that CuPy does not offer."""

import ctypes
import sys
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib import import_module
from typing import Any

from hpccomm.memory.cuda.library import cupy

HOST_IMMEDIATE = 1
"""ncclScalarHostImmediate: a scalar in host memory that is read before the call returns."""

_MOVE = (c_void_p, c_void_p, c_size_t, c_int)  # send, receive, count, datatype
_END = (c_void_p, c_void_p)  # communicator, stream

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ncclMemAlloc": (c_void_p, c_size_t),
    "ncclMemFree": (c_void_p,),
    "ncclCommRegister": (c_void_p, c_void_p, c_size_t, c_void_p),
    "ncclCommDeregister": (c_void_p, c_void_p),
    "ncclRedOpCreatePreMulSum": (c_void_p, c_void_p, c_int, c_int, c_void_p),
    "ncclRedOpDestroy": (c_int, c_void_p),
    "ncclAlltoAll": (*_MOVE, *_END),
    "ncclGather": (*_MOVE, c_int, *_END),
    "ncclScatter": (*_MOVE, c_int, *_END),
    "ncclCommShrink": (c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int),
    # For a communicator that CuPy does not own, which shrinking makes:
    "ncclAllReduce": (*_MOVE, c_int, *_END),
    "ncclReduce": (*_MOVE, c_int, c_int, *_END),
    "ncclBroadcast": (*_MOVE, c_int, *_END),
    "ncclReduceScatter": (*_MOVE, c_int, *_END),
    "ncclAllGather": (*_MOVE, *_END),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, *_END),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, *_END),
    "ncclCommGetAsyncError": (c_void_p, c_void_p),
    "ncclCommAbort": (c_void_p,),
    "ncclCommRevoke": (c_void_p, c_int),
    "ncclCommDestroy": (c_void_p,),
}
"""The functions and their arguments, as nccl.h has them. An older library lacks some."""

ON_STREAM = frozenset(name for name, arguments in FUNCTIONS.items() if arguments[-2:] == _END)
"""Those of them that go on a stream."""


def binding() -> Any:
    """Return the module ``cupy.cuda.nccl``. CuPy itself does not import it.

    Raises
    ------
    BackendUnavailable
        If device arrays cannot be used here.
    """
    cupy()
    return import_module("cupy.cuda.nccl")


@cache
def functions() -> Any:
    """Return the NCCL library that CuPy has loaded, with typed functions; None if it is not found.

    Each function is an attribute and returns NCCL's status. Functions that the library lacks are missing.
    """
    module = sys.modules[binding().NcclCommunicator.__module__]
    path = getattr(module, "__file__", None) or ""
    if not path.endswith(".so"):
        return None
    try:
        # A lookup in an extension module also searches the libraries that it is linked to. So this is
        # the NCCL whose communicators CuPy holds, whichever others are loaded.
        library = ctypes.CDLL(path)
    except OSError:
        return None
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes, function.restype = arguments, c_int
    last = getattr(library, "ncclGetLastError", None)
    if last is not None:
        last.argtypes, last.restype = (c_void_p,), c_char_p
    return library


def present() -> tuple[str, ...]:
    """Return the names of those of `FUNCTIONS` that the library has."""
    library = functions()
    return tuple(name for name in FUNCTIONS if library is not None and hasattr(library, name))


def check(status: int) -> None:
    """Raise CuPy's error for a status other than success."""
    if status:
        raise binding().NcclError(status)


def last_error() -> str:
    """Return NCCL's message about the last error of this process; empty if there is none."""
    function = getattr(functions(), "ncclGetLastError", None)
    text = function(None) if function is not None else b""
    return text.decode(errors="replace").strip() if text else ""
