"""Peers' plain arrays, which the kernel reads and writes (``process_vm_readv``, ``..._writev``).

`node` accesses unregistered arrays by it.
"""

import ctypes
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError, PeerLost
from hpccomm.memory.scratch import ScratchBuffer
from hpccomm.memory.shared import libc
from hpccomm.memory.views import address


class RemoteMemory:
    """The memory of another process. One thread at a time may use it.

    Parameters
    ----------
    pid : int
        The process.
    rank : int
        Its rank, for messages.
    """

    __slots__ = ("_far", "_far_at", "_from", "_near", "_near_at", "_pid", "_rank", "_to")

    def __init__(self, pid: int, rank: int) -> None:
        self._pid = pid
        self._rank = rank
        # Made once, because making them takes longer than the call.
        self._near, self._far = libc.Vector(), libc.Vector()
        self._near_at = ctypes.addressof(self._near)
        self._far_at = ctypes.addressof(self._far)
        functions = libc.libc()
        self._from = getattr(functions, "process_vm_readv", None)
        self._to = getattr(functions, "process_vm_writev", None)

    def read(self, far: int, near: int, nbytes: int) -> None:
        """Copy bytes from the process's address `far` to this one's `near`. Blocks until then.

        Raises
        ------
        PeerLost
            If the process has ended.
        CommunicationError
            If the system forbids it, or the address is not mapped.
        """
        self._move(self._from, far, near, nbytes)

    def write(self, far: int, near: int, nbytes: int) -> None:
        """Copy bytes from this process's address `near` to the other's `far`. As `read`."""
        self._move(self._to, far, near, nbytes)

    def _move(self, move: Callable[..., int] | None, far: int, near: int, nbytes: int) -> None:
        if move is None:
            raise CommunicationError("the C library has no process_vm_readv", ranks=(self._rank,))
        local, theirs = self._near, self._far
        while nbytes:
            local.base, theirs.base = near, far
            local.nbytes = theirs.nbytes = nbytes
            # One range at a time. The kernel copies only a part of more than 2 GiB.
            done = move(self._pid, self._near_at, 1, self._far_at, 1, 0)
            if done == nbytes:
                return
            if done > 0:
                far, near, nbytes = far + done, near + done, nbytes - done
            elif (error := libc.failure()).errno != errno.EINTR:
                raise self._failed(error)

    def _failed(self, error: OSError) -> CommunicationError:
        rank = self._rank
        if error.errno == errno.ESRCH:
            return ended(rank)
        forbids = ""
        if error.errno == errno.EPERM:
            forbids = " (Yama's ptrace_scope, or a container's seccomp profile, may forbid it)"
        return CommunicationError(
            f"the memory of rank {rank} cannot be reached: {error.strerror}{forbids}",
            ranks=(rank,),
        )


def ended(rank: int) -> PeerLost:
    """Return the error for a rank whose process has ended."""
    return PeerLost(f"the process of rank {rank} has ended", ranks=(rank,))


@dataclass(slots=True, eq=False)
class PeerPages:
    """A peer's array: `Pages` of the contracts.

    Attributes
    ----------
    door : RemoteMemory
        Memory of the peer.
    bounce : ScratchBuffer
        Memory for single blocks.
    at : int
        The array's address in the peer's process.
    size : int
        Elements.
    dtype : dtype
        Of the elements.
    """

    remote: RemoteMemory
    bounce: ScratchBuffer
    at: int
    size: int
    dtype: DType

    def part(self, where: slice) -> "PeerPages":
        """Return a part of its elements."""
        start, stop, _ = where.indices(self.size)
        at = self.at + start * self.dtype.itemsize
        return PeerPages(self.remote, self.bounce, at, stop - start, self.dtype)

    def __getitem__(self, where: slice) -> NDArray[Any]:
        """Read some elements into memory that the next such read overwrites."""
        start, stop, _ = where.indices(self.size)
        block = self.bounce.take(stop - start, self.dtype)
        far = self.at + start * self.dtype.itemsize
        self.remote.read(far, address(block), block.nbytes)
        return block

    def read(self, into: NDArray[Any]) -> None:
        """Read all its elements."""
        self.remote.read(self.at, address(into), into.nbytes)

    def write(self, data: NDArray[Any]) -> None:
        """Write over all its elements."""
        self.remote.write(self.at, address(data), data.nbytes)
