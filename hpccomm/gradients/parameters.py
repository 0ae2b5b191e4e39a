"""The parameters of a model as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError

Named = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A model: its parameters by name, or pairs of name and array, in the order of the forward pass."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What the ranks must agree on about one parameter.

    Attributes
    ----------
    name : str
        Unique in the model.
    shape : tuple of int
        Of the parameter and of its gradient.
    dtype : dtype
        Of both: a real floating type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {self.shape}"


def host_view(x: object, what: str) -> NDArray[Any]:
    """Return an array in host memory as a NumPy array over the same memory. Local.

    Parameters
    ----------
    x : object
        An ndarray, a memoryview, or an object with DLPack.
    what : str
        What it is, for messages.

    Raises
    ------
    UsageError
        If it is no such array, or lies on a device.
    """
    if type(x) is np.ndarray:
        return x
    if hasattr(x, "__cuda_array_interface__"):
        raise UsageError(f"{what} lies on a device; gradients are synchronised in host memory")
    if isinstance(x, np.ma.MaskedArray):
        raise UsageError(f"{what} is a masked array, whose mask would be lost; give its data")
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray)
    if isinstance(x, bytearray | memoryview):
        return np.asarray(memoryview(x))
    if not hasattr(x, "__dlpack__"):
        raise UsageError(f"{what} is a {type(x).__name__}; give an array in host memory")
    if getattr(x, "requires_grad", False):  # a PyTorch parameter; its values are what is wanted
        x = x.detach()  # type: ignore[attr-defined]  # as all that have this attribute
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{what} cannot be shared by DLPack: {error}") from error


def read(parameters: Named) -> dict[Parameter, NDArray[Any]]:
    """Return the parameters in their order, each with a NumPy array over its memory. Local.

    Parameters
    ----------
    parameters : mapping or iterable of (str, array)
        Arrays in host memory: NumPy's, or others that share theirs, such as PyTorch CPU tensors.

    Raises
    ------
    UsageError
        If a name is empty, no string or there twice, or if an array is none in host memory.
    UnsupportedDtype
        If an array has no real floating dtype.
    """
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    names: set[str] = set()
    found: dict[Parameter, NDArray[Any]] = {}
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UsageError(f"parameter {number} is no pair of name and array; give (name, array)")
        name, array = pair
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"parameter {number} has the name {name!r}; give a string that is not empty"
            )
        if name in names:
            raise UsageError(
                f"parameter {name!r} is there twice; give each parameter a name of its own"
            )
        names.add(name)
        view = host_view(array, f"parameter {name!r}")
        if not dtypes.is_float(view.dtype) or not dtypes.is_native(view.dtype):
            raise UnsupportedDtype(
                f"parameter {name!r} has dtype {view.dtype}; gradients are real floats in the machine's "
                "byte order: leave the parameter out, or convert it"
            )
        found[Parameter(name, view.shape, view.dtype)] = view
    return found
