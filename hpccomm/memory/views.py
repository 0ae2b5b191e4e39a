"""Views of arrays of any kind: NumPy arrays over the same memory, or device arrays.

Every call of a communicator begins with views. A `ScratchBuffer` is memory that calls use one after the other. All
packages that handle arrays use this module.
"""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import may_share_memory
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory.cuda import arrays as devices
from hpccomm.memory.cuda.arrays import DeviceArray, on_device
from hpccomm.memory.foreign import class_name, host_array, is_tensor

KEPT_BYTES = 64 << 20
"""Most bytes that a `ScratchBuffer` keeps. More is allocated for a single call."""


class ScratchBuffer:
    """Working memory of calls, which use it one after the other.

    Parameters
    ----------
    least : int
        Least bytes to allocate, for sizes that vary.
    """

    __slots__ = ("_bytes", "_least", "_taken")

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._bytes = np.empty(0, np.uint8)
        self._taken = self._bytes

    def take(self, count: int, dtype: DType) -> NDArray[Any]:
        """Return an array of `count` elements. The next call gets the same memory."""
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


Array = NDArray[Any]
View = Array | DeviceArray
"""A view of an array. Both kinds have ``dtype``, ``shape`` and ``nbytes``."""


def view(x: object, name: str) -> View:
    """Return a view of `x` over the same memory, never a copy.

    Parameters
    ----------
    x : object
        The array. The view of an ndarray, or of an object with the buffer protocol or DLPack (such as a PyTorch CPU
        tensor), is a NumPy array. The view of a CuPy array, a PyTorch CUDA tensor, or an object with
        ``__cuda_array_interface__`` or CUDA DLPack is a device array.
    name : str
        The argument's name, for messages.

    Raises
    ------
    UsageError
        If `x` is not an array, or cannot be shared.
    BackendUnavailable
        If `x` lies on a device of another kind, or the view needs CuPy and CuPy cannot be used.
    """
    if type(x) is np.ndarray:
        return x
    seen = devices.device_view(x, name)
    return host_array(x, name) if seen is None else seen


def host_view(x: object, name: str) -> Array:
    """Return an array in host memory as a NumPy array over the same memory; see `view`.

    Raises
    ------
    UsageError
        If `x` lies on a device.
    """
    if on_device(x):
        raise UsageError(
            f"{name} is a device array ({class_name(x)}), and this call takes arrays in host memory; "
            "copy it to a NumPy array first"
        )
    return x if type(x) is np.ndarray else host_array(x, name)


def contiguous(array: View) -> bool:
    """Return whether an array is C-contiguous."""
    return array.contiguous if isinstance(array, DeviceArray) else array.flags.c_contiguous


def check_layout(array: View, name: str, *, written: bool) -> None:
    """Raise unless `array` is C-contiguous, and writable if it is `written`.

    Raises
    ------
    UsageError
        If it is not. The message has the argument's name and a remedy.
    """
    if isinstance(array, DeviceArray):
        if not array.contiguous:
            raise UsageError(
                f"{name} (shape {array.shape}, on device {array.device}) is not C-contiguous; "
                + _copied(f"cupy.ascontiguousarray({name})", f"{name}[...] = c", written)
                + f" ({name}.contiguous() copies a tensor)"
            )
        if written and not array.writable:
            out = "" if name == "out" else "out, or "
            raise UsageError(
                f"{name} is read-only and would be written; give {out}a copy, which gets the result: "
                f"c = cupy.array({name})"
            )
        return
    flags = array.flags
    if written and not flags.writeable:
        raise UsageError(
            f"{name} is read-only and would be written; give a copy, which gets the result: "
            f"c = {_copies(array, name)[0]}"
        )
    if not flags.c_contiguous:
        copy, back = _copies(array, name)
        raise UsageError(
            f"{name} (shape {array.shape}, strides {array.strides}) is not C-contiguous; "
            + _copied(copy, back, written)
        )


