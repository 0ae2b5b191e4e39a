"""Arrays in host memory, or CuPy's on a device, and the dtype of computations with them.

All of this package computes through it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import FLOAT32, DType, is_narrow
from hpccomm.errors import UsageError
from hpccomm.memory.foreign import host_array

Array = NDArray[Any]


PASS = 1 << 16
"""Elements of temporary arrays, about: they stay in the cache."""


def passes(size: int, step: int = PASS) -> list[slice]:
    """Return slices of `step` elements, together all of an array of `size` elements."""
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def is_on_device(x: object) -> bool:
    """Return whether an array lies in device memory. Local."""
    return hasattr(x, "__cuda_array_interface__")


def view(x: Any, what: str, *, device: bool = False) -> Array:
    """Return an array over the memory of another one, in any layout. Local.

    A CuPy array is returned as it is, and typed as a NumPy array: only operators, methods and ufuncs that both
    have are used.

    Parameters
    ----------
    x : object
        An array. A PyTorch parameter that has its own gradient stands for its values.
    what : str
        Its name in messages.
    device : bool
        Whether it must be a CuPy array. Otherwise it must lie in host memory.

    Raises
    ------
    UsageError
        If it is not such an array.
    """
    if type(x) is np.ndarray and not device:
        return x
    if device:
        if not is_on_device(x) or not hasattr(x, "__array_ufunc__"):
            raise UsageError(
                f"{what} is a {type(x).__name__}; give a CuPy array: cupy.asarray() shares an array's memory"
            )
        array: Array = x
        return array
    if is_on_device(x):
        raise UsageError(f"{what} lies on a device; give an array in host memory")
    if isinstance(x, np.generic | bytes):
        raise UsageError(f"{what} is a {type(x).__name__}, which cannot be written; give an array")
    return host_array(x.detach() if getattr(x, "requires_grad", False) else x, what)


def address(x: Any) -> int:
    """Return the address of an array's first element. Local."""
    return int(x.__cuda_array_interface__["data"][0] if is_on_device(x) else x.ctypes.data)


def overlap(x: Array, y: Array) -> bool:
    """Return whether two arrays on one side may share memory. Local. `y` is C-contiguous."""
    if not is_on_device(x):
        return bool(np.may_share_memory(x, y))
    spans = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)] if x.size else []
    first = address(x) + sum(each for each in spans if each < 0)
    end = address(x) + sum(each for each in spans if each > 0) + x.itemsize * bool(x.size)
    return bool(first < address(y) + y.nbytes and address(y) < end)


def on_host(x: Any) -> Array:
    """Return an array's content in host memory. Local; blocks for device arrays."""
    content: Array = x.get() if is_on_device(x) else x
    return content


def wide(dtype: DType) -> DType:
    """Return the dtype in which gradients are summed: float32 for narrow floats, else their own."""
    return FLOAT32 if is_narrow(dtype) else dtype


def is_finite(x: Array) -> bool:
    """Return whether no element is NaN or infinite, by one pass without a temporary array."""
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(np.add.reduce(x, axis=None, dtype=np.float64)):
            return True  # infinities of both signs give NaN
    return x.dtype == np.float64 and bool(np.isfinite(x).all())  # whose sum may overflow


def drop_nonfinite(x: Array) -> bool:
    """Set elements that are NaN or infinite to 0, and return whether there were any."""
    if is_finite(x):
        return False
    x[~np.isfinite(x)] = 0
    return True
