"""Segments of this process, and the arrays that lie in them.

A segment is a file in memory without a name (memfd): peers open it through this process's entry in
``/proc``. It stays until the process ends, since peers may have it mapped; what becomes free in it
is used again, and if it is not used for a while its pages are given back to the system.
"""

import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.shared import libc
from hpccomm.memory.shared.ranges import FreeRanges, IdlePages

SEGMENT: Final = 64 << 20
"""Bytes of a segment, if they are enough. It takes memory only where it is written."""

LINE: Final = 64
"""Bytes of a cache line: arrays begin at one."""

PATIENCE: Final = 10.0
"""Seconds after which free pages are given back: a program that frees an array and makes another
one of the size soon after does not pay for new pages, which take ten times as long to write."""

WORTHWHILE: Final = 1 << 20
"""Bytes: the pages of a smaller array are kept."""

NAME: Final = "hpccomm-{}"
"""What a segment of a number is called where a system lists the files of a process."""


@dataclass(frozen=True, slots=True, eq=False)
class HeapSegment:
    """A segment of this process.

    Attributes
    ----------
    key : int
        Its number in the process, and its descriptor in the lower 32 bits: what peers find it by.
    at : int
        Address.
    size : int
        Bytes.
    free : FreeRanges
        What no array has.
    idle : IdlePages
        What of that large arrays had.
    """

    key: int
    at: int
    size: int
    free: FreeRanges
    idle: IdlePages


class _ArrayMemory:
    """Memory of one array, and the base of it: while there are views it stays."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, at: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (at, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class Heap:
    """The registered memory of this process.

    Any thread may use it.

    Parameters
    ----------
    commit : bool
        Take memory from the system when an array is made, not when it is first written: where the
        system grants no more than it has, the writer would be killed.
    """

    def __init__(self, commit: bool = False) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._segments: list[HeapSegment] = []
        # By address, ascending; replaced as a whole, so that readers need no lock.
        self._map: tuple[tuple[int, ...], tuple[HeapSegment, ...]] = ((), ())
        self._serial = 0
        # What is freed waits here for whoever has the lock: the garbage collector frees at any
        # moment, also while this very thread has it.
        self._given: deque[tuple[HeapSegment, int, int]] = deque()
        self._next_look = inf
        self._process = os.getpid()

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an array that begins at a cache line; a large one at a page.

        Raises
        ------
        MemoryError
            If there is no such memory.
        """
        if nbytes == 0:
            return np.empty(0, np.uint8)
        alignment = LINE if nbytes < WORTHWHILE else libc.PAGE
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
        block = _ArrayMemory(segment.at + start, nbytes)
        # At exit nobody wants it back.
        weakref.finalize(block, self._give, segment, start, size).atexit = False
        return np.asarray(block)

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
        """How many there are."""
        return len(self._segments)

    def tend(self) -> None:
        """Give pages back that have been free for long. Cheap where there are none."""
        if time.monotonic() > self._next_look and self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _give(self, segment: HeapSegment, start: int, size: int) -> None:
        if self._process != os.getpid():
            return  # after a fork the memory is the parent's
        self._given.append((segment, start, size))
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        """Note what was freed; give back what has been free for long."""
        now = time.monotonic()
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
                first = -(-start // libc.PAGE) * libc.PAGE
                last = end // libc.PAGE * libc.PAGE
                if first < last:
                    libc.give_back(segment.at + first, last - first)
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
        machine = os.sysconf("SC_PHYS_PAGES") * libc.PAGE
        if size > machine:
            raise MemoryError(f"{size} bytes are more than the machine's memory ({machine} bytes)")
        # The number of segments grows with the logarithm of what they hold.
        total = sum(segment.size for segment in self._segments)
        enough = -(-size // libc.PAGE) * libc.PAGE
        generous = max(SEGMENT, total // 8 // libc.PAGE * libc.PAGE, enough)
        for wanted in sorted({generous, enough}, reverse=True):
            try:
                return self._made(wanted)
            except OSError as error:
                failed = error
        raise _none_left(size, failed)

    def _made(self, size: int) -> HeapSegment:
        descriptor = libc.memory_file(NAME.format(self._serial))
        try:
            os.ftruncate(descriptor, size)
            at = libc.map_file(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        libc.prefer_huge_pages(at, size)
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
