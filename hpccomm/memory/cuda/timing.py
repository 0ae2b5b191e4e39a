"""Points on a stream between which CUDA measures time. `hpccomm perf` times device calls by it."""

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.cuda.library import cupy


class Marks:
    """Points on a stream, set one after the other. Their events end with the object.

    Parameters
    ----------
    count : int
        How many there will be.
    """

    def __init__(self, count: int) -> None:
        cuda = cupy().cuda
        self._runtime = cuda.runtime
        self._events = [cuda.Event() for _ in range(count)]

    def set(self, index: int, stream: int) -> None:
        """Put a point after all work that is on the stream so far. Does not block the host."""
        self._runtime.eventRecord(self._events[index].ptr, stream)

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds from each point to the next, once the last has come.

        Returns
        -------
        ndarray of float64, shape (count - 1,)
        """
        elapsed = self._runtime.eventElapsedTime
        between = zip(self._events[:-1], self._events[1:], strict=True)
        return np.array([elapsed(start.ptr, end.ptr) for start, end in between]) * 1e-3
