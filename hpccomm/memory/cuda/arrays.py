"""Arrays in device memory: views of any library's, arrays at an address, and their folds.

`hpccomm.memory.views` makes the views; lanes and dispatches read them.

A fold is CuPy's function of the reduction: one kernel with one rounded operation for each pair of contributions. Folds
that need more (float32 for narrower floats, averages of integers, the user's functions, the order of ranks) are done on
the host. All work goes to CuPy's current stream, and nothing blocks. `hpccomm.calls.on_device` folds by it.
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import cupy, unavailable
from hpccomm.memory.folding import UFUNC
from hpccomm.memory.foreign import TORCH_ONLY, AddressedBytes, check_tensor, is_tensor
from hpccomm.reductions import Op, ReduceOp, accumulator

Queue = tuple[int, object]
"""A stream: its number, and an object that keeps it alive. If that is None, it may end at any time."""

HOST, CUPY, TORCH, INTERFACE, DLPACK, FOREIGN = range(6)
"""Kinds of arrays. If a class is `FOREIGN`, the kind of each of its objects is found out."""

_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13
"""CUDA's memory, in dlpack.h's numbers. The host can also read managed memory."""

_kinds: dict[type, int] = {np.ndarray: HOST, type(None): HOST}
"""The kind of each class met so far."""

_torch_dtypes: dict[object, DType] = {}


class DeviceArray(NamedTuple):
    """An array in device memory.

    Attributes
    ----------
    pointer : int
        Address of the first element; any number for an empty array.
    dtype : dtype
        NumPy's dtype of its elements.
    shape : tuple of int
        Extents.
    contiguous : bool
        Whether it is C-contiguous.
    writable : bool
        Whether it may be written.
    device : int
        Its CUDA device.
    kind : int
        The protocol of the user's object: `CUPY`, `TORCH`, `INTERFACE` or `DLPACK`.
    """

    pointer: int
    dtype: DType
    shape: tuple[int, ...]
    contiguous: bool
    writable: bool
    device: int
    kind: int = CUPY

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize


def on_device(x: object) -> bool:
    """Return whether `x` lies in device memory. Sends nothing, copies nothing."""
    kind = kind_of(x)
    return kind != HOST and (kind != TORCH or bool(x.is_cuda))  # type: ignore[attr-defined]  # a tensor


def kind_of(x: object) -> int:
    """Return the kind of `x`: `TORCH` for a tensor anywhere; `HOST` for anything else that is on no device."""
    kind = _kinds.get(x.__class__)
    if kind is None:
        kind = _kinds[x.__class__] = _kind_of_class(x)
    return _kind_of_object(x) if kind == FOREIGN else kind


def _kind_of_class(x: object) -> int:
    cls = x.__class__
    if isinstance(x, np.ndarray):
        return HOST
    if cls.__module__.partition(".")[0] == "cupy" and hasattr(cls, "__cuda_array_interface__"):
        return CUPY
    return TORCH if is_tensor(x) else FOREIGN


def _kind_of_object(x: Any) -> int:
    """Return the kind of one object: a class may have arrays in either memory, as JAX's has."""
    interface = getattr(x, "__cuda_array_interface__", None)
    where = getattr(x, "__dlpack_device__", None)
    if where is None:
        return HOST if interface is None else INTERFACE
    try:
        memory = where()[0]
    except Exception:  # noqa: BLE001 (what another library raises is an error where its memory is looked for)
        return HOST
    if memory != _DLPACK_CUDA and (memory != _DLPACK_MANAGED or unavailable()):
        return HOST
    # Without a stream, the interface leaves waiting for the array's contents to its user; DLPack orders
    # the streams.
    return DLPACK if interface is None or interface.get("stream") is None else INTERFACE


def device_view(x: Any, name: str) -> DeviceArray | None:
    """Return a view of an array in device memory, never a copy; None for any other array.

    Parameters
    ----------
    x : object
        Any object.
    name : str
        The argument's name, for messages.

    Raises
    ------
    UsageError
        If it cannot be shared.
    BackendUnavailable
        If the view needs CuPy, and CuPy cannot be used here.
    """
    kind = kind_of(x)
    if kind == HOST:
        return None
    if kind == TORCH:
        return _tensor(x, name) if x.is_cuda else None
    if kind == INTERFACE:
        return _interface(x, name)
    array = x if kind == CUPY else cupy().from_dlpack(x)
    data = array.data
    return DeviceArray(
        data.ptr,
        array.dtype,
        array.shape,
        array._c_contiguous,  # noqa: SLF001 (array.flags takes five times as long)
        kind == CUPY or _lent_for_writing(x),
        data.device_id,
        kind,
    )


