"""Locks of a node's processes, in memory that they share: the robust mutexes of POSIX threads.

If the process that holds one ends, the next one learns of it. Windows within a node lock by it.
"""

import ctypes
import errno
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.shared.pages import ended
from hpccomm.memory.views import address

MUTEX_BYTES = 128
"""Bytes for a mutex, of any C library, and for the rank that holds it."""

_HOLDER = 64
_SHARED, _ROBUST = 1, 1  # in glibc and in musl


@cache
def _library() -> Any:
    """Return the C library, whose functions keep the interpreter's lock: none of these waits."""
    return ctypes.PyDLL(None)


class NodeMutex:
    """A mutex in shared memory.

    Parameters
    ----------
    memory : ndarray of uint8, 1-D
        `MUTEX_BYTES` of it, which stay mapped.
    rank : int
        This process's rank, for the others.
    """

    __slots__ = ("_at", "_holder", "_rank", "_try", "_unlock")

    def __init__(self, memory: NDArray[np.uint8], rank: int) -> None:
        library = _library()
        self._try, self._unlock = library.pthread_mutex_trylock, library.pthread_mutex_unlock
        self._at = ctypes.c_void_p(address(memory))
        self._holder = memory[_HOLDER : _HOLDER + 4].view(np.int32)
        self._rank = rank

    def make(self) -> None:
        """Make the mutex, once, before any process uses it.

        Raises
        ------
        OSError
            If the C library has no such mutexes.
        """
        library, attributes = _library(), ctypes.create_string_buffer(_HOLDER)
        library.pthread_mutexattr_init(attributes)
        failure = (
            library.pthread_mutexattr_setpshared(attributes, _SHARED)
            or library.pthread_mutexattr_setrobust(attributes, _ROBUST)
            or library.pthread_mutex_init(self._at, attributes)
        )
        if failure:
            raise OSError(failure, "no mutex can be made in shared memory")

    def taken(self) -> bool:
        """Take the mutex, if it is free; return whether it was. It orders memory, as `released` does.

        Raises
        ------
        PeerLost
            If the process that held it has ended.
        """
        code = self._try(self._at)
        if not code:
            self._holder[0] = self._rank
            return True
        if code == errno.EBUSY:
            return False
        if code == errno.EOWNERDEAD:  # what it guards may be half written, so it is given up
            self._unlock(self._at)
        raise ended(int(self._holder[0]))

    def released(self) -> bool:
        """Give the mutex back, from the thread that has taken it; return True."""
        self._unlock(self._at)
        return True
