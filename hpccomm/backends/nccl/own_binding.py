"""What ``cupy.cuda.nccl`` offers, by NCCL's own functions: for a CuPy without a binding of NCCL."""

import ctypes
from typing import Any

from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.raw_communicator import RawCommunicator

available = True
"""As in CuPy's; `get_version` is 0 where there is no library."""


TAKES_NAME = True
"""Unlike CuPy's, it makes communicators that NCCL knows by a name."""


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


def NcclCommunicator(size: int, unique_id: bytes, rank: int, *, name: str = "") -> RawCommunicator:  # noqa: N802 (CuPy's name)
    """Make a communicator; blocks until all ranks do. NCCL knows it by `name` from 2.28 on."""
    made, of = ctypes.c_void_p(), libnccl.UniqueId.from_buffer_copy(unique_id)
    version = get_version()
    settings = libnccl.config(name, version) if version >= libnccl.CONFIG_SINCE else None
    given: Any = None if settings is None else ctypes.byref(settings)
    libnccl.check(
        libnccl.functions().ncclCommInitRankConfig(ctypes.byref(made), size, of, rank, given)
    )
    return RawCommunicator(made.value or 0)


def groupStart() -> None:  # noqa: N802 (CuPy's name)
    """Begin a group of the calling thread."""
    libnccl.check(libnccl.functions().ncclGroupStart())


def groupEnd() -> None:  # noqa: N802 (CuPy's name)
    """End it."""
    libnccl.check(libnccl.functions().ncclGroupEnd())
