"""Arrays in registered memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpccomm.communicator.core import Core
from hpccomm.dtypes import is_native
from hpccomm.errors import UsageError
from hpccomm.memory.views import check_dtype
from hpccomm.settings import check_int


class Allocator:
    """Makes arrays in registered memory."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def empty(self, shape: object, dtype: DTypeLike, device: int | None) -> Any:
        """Return an array in registered memory."""
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
