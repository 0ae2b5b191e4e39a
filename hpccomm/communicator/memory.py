"""Memory that the peers of a node reach."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpccomm.communicator.face import Face
from hpccomm.dtypes import is_native
from hpccomm.errors import UsageError
from hpccomm.memory.views import check_dtype
from hpccomm.settings import check_int


class Allocation(Face):
    """Arrays in registered memory."""

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> Any:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it copy the data only once. It belongs to the process: all
        communicators of the process can use it, and it outlives them. It is freed when its last view is
        gone, on any rank at any time. Its elements are undefined. A forked process sees the same memory,
        not a copy. Local; does not block, except with `device`: then it may wait for work on the device,
        if it frees memory that is no longer used.

        If ranks share no memory (one rank per node, or ``shared_memory="off"``), the result is an ordinary
        array. This is logged once.

        Parameters
        ----------
        shape : int or sequence of int
            Of the array. Ranks may pass different shapes, and not all ranks need to call.
        dtype : dtype
            Of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None is host memory. The number of this rank's device gives device memory from NCCL's allocator,
            registered with this communicator. Calls on it, and on views of it, may need no intermediate
            copies. If the library has no such memory, the result is an ordinary CuPy array, which
            `explain` reports.

        Returns
        -------
        ndarray or cupy.ndarray, of `shape` and `dtype`
            C-contiguous; on the host it begins at a cache line.

        Raises
        ------
        UsageError
            If an argument does not fit.
        MemoryError
            If there is no such memory.
        """
        extents, kind = _shape(shape), _dtype(dtype)
        if device is not None:
            lane = self._core.lanes.device
            return lane.empty_on(check_int("device", device), extents, kind)
        with self._core.calls.one_call():
            return self._core.lanes.host.empty(extents, kind)


def _shape(shape: object) -> tuple[int, ...]:
    if isinstance(shape, str | bytes):
        raise UsageError(f"shape is {shape!r}; give an integer or a tuple of them")
    if not isinstance(shape, Sequence | np.ndarray):
        shape = (shape,)
    extents = tuple(check_int("shape", extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise UsageError(f"shape is {extents}; give extents of at least 0")
    return extents


def _dtype(dtype: DTypeLike) -> np.dtype[np.generic]:
    if dtype is None:  # which NumPy takes for float64
        raise UsageError("dtype is None; give a dtype, such as numpy.float32")
    try:
        kind: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"dtype is {dtype!r}: {error}; give one, such as numpy.float32") from None
    if not is_native(kind):
        raise UsageError(f"dtype is {dtype!r}; give native byte order: dtype.newbyteorder('=')")
    check_dtype("the array", kind)
    return kind
