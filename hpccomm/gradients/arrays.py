"""Arrays of users: in host memory, or CuPy's on a device."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import UsageError
from hpccomm.memory.foreign import host_array


def host_view(x: object, what: str) -> NDArray[Any]:
    """Return an array in host memory as a NumPy array over the same memory, in any layout. Local.

    Parameters
    ----------
    x : object
        An ndarray, a memoryview, or an object with DLPack. What has its own gradient, such as a PyTorch
        parameter, stands for its values.
    what : str
        What it is, for messages.

    Raises
    ------
    UsageError
        If it is no such array, or lies on a device.
    """
    if type(x) is np.ndarray:
        return x
    if is_on_device(x):
        raise UsageError(f"{what} lies on a device; give an array in host memory")
    if not isinstance(x, np.ndarray | bytearray | memoryview) and not hasattr(x, "__dlpack__"):
        raise UsageError(f"{what} is a {type(x).__name__}; give an array in host memory")
    if getattr(x, "requires_grad", False):
        x = x.detach()  # type: ignore[attr-defined]  # as all that have this attribute
    return host_array(x, what)


def is_on_device(x: object) -> bool:
    """Return whether an array lies in device memory. Local."""
    return hasattr(x, "__cuda_array_interface__")


def device_view(x: Any, what: str) -> NDArray[Any]:
    """Return a CuPy array as it is. Local.

    It is typed as a NumPy array: only operators, methods and ufuncs that both have are used.

    Raises
    ------
    UsageError
        If it is another kind of array.
    """
    if not is_on_device(x) or not hasattr(x, "__array_ufunc__"):
        raise UsageError(
            f"{what} is a {type(x).__name__}; give a CuPy array: cupy.asarray() shares an array's memory"
        )
    array: NDArray[Any] = x
    return array


def address(x: Any) -> int:
    """Return where an array's first element lies. Local."""
    where = x.__cuda_array_interface__["data"][0] if is_on_device(x) else x.ctypes.data
    return int(where)


def overlap(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Return whether two arrays on one side may share memory. Local. `y` is C-contiguous."""
    if not is_on_device(x):
        shared: bool = np.may_share_memory(x, y)
        return shared
    spans = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)] if x.size else []
    first = address(x) + sum(each for each in spans if each < 0)
    end = address(x) + sum(each for each in spans if each > 0) + x.itemsize * bool(x.size)
    return bool(first < address(y) + y.nbytes and address(y) < end)


def on_host(x: Any) -> NDArray[Any]:
    """Return an array's content in host memory. Local; blocks for device arrays."""
    content: NDArray[Any] = x.get() if is_on_device(x) else x
    return content
