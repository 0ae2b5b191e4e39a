"""The interface of ``cupy.cuda.nccl``, by NCCL's own functions: for a CuPy without it.

`libnccl` chooses between the two.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.raw_communicator import RawCommunicator

available = True
"""As in CuPy's; `get_version` is 0 without a library."""

TAKES_SETTINGS = True
"""Unlike CuPy's, it makes communicators with a name and with fields of ncclConfig_t."""


class NcclError(RuntimeError):
    """A status other than success.

    Attributes
    ----------
    status : int
        NCCL's.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(libnccl.functions().ncclGetErrorString(status).decode())


def get_version() -> int:
    """Return NCCL's version as its code; 0 without a library."""
    library, version = libnccl.functions(), ctypes.c_int()
    if library is not None:
        libnccl.check(library.ncclGetVersion(ctypes.byref(version)))
    return version.value


def get_unique_id() -> bytes:
    """Return what names a new communicator, for all of its ranks."""
    made = libnccl.UniqueId()
    libnccl.check(libnccl.functions().ncclGetUniqueId(ctypes.byref(made)))
    return bytes(made)


def NcclCommunicator(  # noqa: N802 (CuPy's name)
    size: int,
    unique_id: bytes,
    rank: int,
    name: str = "",
    given: Mapping[str, int | str] | None = None,
) -> RawCommunicator:
    """Make a communicator; blocks until all ranks do.

    NCCL knows it by `name` from 2.28 on. `given` has fields of ncclConfig_t, all of which its version has.
    """
    made, of = ctypes.c_void_p(), libnccl.UniqueId.from_buffer_copy(unique_id)
    version = get_version()
    settings: Any = None
    if given or version >= libnccl.CONFIG_SINCE:
        settings = ctypes.byref(libnccl.config(name, version, given or {}))
    libnccl.check(
        libnccl.functions().ncclCommInitRankConfig(ctypes.byref(made), size, of, rank, settings)
    )
    return RawCommunicator(made.value or 0)


def groupStart() -> None:  # noqa: N802 (CuPy's name)
    """Begin a group of the calling thread."""
    libnccl.check(libnccl.functions().ncclGroupStart())


def groupEnd() -> None:  # noqa: N802 (CuPy's name)
    """End it."""
    libnccl.check(libnccl.functions().ncclGroupEnd())
