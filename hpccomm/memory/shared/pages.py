"""System calls on memory that Python's standard library lacks, and peers' plain arrays, which the kernel copies.

Python's `mmap` ends its mapping with the object and keeps a descriptor for each mapping. Mappings made here stay until
the process ends. `heap` maps segments by it. `node` accesses unregistered arrays by ``process_vm_readv`` and
``process_vm_writev``. `hpccomm.torch.tensors` joins pages.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numpy.typing import NDArray

from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError, PeerLost
from hpccomm.memory.views import ScratchBuffer, address

PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes of a page of memory."""

_MFD_CLOEXEC = 1
_PROT_READ_WRITE = 1 | 2
_MAP_SHARED = 1
_MADV_REMOVE = 9
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_FAILED = ctypes.c_void_p(-1).value


class Vector(ctypes.Structure):
    """A range of memory: ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


@cache
def libc() -> Any:
    """Return the C library, whose functions release the interpreter's lock."""
    library = ctypes.CDLL(None, use_errno=True)
    word, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = word
    library.mmap.argtypes = [word, size, integer, integer, integer, ctypes.c_int64]
    library.madvise.argtypes = [word, size, integer]
    for name in ("process_vm_readv", "process_vm_writev"):
        move = getattr(library, name, None)  # not in every C library
        if move is not None:
            move.restype = ctypes.c_ssize_t
            move.argtypes = [integer, word, ctypes.c_ulong, word, ctypes.c_ulong, ctypes.c_ulong]
    return library


def failure() -> OSError:
    """Return the error of the last system call in this thread."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def memory_file(name: str) -> int:
    """Return the descriptor of a new unnamed file in memory.

    `os.memfd_create` is missing if Python was built for an older C library, as conda's and uv's Python are.

    Raises
    ------
    OSError
        If the file cannot be made.
    """
    create = getattr(libc(), "memfd_create", None)  # glibc has it since 2.27
    if create is None:
        raise OSError(errno.ENOSYS, "the C library has no memfd_create")
    descriptor: int = create(name.encode(), _MFD_CLOEXEC)
    if descriptor < 0:
        raise failure()
    return descriptor


def map_file(descriptor: int, nbytes: int) -> int:
    """Map the first `nbytes` bytes of a file, in huge pages if possible, and return their address.

    With huge pages the first write is eight times as fast, and a peer's first write as fast as a memcpy. The system
    has huge pages if ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` says ``advise`` or ``always``.

    Raises
    ------
    OSError
        If the file cannot be mapped.
    """
    at: int | None = libc().mmap(None, nbytes, _PROT_READ_WRITE, _MAP_SHARED, descriptor, 0)
    if at is None or at == _FAILED:
        raise failure()
    libc().madvise(at, nbytes, _MADV_HUGEPAGE)
    return at


def join_pages(at: int, nbytes: int) -> None:
    """Join the pages of private memory to huge pages, which peers read seven times as fast.

    The first call takes the time of a few copies of the memory, later calls some microseconds. Before Linux 6.1 it
    does nothing.
    """
    first, end = -(-at // _HUGE) * _HUGE, (at + nbytes) // _HUGE * _HUGE
    if end > first:
        libc().madvise(first, end - first, _MADV_COLLAPSE)


def give_back(at: int, nbytes: int) -> None:
    """Return whole pages of a shared mapping to the system; they read as zeros from then on.

    If the system cannot take the pages, they stay.
    """
    libc().madvise(at, nbytes, _MADV_REMOVE)


class RemoteMemory:
    """The memory of another process. One thread at a time may use it.

    Parameters
    ----------
    pid : int
        Id of the process.
    rank : int
        Rank of the process, for messages.
    library : object, optional
        The C library.
    """

    __slots__ = ("_far", "_far_at", "_from", "_near", "_near_at", "_pid", "_rank", "_to")

    def __init__(self, pid: int, rank: int, library: Any = None) -> None:
        self._pid, self._rank = pid, rank
        # These objects are made once, because making them takes longer than the call.
        self._near, self._far = Vector(), Vector()
        self._near_at = ctypes.addressof(self._near)
        self._far_at = ctypes.addressof(self._far)
        functions = library or libc()
        self._from = getattr(functions, "process_vm_readv", None)
        self._to = getattr(functions, "process_vm_writev", None)

    def read(self, far: int, near: int, nbytes: int) -> None:
        """Copy bytes from address `far` of that process to address `near` of this process. Blocks.

        Raises
        ------
        PeerLost
            If the process has ended.
        CommunicationError
            If the system forbids it, or the address is not mapped.
        """
        self._move(self._from, far, near, nbytes)

    def write(self, far: int, near: int, nbytes: int) -> None:
        """Copy bytes from address `near` of this process to address `far` of that process; otherwise as `read`."""
        self._move(self._to, far, near, nbytes)

    def _move(self, move: Callable[..., int] | None, far: int, near: int, nbytes: int) -> None:
        if move is None:
            raise CommunicationError("the C library has no process_vm_readv", ranks=(self._rank,))
        local, theirs = self._near, self._far
        while nbytes:
            local.base, theirs.base = near, far
            local.nbytes = theirs.nbytes = nbytes
            # One range at a time. Of a range above 2 GiB, the kernel copies only a part.
            done = move(self._pid, self._near_at, 1, self._far_at, 1, 0)
            if done == nbytes:
                return
            if done > 0:
                far, near, nbytes = far + done, near + done, nbytes - done
            elif (error := failure()).errno != errno.EINTR:
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
    """A peer's array that the kernel copies; it implements `Pages` of the contracts.

    Attributes
    ----------
    remote : RemoteMemory
        Memory of the peer.
    bounce : ScratchBuffer
        Local memory for a block that is read.
    at : int
        The array's address in the peer's process.
    size : int
        Number of elements.
    dtype : dtype
        Type of the elements.
    """

    remote: RemoteMemory
    bounce: ScratchBuffer
    at: int
    size: int
    dtype: DType

    def part(self, where: slice) -> "PeerPages":
        """Return the memory of some elements."""
        start, stop, _ = where.indices(self.size)
        at = self.at + start * self.dtype.itemsize
        return PeerPages(self.remote, self.bounce, at, stop - start, self.dtype)

    def __getitem__(self, where: slice) -> NDArray[Any]:
        """Return a copy of some elements, in memory that the next such read overwrites."""
        start, stop, _ = where.indices(self.size)
        block = self.bounce.take(stop - start, self.dtype)
        far = self.at + start * self.dtype.itemsize
        self.remote.read(far, address(block), block.nbytes)
        return block

    def read(self, into: NDArray[Any]) -> None:
        """Read all elements into a C-contiguous array of the same size."""
        self.remote.read(self.at, address(into), into.nbytes)

    def write(self, data: NDArray[Any]) -> None:
        """Overwrite all elements with a C-contiguous array of the same size."""
        self.remote.write(self.at, address(data), data.nbytes)
