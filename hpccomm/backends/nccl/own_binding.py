"""The interface of ``cupy.cuda.nccl``, by NCCL's own functions, and communicators that CuPy does not own.

`libnccl` chooses between the interfaces. A `RawCommunicator` is one that a CuPy without NCCL makes, that
`backend` shrinks another one to, or that was borrowed.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpccomm.backends.nccl import libnccl
from hpccomm.errors import CommunicatorAborted


class RawCommunicator:
    """NCCL's communicator by its pointer, with the methods of CuPy's.

    It alone destroys the communicator, and has no destructor.

    Parameters
    ----------
    pointer : int
        NCCL's.

    """

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self._library = libnccl.functions()

    @property
    def comm(self) -> int:
        """NCCL's pointer; 0 once the communicator is destroyed or aborted."""
        return self._pointer

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a call that goes on a stream, by CuPy's name: ``allReduce`` is ``ncclAllReduce``.

        It takes NCCL's arguments in their order, without the communicator.
        """
        known = f"nccl{name[:1].upper()}{name[1:]}"
        if known not in libnccl.ON_STREAM:
            raise AttributeError(name)
        function, check = getattr(self._library, known), libnccl.check

        def call(*arguments: int) -> None:
            *first, stream = arguments
            check(function(*first, self.comm, stream))

        return call

    def check_async_error(self) -> None:
        """Raise what NCCL noticed."""
        noticed = ctypes.c_int()
        status = self._library.ncclCommGetAsyncError(self.comm, ctypes.byref(noticed))
        libnccl.check(noticed.value)
        libnccl.check(status)

    def abort(self) -> None:
        """End it, with any calls under way."""
        if self._pointer:
            self._library.ncclCommAbort(self._pointer)
            self._pointer = 0

    def destroy(self) -> None:
        """Free it."""
        if self._pointer:
            self._library.ncclCommDestroy(self._pointer)
            self._pointer = 0


class SelectingCalls:
    """A communicator's collectives, each by an algorithm that its own settings name.

    Parameters
    ----------
    communicator : NcclCommunicator or RawCommunicator
        Of NCCL 2.32 or later.
    algorithm : str
        NCCL's name of it.
    """

    def __init__(self, communicator: Any, algorithm: str) -> None:
        self._communicator = communicator
        self._settings = libnccl.call_config(algorithm)

    @property
    def comm(self) -> int:
        """NCCL's pointer; 0 once the communicator is ended."""
        return int(self._communicator.comm)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a collective by CuPy's name, which takes what CuPy's takes."""
        known = f"nccl{name[:1].upper()}{name[1:]}Config"
        if known not in libnccl.FUNCTIONS:
            raise AttributeError(name)
        function, check = getattr(libnccl.functions(), known), libnccl.check
        settings, communicator = ctypes.byref(self._settings), self._communicator

        def call(*arguments: int) -> None:
            *first, stream = arguments
            check(function(*first, communicator.comm, stream, settings))

        return call


def shrunk(parent: Any, exclude: Sequence[int]) -> RawCommunicator:
    """Return the communicator of those ranks of `parent` that are not in `exclude`.

    Called by these alone. Blocks in NCCL until all of them have called. Raises CuPy's NCCL errors.
    """
    if not parent.comm:
        raise CommunicatorAborted("the communicator that is shrunk was aborted")
    unique = ctypes.c_void_p()
    left_out = (ctypes.c_int * len(exclude))(*exclude)
    libnccl.check(
        libnccl.functions().ncclCommShrink(
            parent.comm, left_out, len(exclude), ctypes.byref(unique), None, 0
        )
    )
    return RawCommunicator(unique.value or 0)


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
    """Return a unique id for a new communicator of all ranks."""
    unique = libnccl.UniqueId()
    libnccl.check(libnccl.functions().ncclGetUniqueId(ctypes.byref(unique)))
    return bytes(unique)


def NcclCommunicator(  # noqa: N802 (CuPy's name)
    size: int,
    unique_id: bytes,
    rank: int,
    name: str = "",
    given: Mapping[str, int | str] | None = None,
) -> RawCommunicator:
    """Make a communicator; blocks until all ranks do.

    NCCL knows it by `name` from 2.28 on. `given` has fields that ncclConfig_t has in its version.
    """
    handle, of = ctypes.c_void_p(), libnccl.UniqueId.from_buffer_copy(unique_id)
    version = get_version()
    settings: Any = None
    if given or version >= libnccl.CONFIG_SINCE:
        settings = ctypes.byref(libnccl.config(name, version, given or {}))
    libnccl.check(
        libnccl.functions().ncclCommInitRankConfig(ctypes.byref(handle), size, of, rank, settings)
    )
    return RawCommunicator(handle.value or 0)


def groupStart() -> None:  # noqa: N802 (CuPy's name)
    """Begin a group of the calling thread."""
    libnccl.check(libnccl.functions().ncclGroupStart())


def groupEnd() -> None:  # noqa: N802 (CuPy's name)
    """End it."""
    libnccl.check(libnccl.functions().ncclGroupEnd())
