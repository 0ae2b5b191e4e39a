"""DLPack, as CuPy takes and gives it."""

import ctypes
from typing import Any

import numpy as np

from cupy._arrays import ndarray
from cupy.cuda import get_current_stream
from cupy.cuda.memory import MemoryPointer, UnownedMemory


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_exported: dict[int, Any] = {}


@_Deleter
def _delete(managed: int) -> None:
    _exported.pop(managed, None)


_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _dropped(capsule: int) -> None:
    """Let go of what no consumer has taken."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is(capsule, name):
            _delete(_of(capsule, name))


_destructor = ctypes.cast(_dropped, ctypes.c_void_p)


def export(x: ndarray, *, versioned: bool = False) -> Any:
    """Return a capsule with an array, which lives until the consumer lets go of it."""
    shape = (ctypes.c_int64 * max(x.ndim, 1))(*x.shape)
    strides = (ctypes.c_int64 * max(x.ndim, 1))(*(s // x.itemsize for s in x.strides))
    code = 4 if x.dtype.name == "bfloat16" else _CODES[x.dtype.kind]
    tensor = _Tensor(
        x.data.ptr,
        _Device(2, x.data.device_id),
        x.ndim,
        _Type(code, x.itemsize * 8, 1),
        ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    delete = ctypes.cast(_delete, ctypes.c_void_p)
    managed: ctypes.Structure = _Managed(tensor, None, delete)
    if versioned:  # CuPy 14.2, _core/dlpack.pyx: no flag, as its arrays may be written
        managed = _Versioned((1, 0), None, delete, 0, tensor)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, x)
    return _new(address, b"dltensor_versioned" if versioned else b"dltensor", _destructor)


class _Owner:
    """Holds what a producer lent, until it is let go of."""

    def __init__(self, managed: _Managed) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.deleter:
            _Deleter(self._managed.deleter)(ctypes.addressof(self._managed))


def from_dlpack(array: Any, device: Any = None, copy: Any = None) -> ndarray:
    kind, number = array.__dlpack_device__()
    if kind not in (2, 13):
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    # CuPy 14.2, _core/dlpack.pyx: the producer orders this stream behind what makes the array.
    capsule = array.__dlpack__(stream=get_current_stream(number).ptr or 1)
    managed = _Managed.from_address(_pointer(capsule, b"dltensor"))
    _rename(capsule, b"used_dltensor")
    tensor = managed.tensor
    letter = next((k for k, code in _CODES.items() if code == tensor.dtype.code), None)
    if tensor.dtype.code == 4:
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    elif letter is None:
        raise TypeError(f"Unsupported dtype code {tensor.dtype.code}")
    else:
        dtype = np.dtype("?" if letter == "b" else f"{letter}{tensor.dtype.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = None
    if tensor.strides:
        strides = tuple(s * dtype.itemsize for s in tensor.strides[: tensor.ndim])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = UnownedMemory((tensor.data or 0) + tensor.byte_offset, size, _Owner(managed), number)
    return ndarray(shape, dtype, MemoryPointer(memory, 0), strides)
