"""NumPy arrays over host memory that is not NumPy's: at an address, or of another library's array.

Objects that NumPy cannot view are refused with the line of code that makes an array of them.
`views`, `shared`, `hpccomm.memory.cuda.arrays` and `hpccomm.gradients.parameters` use it.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import BackendUnavailable, HpccommError, UsageError

Array = NDArray[Any]

_HOST_MEMORY = (1, 3, 11, 13)
"""The device types of dlpack.h whose memory the host can read: plain, pinned by CUDA or ROCm, managed."""

TORCH_ONLY: dict[str, DType] = {
    "torch.bfloat16": dtypes.BFLOAT16,
    "torch.float8_e4m3fn": dtypes.FLOAT8_E4M3FN,
    "torch.float8_e5m2": dtypes.FLOAT8_E5M2,
}
"""PyTorch's names of dtypes that NumPy itself lacks."""


_OBJECTS = "the calls whose names end in _object, such as send_object"


class AddressedBytes:
    """Memory from which NumPy makes an array of bytes without reading it.

    This object is the base of that array, and lives while views of it exist.

    Parameters
    ----------
    pointer : int
        Address of the memory.
    nbytes : int
        Bytes of the memory, at least 1.
    owner : object
        An object that must live as long.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_owner")

    def __init__(self, pointer: int, nbytes: int, owner: object = None) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (pointer, False),
        }

    def array(self) -> NDArray[np.uint8]:
        """Return the array."""
        return np.asarray(self)


def host_array(x: object, name: str) -> Array:
    """Return a NumPy array over the host memory of an object. Only a scalar is copied, into a read-only array.

    Raises
    ------
    UsageError
        If `x` is not an array, or cannot be shared. The message has a line of code that makes an array.
    BackendUnavailable
        If `x` lies on a device.
    """
    if isinstance(
        x, np.generic
    ):  # the buffers of some scalars, such as datetime64, do not tell their dtype
        return np.broadcast_to(x, ())  # read-only
    # Subclasses may have other rules for shapes (numpy.matrix), so the view is a plain array.
    array = x.view(np.ndarray) if isinstance(x, np.ndarray) else _foreign(x, name)
    if isinstance(x, np.ma.MaskedArray):
        raise UsageError(
            f"{name} is a masked array, whose mask would be lost; give {_variable(name)}.filled() or .data"
        )
    return array


def _foreign(x: object, name: str) -> Array:
    if class_name(x) == "mpi4py.MPI.InPlaceType":  # it has a buffer too
        raise UsageError(
            f"{name} is MPI.IN_PLACE; give the array: without out= a reduction is in place"
        )
    try:
        try:
            # A bytes or memoryview object reaches NumPy by the buffer protocol, without a copy.
            memory = memoryview(x)  # type: ignore[arg-type]  # tried on any object
        except TypeError:
            if hasattr(x, "__dlpack__"):
                return _from_dlpack(x, name)
        else:
            return np.asarray(memory)
    except HpccommError:
        raise
    except Exception as error:  # any exception of another library
        how = " by DLPack" if is_tensor(x) else ""
        raise UsageError(
            f"{name} ({class_name(x)}) cannot be shared{how}: {str(error).rstrip('.')}"
            + (_advice(x, name) or "; give a NumPy array")
        ) from error
    raise UsageError(
        f"{name} is {_shown(x)}; give a NumPy or CuPy array, or an object with the buffer protocol or DLPack"
        + (_advice(x, name) or f"; a Python object goes by {_OBJECTS}")
    )


def _from_dlpack(x: Any, name: str) -> Array:
    if is_tensor(x):
        check_tensor(x, name)
    # NumPy's DLPack lacks these dtypes.
    lacking = TORCH_ONLY.get(str(getattr(x, "dtype", None)))
    device, _ = x.__dlpack_device__()
    if device not in _HOST_MEMORY:
        raise BackendUnavailable(
            f"{name} lies on a device that is not CUDA's ({class_name(x)}); copy it to the CPU first"
        )
    if lacking is None:
        return np.from_dlpack(x)
    # NumPy's DLPack has no bfloat16 or float8, so their bits are shared.
    torch = sys.modules["torch"]
    bits = x.view(torch.int16 if lacking.itemsize == 2 else torch.uint8)
    return np.from_dlpack(bits).view(lacking)


def _advice(x: object, name: str) -> str:
    """Return advice how to make a NumPy array of an object, as a clause; empty if there is none."""
    of = _variable(name)
    if is_tensor(x):
        known = hasattr(np, str(getattr(x, "dtype", "")).removeprefix("torch."))
        return "" if known else f"; {of}.view(torch.uint8) has its bytes, which can be moved"
    if "Tracer" in type(x).__name__:  # of JAX
        return "; it has no values yet: use hpccomm.jax within jit, vmap and grad"
    if hasattr(x, "toarray"):  # of scipy.sparse
        return f"; {of}.toarray() makes one, or give the data, indices and indptr of {of}.tocsr()"
    if hasattr(x, "contents"):
        line = f"numpy.ctypeslib.as_array({of}, shape)"
    elif isinstance(x, list | tuple) and x and isinstance(x[0], np.ndarray):
        return "; give one array, which has its count and dtype itself"
    elif isinstance(x, list | tuple):
        return f"; numpy.asarray({of}) makes one, or use {_OBJECTS}"
    elif hasattr(x, "__array__"):
        line = f"numpy.asarray({of})"
    else:
        return ""
    return f"; {line} makes a NumPy array of it"


def _variable(name: str) -> str:
    """Return the name of the array for a line of code; ``array`` if the name is a phrase."""
    return "array" if " " in name else name


def is_tensor(x: object) -> bool:
    """Return whether an object is a PyTorch tensor, on any device."""
    cls = x.__class__
    return hasattr(cls, "is_cuda") and hasattr(cls, "data_ptr")


def check_tensor(x: Any, name: str) -> None:
    """Raise unless the memory of a PyTorch tensor holds the tensor's values, which DLPack and pointers do not tell.

    Raises
    ------
    UsageError
        If it does not. The message has a line of code that makes a suitable tensor.
    """
    of = _variable(name)
    if x.requires_grad:
        raise UsageError(
            f"{name} requires grad, and communication is not differentiable; give {of}.detach()"
        )
    if x.layout is not sys.modules["torch"].strided:
        raise UsageError(f"{name} has layout {x.layout}; give a dense tensor: {of}.to_dense()")
    if x.is_neg():
        raise UsageError(f"{name} is a view that negates its values; give {of}.resolve_neg()")
    if x.is_conj():
        raise UsageError(f"{name} is a view that conjugates its values; give {of}.resolve_conj()")
    if x.is_quantized:
        raise UsageError(f"{name} is quantized; give {of}.dequantize(), or {of}.int_repr()")
    if x.numel() and not x.data_ptr():  # zeros that are not stored, fake tensors, freed storage
        stored = x._is_zerotensor()  # noqa: SLF001 (the only way to ask)
        cure = f"{of}.clone()" if stored else "a tensor that has"
        raise UsageError(f"{name} has no memory, and cannot be shared by DLPack; give {cure}")


def class_name(x: object) -> str:
    """Return the class of an object with its module."""
    kind = type(x)
    return f"{kind.__module__}.{kind.__qualname__}"


def _shown(x: object) -> str:
    text = repr(x)
    return text if len(text) <= 60 and "\n" not in text else f"a {class_name(x)}"
