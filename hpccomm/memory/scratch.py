"""Memory that calls use one after the other: runners, windows and shared memory take it here."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType

KEPT_BYTES = 64 << 20
"""More is given back after the call."""


class ScratchBuffer:
    """Memory for what a call needs besides its arrays; calls have it one after the other.

    Parameters
    ----------
    least : int
        Bytes that are allocated at least, where sizes vary.
    """

    __slots__ = ("_bytes", "_least", "_taken")

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._bytes = np.empty(0, np.uint8)
        self._taken = self._bytes

    def take(self, count: int, dtype: DType) -> NDArray[Any]:
        """Return `count` elements, which the next call has as well."""
        taken = self._taken
        if taken.size == count and taken.dtype == dtype:
            return taken
        nbytes = count * dtype.itemsize
        if nbytes > KEPT_BYTES:
            return np.empty(count, dtype)
        if nbytes > self._bytes.size:
            self._bytes = np.empty(max(nbytes, self._least), np.uint8)
        self._taken = taken = self._bytes[:nbytes].view(dtype)
        return taken