def _copies(array: Array, name: str) -> tuple[str, str]:
    """Return the line that makes a contiguous copy `c`, and the line that copies it back."""
    owner: Any = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    writable, dlpack = array.flags.writeable, type(owner).__name__ == "PyCapsule"
    if isinstance(owner, memoryview) and isinstance(owner.obj, bytes):
        return f"bytearray({name})", ""
    if isinstance(owner, memoryview) or (dlpack and not writable):
        return f"numpy.asarray({name}).copy()", f"numpy.asarray({name})[...] = c"
    if dlpack and "torch" in sys.modules:
        return f"{name}.contiguous()", f"{name}.copy_(c)"
    if dlpack:
        return f"numpy.from_dlpack({name}).copy()", f"numpy.from_dlpack({name})[...] = c"
    if writable:
        return f"numpy.ascontiguousarray({name})", f"{name}[...] = c"
    return (f"{name}.copy()" if array.shape else f"numpy.array({name})"), ""  # of a scalar


def _copied(copy: str, back: str, written: bool) -> str:
    """Return the remedy for an array of another layout: a copy, which is copied back if the call writes to it."""
    if not written:
        return f"give {copy}"
    return f"the call writes to it, so give a copy, c = {copy}, and copy the result back by {back}"


def flat(array: Array) -> Array:
    """Return a C-contiguous array as 1-D, over the same memory."""
    return array.reshape(-1)


def as_bytes(array: Array) -> NDArray[np.uint8]:
    """Return a C-contiguous array's memory as 1-D uint8."""
    return array.reshape(-1).view(np.uint8)


def address(array: View) -> int:
    """Return the address of an array's first element."""
    if isinstance(array, DeviceArray):
        return array.pointer
    try:
        # Six times as fast as the fallback, which read-only arrays, empty arrays and dtypes without a
        # buffer protocol need.
        first = ctypes.c_char.from_buffer(array)  # type: ignore[arg-type, unused-ignore]  # it is a buffer
        return ctypes.addressof(first)
    except (TypeError, ValueError):
        return int(array.__array_interface__["data"][0])


def overlap(a: View, b: View) -> bool:
    """Return whether two C-contiguous arrays share memory. Both are host arrays, or both are device arrays."""
    if isinstance(a, DeviceArray):
        before = a.pointer < b.pointer + b.nbytes and b.pointer < a.pointer + a.nbytes  # type: ignore[union-attr]  # of one kind
        return before and a.nbytes > 0 and b.nbytes > 0
    assert isinstance(b, np.ndarray)
    return may_share_memory(a, b)  # False if one of them is empty


def empty_like_kind(x: object, shape: Sequence[int], dtype: DType) -> Any:
    """Return a new array of the kind of `x`: a PyTorch tensor, a CuPy array or a NumPy array.

    It lies in the same kind of memory as `x`; a device array lies on CuPy's current device and stream.

    Parameters
    ----------
    x : object
        The caller's array.
    shape : sequence of int
        Shape of the new array.
    dtype : dtype
        NumPy dtype of the new array, which is that of `x`.
    """
    if on_device(x):
        return devices.empty_like_kind(x, tuple(shape), dtype)
    new_empty = getattr(x, "new_empty", None)
    if new_empty is not None:
        return new_empty(tuple(shape))
    return np.empty(tuple(shape), dtype)


def like_kind(x: object, array: Array) -> Any:
    """Return a host array as an array of the kind and dtype of `x`; see `empty_like_kind`."""
    if is_tensor(x):
        bits = sys.modules["torch"].from_numpy(array.reshape(-1).view(np.uint8))
        return bits.view(x.dtype).view(array.shape)  # type: ignore[attr-defined]  # of a tensor
    return array


def check_dtype(name: str, dtype: DType) -> None:
    """Raise unless elements of `dtype` can be moved as bytes.

    Raises
    ------
    UnsupportedDtype
        If elements refer to Python objects.
    UsageError
        If elements are not in the machine's byte order.
    """
    if not dtypes.is_movable(dtype):
        raise UnsupportedDtype(
            f"{name} has dtype {dtype}, whose elements are not plain bytes; "
            "use the *_object calls for Python objects; all_gather_object brings those together that are to be reduced"
        )
    if not dtypes.is_native(dtype):
        raise UsageError(
            f"{name} has dtype {dtype}, which is not in this machine's byte order; "
            f"convert it: {name} = {name}.astype({name}.dtype.newbyteorder('='))"
        )
