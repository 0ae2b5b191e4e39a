"""Registered memory for staging, limited for all calls of a process together."""

import threading

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.shared.heap import Heap


class Leases:
    """Memory that calls use for a while. Returned memory is kept for later calls.

    Any thread may use it.

    Parameters
    ----------
    heap : Heap
        Source of the memory.

    Attributes
    ----------
    total : int
        Bytes in use or kept.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._lock = threading.Lock()
        self._kept: dict[int, list[NDArray[np.uint8]]] = {}
        self.total = 0

    def take(self, nbytes: int, limit: int) -> NDArray[np.uint8] | None:
        """Return so many bytes; None if the process would exceed `limit`.

        Raises
        ------
        MemoryError
            If the system has no more.
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
            found = self._heap.empty(nbytes)
            self.total += nbytes
            return found

    def give(self, lease: NDArray[np.uint8]) -> None:
        """Take back what `take` returned."""
        with self._lock:
            self._kept.setdefault(lease.nbytes, []).append(lease)
