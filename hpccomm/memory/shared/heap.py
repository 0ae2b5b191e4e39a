"""Segments of registered memory, the arrays in them, and locks, which all communicators of a process share.

A segment is an unnamed file in memory (memfd). Peers open it through this process's entry in
``/proc``. It stays until the process ends, because peers may have it mapped. Free memory in a segment is
reused. After a while without use, its pages return to the system. `node` allocates here for
`Communicator.empty`.

A `NodeMutex` lies in a segment and locks among the processes of the node. It is a robust mutex of POSIX
threads: if the process that holds it ends, the next process that tries to lock learns of it.
`hpccomm.backends.mpi.window` locks by it within a node.
"""

import ctypes
import errno
import os
import threading
import time
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import MemoryUse
from hpccomm.memory.foreign import AddressedBytes
from hpccomm.memory.shared import pages
from hpccomm.memory.shared.pages import ended
from hpccomm.memory.views import address

MUTEX_BYTES = 128
"""Bytes of a mutex of any C library, and of the rank that holds it."""

_HOLDER = 64
_SHARED, _ROBUST = 1, 1  # in glibc and in musl


@cache
def _library() -> Any:
    """Return the C library, with the interpreter's lock held in its functions, since none that is used waits."""
    return ctypes.PyDLL(None)