class _Versioned(ctypes.Structure):
    """The beginning of DLManagedTensorVersioned of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


_DLPACK_READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""

_address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _lent_for_writing(x: Any) -> bool:
    """Return whether the owner of an array that DLPack shares lets others write to it.

    Before its version 1, DLPack says nothing of this. JAX has no later version, and its arrays never change.
    """
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        return not interface["data"][1]
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
        address = _address_in(capsule, b"dltensor_versioned")
    except (TypeError, ValueError, BufferError):
        return False
    return not _Versioned.from_address(address).flags & _DLPACK_READ_ONLY


def _tensor(x: Any, name: str) -> DeviceArray:
    check_tensor(x, name)
    dtype = _torch_dtypes.get(x.dtype)
    if dtype is None:
        dtype = _torch_dtypes[x.dtype] = _torch_dtype(x, name)
    return DeviceArray(
        x.data_ptr(), dtype, tuple(x.shape), x.is_contiguous(), True, x.get_device(), TORCH
    )


def _torch_dtype(x: Any, name: str) -> DType:
    word = str(x.dtype)
    try:
        return TORCH_ONLY[word] if word in TORCH_ONLY else np.dtype(word.removeprefix("torch."))
    except TypeError:
        raise UsageError(
            f"{name} has dtype {x.dtype}, which NumPy lacks; give one of NumPy's"
        ) from None


def _interface(x: Any, name: str) -> DeviceArray:
    interface = x.__cuda_array_interface__
    lacking = [key for key in ("shape", "typestr", "data") if key not in interface]
    if lacking:
        raise UsageError(
            f"{name}.__cuda_array_interface__ has no {' and no '.join(map(repr, lacking))}; "
            "give an array with a complete interface"
        )
    if interface.get("mask") is not None:
        raise UsageError(f"{name} has a mask, which would be lost; give the array without it")
    pointer, read_only = interface["data"]
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    contiguous = strides is None or _c_contiguous(shape, tuple(strides), dtype)
    device = cupy().cuda.runtime.pointerGetAttributes(pointer).device if pointer else -1
    return DeviceArray(pointer, dtype, shape, contiguous, not read_only, device, INTERFACE)


def _c_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> bool:
    # NumPy tells by the strides, and reads no element.
    return as_strided(np.empty(1, dtype), shape, strides).flags.c_contiguous


class DeviceBytes(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Bytes of device memory: an address and a length for MPI. The host never reads them.

    CUDA copies host memory that is assigned to it. A peer's registered host array arrives this way.
    """

    def __setitem__(self, where: Any, value: Any) -> None:
        target = self[where]
        runtime = cupy().cuda.runtime
        destination, here = target.ctypes.data, value.ctypes.data
        runtime.memcpy(destination, here, target.nbytes, runtime.memcpyHostToDevice)


def aliased(pointer: int, nbytes: int, owner: object = None) -> NDArray[np.uint8]:
    """Return `nbytes` bytes at an address as an array, which keeps `owner` alive.

    The host must not read the array if it is device memory.
    """
    if not nbytes:
        return np.empty(0, np.uint8)
    return AddressedBytes(pointer, nbytes, owner).array()


def landing(pointer: int, nbytes: int) -> NDArray[np.uint8]:
    """Return the same array for a message that may come from a peer's registered host memory."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return aliased(pointer, nbytes).view(DeviceBytes)


def wrapped(pointer: int, count: int, dtype: DType, device: int, owner: object = None) -> Any:
    """Return a 1-D CuPy array over `count` elements at `pointer`; `owner` lives as long as it."""
    module = cupy()
    memory = module.cuda.UnownedMemory(pointer, count * dtype.itemsize, owner, device)
    return module.ndarray((count,), dtype, module.cuda.MemoryPointer(memory, 0))


def empty(shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a new CuPy array of any dtype whose elements are plain bytes, on CuPy's current stream."""
    module = cupy()
    # CuPy checks the dtype of a new array against its kernels, but not that of an array over memory.
    memory = module.empty(prod(shape) * dtype.itemsize, np.uint8)
    return module.ndarray(shape, dtype, memory.data)


def empty_like_kind(x: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a new device array of the kind of `x`: a PyTorch tensor for one, else a CuPy array."""
    if _kinds[x.__class__] == TORCH:
        return x.new_empty(shape)
    return empty(shape, dtype)


def folds(op: Op, dtype: DType) -> bool:
    """Return whether `DeviceFolder` can fold by a reduction in a dtype."""
    if not isinstance(op, ReduceOp) or op not in UFUNC or accumulator(op, dtype) != dtype:
        return False
    return dtypes.is_reducible(dtype) and (op is not ReduceOp.AVG or dtypes.is_float(dtype))


class DeviceFolder:
    """Folds contributions in any order: all of its reductions are commutative.

    Parameters
    ----------
    op : ReduceOp
        The reduction.
    dtype : dtype
        Type of contributions and results, for which `folds` is true.
    device : int
        CUDA device of all arrays.
    average_over : int
        If not 0, the divisor of a final sum.
    """

    __slots__ = ("_average_over", "_device", "_dtype", "_ufunc")

    def __init__(self, op: ReduceOp, dtype: DType, device: int, average_over: int = 0) -> None:
        self._ufunc = getattr(cupy(), UFUNC[op].__name__)
        self._dtype = dtype
        self._device = device
        self._average_over = average_over

    def __call__(self, sources: Sequence[int], target: int, count: int, final: bool = True) -> None:
        """Fold `sources` into `target`.

        Parameters
        ----------
        sources : sequence of int
            Addresses of the contributions, at least one. One of them may be `target` itself.
        target : int
            Address of the result.
        count : int
            Elements of each array.
        final : bool
            Whether this is the last fold, so that an average divides.
        """
        if not count:
            return
        out = wrapped(target, count, self._dtype, self._device)
        # CuPy takes two objects for arrays that overlap. A contribution in the target is used before it is overwritten.
        left, *rest = (
            out if source == target else wrapped(source, count, self._dtype, self._device)
            for source in sorted(sources, key=target.__ne__)
        )
        for source in rest:
            self._ufunc(left, source, out=out)
            left = out
        if left is not out:
            cupy().copyto(out, left)
        if self._average_over and final:
            cupy().true_divide(out, self._dtype.type(self._average_over), out=out)
