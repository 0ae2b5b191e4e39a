"""The parameters of a model as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.gradients.arrays import device_view, host_view, is_on_device

Named = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A model: its parameters by name, or pairs of name and array, in the order of the forward pass."""


class Kind(NamedTuple):
    """What the gradients of a bucket have in common.

    Attributes
    ----------
    dtype : dtype
        Of their elements.
    on_device : bool
        Whether they lie in the memory of a device.
    """

    dtype: DType
    on_device: bool


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
    on_device : bool
        Whether both lie in the memory of a device.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    on_device: bool = False

    @property
    def kind(self) -> Kind:
        """What the gradients of a bucket have in common."""
        return Kind(self.dtype, self.on_device)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} {self.described}"

    @property
    def described(self) -> str:
        """All but the name as a text."""
        return f"{self.dtype} {self.shape}{' on a device' * self.on_device}"


def read(parameters: Named, *, devices: bool = False) -> dict[Parameter, NDArray[Any]]:
    """Return the parameters in their order, each with an array over its memory. Local.

    Parameters
    ----------
    parameters : mapping or iterable of (str, array)
        Arrays in host memory: NumPy's, or others that share theirs, such as PyTorch CPU tensors.
    devices : bool
        Whether they may also be CuPy arrays.

    Raises
    ------
    UsageError
        If a name is empty, no string or there twice, or if an array is of none of these kinds.
    UnsupportedDtype
        If an array has no real floating dtype.
    """
    names: set[str] = set()
    found: dict[Parameter, NDArray[Any]] = {}
    for number, pair in enumerate(pairs_of(parameters)):
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
        on_device = devices and is_on_device(array)
        view = (device_view if on_device else host_view)(array, f"parameter {name!r}")
        if not dtypes.is_float(view.dtype) or not dtypes.is_native(view.dtype):
            raise UnsupportedDtype(
                f"parameter {name!r} has dtype {view.dtype}; gradients are real floats in the machine's "
                "byte order: leave the parameter out, or convert it"
            )
        found[Parameter(name, view.shape, view.dtype, on_device)] = view
    return found


def pairs_of(parameters: Named) -> list[tuple[str, Any]]:
    """Return a model as pairs of name and array, whichever way it was given. Local; not checked."""
    return list(parameters.items() if isinstance(parameters, Mapping) else parameters)


def owners(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the parameters that have gradients of their own, in ``grad``, as PyTorch's have. Local."""
    return {name: x for name, x in pairs if getattr(x, "requires_grad", False)}


def check_writable(arrays: Mapping[Parameter, NDArray[Any]]) -> None:
    """Raise unless all arrays can be written. Local.

    Raises
    ------
    UsageError
        With the name of one that cannot.
    """
    for parameter, array in arrays.items():
        if not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"parameter {parameter.name!r} is read-only and would be broadcast into; give a copy of it"
            )
