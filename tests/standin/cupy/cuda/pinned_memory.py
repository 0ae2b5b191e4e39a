"""Pinned memory of the host, as CuPy has it."""

import ctypes
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

    def __del__(self) -> None:
        block = self.__dict__.get("_block")
        if block is not None:
            heap.unpin(block)


class PinnedMemoryPointer:
    """A place in pinned memory, which it keeps; made by `alloc_pinned_memory`."""

    mem: PinnedMemory
    ptr: int

    def __int__(self) -> int:
        return self.ptr

    def size(self) -> int:
        return self.mem.size - (self.ptr - self.mem.ptr)


@cache
def _buffer(size: int) -> type:
    # Python's own classes have no buffer protocol before 3.12; those of ctypes do.
    return type("PinnedMemoryPointer", (PinnedMemoryPointer, ctypes.c_byte * size), {})


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    # As CuPy's pool, whole units, which size() tells.
    mem = PinnedMemory(-(-size // heap.UNIT) * heap.UNIT)
    pointer = _buffer(mem.size).from_address(mem.ptr)
    pointer.mem, pointer.ptr = mem, mem.ptr
    return pointer
