"""The parameters of a model as data, and the buckets of their gradients. All of this package uses it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.gradients.arrays import Array, is_on_device, view

Named = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A model: its parameters by name, or pairs of name and array, in the order of the forward pass."""


class BucketKind(NamedTuple):
    """The common properties of a bucket's gradients.

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
    """The properties of one parameter on which ranks must agree.

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
    def kind(self) -> BucketKind:
        """The common properties of a bucket's gradients."""
        return BucketKind(self.dtype, self.on_device)

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


Arrays = dict[Parameter, Array]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The gradients of one call.

    Attributes
    ----------
    index : int
        Buckets are reduced in this order.
    dtype : dtype
        Of all its gradients.
    parameters : tuple of Parameter
        Whose gradients lie in it, in this order.
    offsets : tuple of int
        The first element of each gradient.
    length : int
        Elements of gradients and the padding between them.
    """

    index: int
    dtype: DType
    parameters: tuple[Parameter, ...]
    offsets: tuple[int, ...]
    length: int

    @property
    def kind(self) -> BucketKind:
        """The common properties of its gradients."""
        return self.parameters[0].kind

    @property
    def nbytes(self) -> int:
        """Bytes of gradients and padding."""
        return self.length * self.dtype.itemsize

    def views(self, memory: Array) -> dict[str, Array]:
        """Return the arrays in memory of its length or more, by name and of their parameters' shapes. Local."""
        return {
            each.name: memory[offset : offset + each.size].reshape(each.shape)
            for each, offset in zip(self.parameters, self.offsets, strict=True)
        }

    def __str__(self) -> str:
        first, last = self.parameters[0].name, self.parameters[-1].name
        names = first if first == last else f"{first} to {last}"
        return f"bucket {self.index}: {len(self.parameters)} of {self.dtype}, {self.nbytes} bytes, {names}"


def padding(bucket: Bucket, length: int) -> NDArray[np.bool_]:
    """Return which of `length` elements lie between the arrays of a bucket, or behind them. Local."""
    between = np.ones(length, np.bool_)
    for place in bucket.views(between).values():
        place[...] = False
    return between


def read(parameters: Named, *, devices: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """Read a model. Local.

    Parameters
    ----------
    parameters : mapping or iterable of (str, array)
        Arrays in host memory: NumPy's, or others that share theirs, such as PyTorch CPU tensors.
    devices : bool
        Whether they may also be CuPy arrays.

    Returns
    -------
    dict of Parameter to array
        The parameters in their order, each with an array over its memory.
    dict of str to object
        The parameters that have gradients of their own in ``grad``, as PyTorch's have, by name.

    Raises
    ------
    UsageError
        Without parameters, or if a name is empty, not a string or used twice, or an array is of
        another kind.
    UnsupportedDtype
        If an array's dtype is not a real float.
    """
    arrays: dict[str, tuple[Parameter, Array]] = {}
    owners: dict[str, Any] = {}
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise UsageError(f"parameter {number} is not a pair; give (name, array)")
        name, array = pair
        if not isinstance(name, str) or not name:
            raise UsageError(f"parameter {number} has the name {name!r}; give a non-empty string")
        if name in arrays:
            raise UsageError(f"parameter {name!r} is used twice; give each parameter its own name")
        on_device = devices and is_on_device(array)
        own = view(array, f"parameter {name!r}", device=on_device)
        if not dtypes.is_float(own.dtype) or not dtypes.is_native(own.dtype):
            raise UnsupportedDtype(
                f"parameter {name!r} has dtype {own.dtype}; gradients are real floats in the machine's "
                "byte order: leave the parameter out, or convert it"
            )
        arrays[name] = Parameter(name, own.shape, own.dtype, on_device), own
        if getattr(array, "requires_grad", False):
            owners[name] = array
    if not arrays:
        raise UsageError("the model has no parameters; give at least one")
    return dict(arrays.values()), owners


def check_writable(arrays: Mapping[Parameter, Array], remedy: str) -> None:
    """Raise unless all arrays can be written. Local.

    Raises
    ------
    UsageError
        With the name of a read-only one, and the remedy.
    """
    for each, array in arrays.items():
        if not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"parameter {each.name!r} is read-only, and would be written; {remedy}"
            )
