"""System calls on memory that Python's standard library lacks.

Python's own `mmap` ends its mapping with the object and keeps a descriptor for each. Mappings made here
stay until the process ends.

The modules of `hpccomm.memory.shared` call it.
"""

import ctypes
import errno
import os
from functools import cache
from typing import Any

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
    """A stretch of memory: ``struct iovec``."""

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
    """Return the error of the last call in this thread."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def memory_file(name: str) -> int:
    """Return the descriptor of a new unnamed file in memory.

    Python's `os.memfd_create` is missing where Python was built for C libraries older than this one,
    as conda's and uv's are.

    Raises
    ------
    OSError
        If it cannot be made.
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

    With huge pages the first write is eight times as fast, and a peer's as fast as a memcpy. There are
    some where ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` says ``advise`` or ``always``.

    Raises
    ------
    OSError
        If they cannot be.
    """
    at: int | None = libc().mmap(None, nbytes, _PROT_READ_WRITE, _MAP_SHARED, descriptor, 0)
    if at is None or at == _FAILED:
        raise failure()
    libc().madvise(at, nbytes, _MADV_HUGEPAGE)
    return at


def join_pages(at: int, nbytes: int) -> None:
    """Make huge pages of the pages of private memory, which peers then read seven times as fast.

    The first time takes a few copies of it, and later ones some microseconds. Before Linux 6.1 nothing changes.
    """
    first, end = -(-at // _HUGE) * _HUGE, (at + nbytes) // _HUGE * _HUGE
    if end > first:
        libc().madvise(first, end - first, _MADV_COLLAPSE)


def give_back(at: int, nbytes: int) -> None:
    """Return whole pages of a shared mapping to the system; they read as zeros from then on.

    If the system cannot take them, they stay.
    """
    libc().madvise(at, nbytes, _MADV_REMOVE)
