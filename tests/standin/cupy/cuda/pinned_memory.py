"""Pinned memory of the host, as CuPy has it."""

import sys
from collections.abc import Callable

from standin import heap


class PinnedMemory:
    """An allocation; it may be used again the moment nobody holds it, as CuPy's pool does."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self._block = heap.pinned(size)
        self.ptr = self._block.pointer

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        block = self.__dict__.get("_block")
        if block is not None and not finalizing():
            heap.unpin(block)
