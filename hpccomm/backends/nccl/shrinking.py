"""A communicator that CuPy does not own: NCCL makes it of another one, of which ranks are left out."""

import ctypes
from collections.abc import Sequence
from typing import Any

from hpccomm.backends.nccl import raw
from hpccomm.errors import CommunicatorAborted


class RawCommunicator:
    """NCCL's communicator by its pointer, with the methods of CuPy's.

    It alone destroys it; there is no destructor.

    Parameters
    ----------
    pointer : int
        NCCL's.

    Attributes
    ----------
    comm : int
        NCCL's pointer; 0 once it is destroyed or aborted.
    """

    def __init__(self, pointer: int) -> None:
        self.comm = pointer
        self._library = raw.library()

    def allReduce(  # noqa: N802 (CuPy's name, here and below)
        self, send: int, recv: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce to all."""
        run = self._library.ncclAllReduce
        raw.check(run(send, recv, count, datatype, op, self.comm, stream))

    def reduce(
        self, send: int, recv: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        """Reduce to the root."""
        run = self._library.ncclReduce
        raw.check(run(send, recv, count, datatype, op, root, self.comm, stream))

    def broadcast(
        self, send: int, recv: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        """Send the root's array to all."""
        run = self._library.ncclBroadcast
        raw.check(run(send, recv, count, datatype, root, self.comm, stream))

    def reduceScatter(  # noqa: N802
        self, send: int, recv: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Reduce, a block to each."""
        run = self._library.ncclReduceScatter
        raw.check(run(send, recv, count, datatype, op, self.comm, stream))

    def allGather(  # noqa: N802
        self, send: int, recv: int, count: int, datatype: int, stream: int
    ) -> None:
        """Gather to all."""
        run = self._library.ncclAllGather
        raw.check(run(send, recv, count, datatype, self.comm, stream))

    def send(self, pointer: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Send a message."""
        raw.check(self._library.ncclSend(pointer, count, datatype, peer, self.comm, stream))

    def recv(self, pointer: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Receive a message."""
        raw.check(self._library.ncclRecv(pointer, count, datatype, peer, self.comm, stream))

    def check_async_error(self) -> None:
        """Raise what NCCL noticed."""
        noticed = ctypes.c_int()
        status = self._library.ncclCommGetAsyncError(self.comm, ctypes.byref(noticed))
        raw.check(noticed.value)
        raw.check(status)

    def abort(self) -> None:
        """End it, whatever is under way."""
        if self.comm:
            self._library.ncclCommAbort(self.comm)
            self.comm = 0

    def destroy(self) -> None:
        """Free it."""
        if self.comm:
            self._library.ncclCommDestroy(self.comm)
            self.comm = 0


def shrunk(parent: Any, exclude: Sequence[int]) -> RawCommunicator:
    """Return the communicator of those ranks of `parent` that are not in `exclude`.

    Called by these alone; blocks in NCCL until all of them have. Raises CuPy's NCCL errors.
    """
    if not parent.comm:
        raise CommunicatorAborted("the communicator that is shrunk was aborted")
    made = ctypes.c_void_p()
    left_out = (ctypes.c_int * len(exclude))(*exclude)
    raw.check(
        raw.library().ncclCommShrink(
            parent.comm, left_out, len(exclude), ctypes.byref(made), None, 0
        )
    )
    return RawCommunicator(made.value or 0)
