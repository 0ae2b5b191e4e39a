"""Pinned memory of the host, as CuPy has it."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache

from standin import heap


class PinnedMemory:
    """An allocation; it may be used again the moment nobody holds it, as CuPy's pool does."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._block = heap.pinned(size)
        self.ptr = self._block.pointer

    def __int__(self) -> int:
        return self.ptr

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        block = self.__dict__.get("_block")
        if block is not None and not finalizing():
            heap.unpin(block)


class PinnedMemoryPointer:
    """A place in pinned memory, which it keeps."""

    mem: PinnedMemory
    ptr: int

    def __new__(cls, mem: PinnedMemory, offset: int) -> "PinnedMemoryPointer":
        made = _with_buffer(mem.size - offset).from_address(mem.ptr + offset)
        made.mem, made.ptr = mem, mem.ptr + offset
        return made

    def __init__(self, mem: PinnedMemory, offset: int) -> None:
        pass  # made by __new__

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> "PinnedMemoryPointer":
        return PinnedMemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def size(self) -> int:
        return self.mem.size - (self.ptr - self.mem.ptr)


@cache
def _with_buffer(size: int) -> type:
    # Python's own classes have no buffer protocol before 3.12; those of ctypes do.
    return type("PinnedMemoryPointer", (PinnedMemoryPointer, ctypes.c_byte * size), {})


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    # As CuPy's pool, whole units, which size() tells.
    return PinnedMemoryPointer(PinnedMemory(-(-size // heap.UNIT) * heap.UNIT), 0)