class NodeMutex:
    """A mutex in shared memory.

    Parameters
    ----------
    memory : ndarray of uint8, 1-D
        `MUTEX_BYTES` of shared memory that stays mapped.
    rank : int
        This process's rank, which other processes see while this one holds the mutex.
    """

    __slots__ = ("_at", "_holder", "_rank", "_try", "_unlock")

    def __init__(self, memory: NDArray[np.uint8], rank: int) -> None:
        library = _library()
        self._try, self._unlock = library.pthread_mutex_trylock, library.pthread_mutex_unlock
        self._at, self._rank = ctypes.c_void_p(address(memory)), rank
        self._holder = memory[_HOLDER : _HOLDER + 4].view(np.int32)

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
        """Lock the mutex if it is free, and return whether it was. This orders memory accesses, as `released` does.

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
        # The data that a dead owner guarded may be half written, so this makes the mutex unusable.
        if code == errno.EOWNERDEAD:
            self._unlock(self._at)
        raise ended(int(self._holder[0]))

    def released(self) -> bool:
        """Unlock the mutex, in the thread that has locked it; return True."""
        self._unlock(self._at)
        return True


class FreeRanges:
    """The free parts of the bytes from 0 to `size`: an allocator by best fit that merges free neighbors.

    See D. E. Knuth, "The Art of Computer Programming", volume 1, section 2.5.

    Parameters
    ----------
    size : int
        Bytes, all of them free at first.
    """

    def __init__(self, size: int) -> None:
        self._by_size = [(size, 0)]  # ascending
        self._size_at = {0: size}
        self._start_before = {size: 0}  # end of a free range: its start

    def take(self, size: int, alignment: int) -> int | None:
        """Take `size` bytes and return their start; None if no range is large enough.

        Parameters
        ----------
        size : int
            Bytes, at least 1.
        alignment : int
            The start is a multiple of this.
        """
        for index in range(bisect_left(self._by_size, (size, 0)), len(self._by_size)):
            length, start = self._by_size[index]
            at = -(-start // alignment) * alignment
            left = start + length - at - size
            if left < 0:
                continue
            self._remove(start)
            if at > start:
                self._insert(start, at - start)
            if left:
                self._insert(at + size, left)
            return at
        return None

    def give(self, start: int, size: int) -> None:
        """Free `size` bytes from `start` on, which were in use."""
        end = start + size
        if end in self._size_at:
            size += self._remove(end)
        before = self._start_before.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start

    def _remove(self, start: int) -> int:
        """Remove a range, and return its size."""
        size = self._size_at.pop(start)
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._start_before[start + size]
        return size


class IdlePages:
    """Parts of a segment that are free, but still hold pages, with the time in seconds since which they are free."""

    def __init__(self) -> None:
        self._parts: list[tuple[float, int, int]] = []  # since, start, end; disjoint

    def add(self, start: int, end: int, now: float) -> None:
        """Add a part that became free at time `now`."""
        self._parts.append((now, start, end))

    def take(self, start: int, end: int) -> None:
        """Remove the range from `start` to `end`, which is in use again."""
        left = []
        for since, first, last in self._parts:
            if last <= start or end <= first:
                left.append((since, first, last))
                continue
            left += [(since, *part) for part in ((first, start), (end, last)) if part[0] < part[1]]
        self._parts = left

    def expired(self, before: float) -> list[tuple[int, int]]:
        """Return start and end of the parts that became free before the time `before`, and remove them."""
        idle = [(start, end) for since, start, end in self._parts if since < before]
        self._parts = [part for part in self._parts if part[0] >= before]
        return idle

    def oldest(self) -> float:
        """Return the time since which the oldest part has been free; infinity without one."""
        return min((since for since, _, _ in self._parts), default=inf)


SEGMENT: Final = 64 << 20
"""Usual bytes of a segment. Only written pages take memory."""

LINE: Final = 64
"""Bytes of a cache line. Arrays begin at cache lines."""

PATIENCE: Final = 10.0
"""Seconds after which free pages return to the system. A program that frees an array and soon makes
another array of that size does not need new pages, whose first write takes ten times as long."""

WORTHWHILE: Final = 1 << 20
"""Bytes of an array from which its pages return to the system; those of a smaller array are kept."""

NAME: Final = "hpccomm-{}"
"""Name of a segment, with its serial number, in the system's list of a process's files."""


@dataclass(frozen=True, slots=True, eq=False)
class HeapSegment:
    """A segment of this process.

    Attributes
    ----------
    key : int
        The segment's serial number and, in the lower 32 bits, its descriptor. Peers find the segment by this key.
    at : int
        Address of the segment.
    size : int
        Bytes of the segment.
    free : FreeRanges
        The parts that no array uses.
    idle : IdlePages
        The free parts that large arrays have used and that still hold pages.
    """

    key: int
    at: int
    size: int
    free: FreeRanges
    idle: IdlePages


class RegisteredBytes(AddressedBytes):
    """The memory of one array of `Heap.empty`."""

    __slots__ = ()


class Heap:
    """The registered memory of this process.

    Any thread may use it.

    Parameters
    ----------
    commit : bool
        Whether to take memory from the system when an array is made, not at the first write. That is needed
        if the system does not overcommit memory: else the write would kill the process.
    clock : callable
        Returns the time in seconds.
    """

    def __init__(self, commit: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._commit, self._clock = commit, clock
        self._lock = threading.Lock()
        self._segments: list[HeapSegment] = []
        # Ascending by address; replaced as a whole, so that readers need no lock.
        self._map: tuple[tuple[int, ...], tuple[HeapSegment, ...]] = ((), ())
        # Freed memory waits here for the owner of the lock. The garbage collector frees at any moment,
        # even while this thread holds the lock.
        self._given: deque[tuple[HeapSegment, int, int]] = deque()
        self._serial, self._next_look, self._process = 0, inf, os.getpid()

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an array that begins at a cache line, or at a page if it is large.

        Raises
        ------
        MemoryError
            If the system has no more memory.
        """
        if nbytes == 0:
            return np.empty(0, np.uint8)
        alignment = LINE if nbytes < WORTHWHILE else pages.PAGE
        size = -(-nbytes // alignment) * alignment
        with self._lock:
            self._take_back()
            segment, start = self._find(size, alignment)
            segment.idle.take(start, start + size)
        if self._commit:
            try:
                os.posix_fallocate(segment.key & 0xFFFFFFFF, start, size)
            except OSError as error:
                self._give(segment, start, size)
                raise _none_left(nbytes, error) from None
        block = RegisteredBytes(segment.at + start, nbytes)
        # At exit the memory need not be freed.
        weakref.finalize(block, self._give, segment, start, size).atexit = False
        return block.array()

    def where(self, at: int) -> HeapSegment | None:
        """Return the segment that an address lies in, or None."""
        starts, segments = self._map
        index = bisect_right(starts, at) - 1
        if index < 0:
            return None
        segment = segments[index]
        return segment if at < segment.at + segment.size else None

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._segments)

    def housekeep(self) -> None:
        """Return pages that have been free for long to the system. Cheap if there are none."""
        if self._clock() > self._next_look:
            self._try_to_take_back()

    def _give(self, segment: HeapSegment, start: int, size: int) -> None:
        if self._process != os.getpid():
            return  # after a fork the memory is the parent's
        self._given.append((segment, start, size))
        self._try_to_take_back()

    def _try_to_take_back(self) -> None:
        """Take freed memory back, unless another thread holds the lock. Then a later call does it."""
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        """Make freed memory usable again, and return pages that have been free for long to the system."""
        now = self._clock()
        while self._given:
            segment, start, size = self._given.popleft()
            segment.free.give(start, size)
            if size >= WORTHWHILE:
                segment.idle.add(start, start + size, now)
                self._next_look = min(self._next_look, now + PATIENCE)
        if now <= self._next_look:
            return
        self._next_look = inf
        for segment in self._segments:
            for start, end in segment.idle.expired(now - PATIENCE):
                first = -(-start // pages.PAGE) * pages.PAGE
                last = end // pages.PAGE * pages.PAGE
                if first < last:
                    pages.give_back(segment.at + first, last - first)
            self._next_look = min(self._next_look, segment.idle.oldest() + PATIENCE)

    def _find(self, size: int, alignment: int) -> tuple[HeapSegment, int]:
        for segment in self._segments:
            start = segment.free.take(size, alignment)
            if start is not None:
                return segment, start
        segment = self._grow(size)
        start = segment.free.take(size, alignment)
        assert start is not None
        return segment, start

    def _grow(self, size: int) -> HeapSegment:
        """Make a segment of at least `size` bytes."""
        machine = os.sysconf("SC_PHYS_PAGES") * pages.PAGE
        if size > machine:
            raise MemoryError(f"{size} bytes are more than the machine's memory ({machine} bytes)")
        # The number of segments grows with the logarithm of their total size.
        total = sum(segment.size for segment in self._segments)
        enough = -(-size // pages.PAGE) * pages.PAGE
        generous = max(SEGMENT, total // 8 // pages.PAGE * pages.PAGE, enough)
        for wanted in sorted({generous, enough}, reverse=True):
            try:
                return self._made(wanted)
            except OSError as error:
                failed = error
        raise _none_left(size, failed)

    def _made(self, size: int) -> HeapSegment:
        descriptor = pages.memory_file(NAME.format(self._serial))
        try:
            os.ftruncate(descriptor, size)
            at = pages.map_file(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        segment = HeapSegment(
            self._serial << 32 | descriptor, at, size, FreeRanges(size), IdlePages()
        )
        self._serial += 1
        self._segments.append(segment)
        ascending = sorted(self._segments, key=lambda each: each.at)
        self._map = tuple(each.at for each in ascending), tuple(ascending)
        return segment


def _none_left(nbytes: int, error: OSError) -> MemoryError:
    return MemoryError(
        f"no registered memory of {nbytes} bytes: {error.strerror}; free arrays, or raise the limits "
        "on memory, address space (ulimit -v) and open files (ulimit -n)"
    )


_ANOTHER = "descriptor {} of process {} is no longer a segment of hpccomm: it was closed there"


class PeerSegments:
    """Peers' segments, mapped in this process. Each is mapped once and stays mapped.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def find(self, pid: int, key: int) -> NDArray[np.uint8]:
        """Return a segment's bytes.

        Parameters
        ----------
        pid : int
            The process that owns the segment.
        key : int
            The segment's `HeapSegment.key`.

        Raises
        ------
        OSError
            If the segment cannot be mapped.
        """
        with self._lock:
            segment = self._mapped.get((pid, key))
            if segment is None:
                segment = self._mapped[pid, key] = _map(pid, key)
            return segment


def _map(pid: int, key: int) -> NDArray[np.uint8]:
    serial, number = key >> 32, key & 0xFFFFFFFF
    path = f"/proc/{pid}/fd/{number}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # The program may have closed the descriptor and reused its number for another file.
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not name.startswith(f"/memfd:{NAME.format(serial)} "):
            raise OSError(0, _ANOTHER.format(number, pid))
        size = os.fstat(descriptor).st_size
        at = pages.map_file(descriptor, size)
    finally:
        os.close(descriptor)
    return AddressedBytes(at, size).array()


class Leases:
    """Registered memory that calls lease for staging. Returned memory is kept for later calls.

    Any thread may use it.

    Parameters
    ----------
    heap : Heap
        The source of the memory.

    Attributes
    ----------
    total : int
        Bytes in use or kept.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap, self._lock = heap, threading.Lock()
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        self.total = 0

    def take(self, nbytes: int, limit: int) -> NDArray[np.uint8] | None:
        """Return leased memory; None if the process would exceed `limit` bytes in use or kept.

        Raises
        ------
        MemoryError
            If the system has no more memory.
        """
        with self._lock:
            same = self._kept.get(nbytes)
            if same:
                return same.pop()
            if self.total + nbytes > limit:
                # Kept memory of other sizes returns to the heap.
                self.total -= sum(size * len(kept) for size, kept in self._kept.items())
                self._kept.clear()
                if self.total + nbytes > limit:
                    return None
            lease = self._heap.empty(nbytes)
            self.total += nbytes
            return lease

    def give(self, lease: NDArray[np.uint8]) -> None:
        """Return memory that `take` leased."""
        with self._lock:
            self._kept.setdefault(lease.nbytes, []).append(lease)


class ProcessMemory(NamedTuple):
    """The registered memory of this process, and its mappings of peers' memory."""

    heap: Heap
    leases: Leases
    peers: PeerSegments
    use: MemoryUse


_of_process: dict[int, ProcessMemory] = {}
"""Keyed by process id: a forked child must not hand out its parent's memory, nor wait for its parent's locks."""


def process_memory() -> ProcessMemory:
    """Return the `ProcessMemory` of this process. The first call makes it; no system call is made before that."""
    process = os.getpid()
    memory = _of_process.get(process)
    if memory is None:
        heap = Heap(commit=_strict())
        # If two threads make one, both get the first.
        made = ProcessMemory(heap, Leases(heap), PeerSegments(), MemoryUse())
        memory = _of_process.setdefault(process, made)
    return memory


def _strict() -> bool:
    """Whether the system grants no more memory than it has."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text() == "2\n"
    except OSError:
        return False
