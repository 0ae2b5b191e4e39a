"""Points on a stream between which CUDA measures time."""

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.cuda.library import cupy


class Marks:
    """Points on a stream, set one after the other. A context manager, which ends its events.

    Parameters
    ----------
    count : int
        How many there will be.
    """

    def __init__(self, count: int) -> None:
        self._runtime = cupy().cuda.runtime
        create, default = self._runtime.eventCreateWithFlags, self._runtime.eventDefault
        self._events: list[int] = []
        try:
            for _ in range(count):
                self._events.append(create(default))
        except BaseException:
            self._drop()
            raise

    def set(self, index: int, stream: int) -> None:
        """Put a point after all work that is on the stream so far. Does not block the host."""
        self._runtime.eventRecord(self._events[index], stream)

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds from each point to the next, once the last has come.

        Returns
        -------
        ndarray of float64, shape (count - 1,)
        """
        elapsed = self._runtime.eventElapsedTime
        between = zip(self._events[:-1], self._events[1:], strict=True)
        return np.array([elapsed(start, end) for start, end in between]) * 1e-3

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._drop()

    def _drop(self) -> None:
        for event in self._events:
            self._runtime.eventDestroy(event)
        self._events.clear()
