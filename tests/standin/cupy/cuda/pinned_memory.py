"""Pinned memory of the host, as CuPy has it."""

import sys

from standin import heap


class PinnedMemory:
    """An allocation; it may be used again the moment nobody holds it, as CuPy's pool does."""

    def __init__(self, size, flags=0):
        self.size = size
        self._block = heap.pinned(size)
        self.ptr = self._block.pointer

    def __del__(self, finalizing=sys.is_finalizing):
        block = self.__dict__.get("_block")
        if block is not None and not finalizing():
            heap.unpin(block)
