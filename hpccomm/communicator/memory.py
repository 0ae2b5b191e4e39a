"""Arrays in registered memory, which other ranks reach. Used by `Communicator` and `turns`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpccomm.calls.core import Core
from hpccomm.dtypes import REDUCIBLE, is_native
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.memory.views import check_dtype
from hpccomm.settings import check_int


def empty(
    core: Core, shape: int | Sequence[int], dtype: DTypeLike, device: int | None = None
) -> Any:
    """Return an array in registered memory; see `Communicator.empty`."""
    extents, kind = _shape(shape), _dtype(dtype)
    if device is not None:
        lane = core.lanes.device
        return lane.empty_on(check_int("device", device), extents, kind)
    with core.calls.one_call():
        return core.lanes.host.empty(extents, kind)


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
    if dtype is None:  # NumPy takes it for float64
        raise UsageError("dtype is None; give a dtype, such as numpy.float32")
    try:
        kind: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        known = [each.name for each in REDUCIBLE]
        advice = did_you_mean(str(dtype), known, "give one, such as numpy.float32")
        raise UsageError(f"dtype is {dtype!r}: {error}; {advice}") from None
    if not is_native(kind):
        raise UsageError(f"dtype is {dtype!r}; give native byte order: dtype.newbyteorder('=')")
    check_dtype("the array", kind)
    return kind
