"""The parameters of a model as data, the buckets of their gradients, and the arrays of both.

Arrays lie in host memory, or are CuPy arrays on a device.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32, DType, is_narrow
from hpccomm.errors import UnsupportedDtype, UsageError, did_you_mean
from hpccomm.memory.foreign import host_array

Named = Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A model: its parameters by name, or pairs of name and array, in the order of the forward pass."""

Array = NDArray[Any]

PASS = 1 << 16
"""About the number of elements of temporary arrays, so that they stay in the cache."""


DEVICE_PASS = 1 << 24
"""Number of elements that are widened at once on a device. Each pass takes a few launches there."""


def passes(size: int, step: int = PASS) -> list[slice]:
    """Return slices of at most `step` elements, which together cover an array of `size` elements."""
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def is_on_device(x: object) -> bool:
    """Return whether an array lies in device memory. Local."""
    return hasattr(x, "__cuda_array_interface__")


def parts(x: Array) -> list[Array]:
    """Return the flat parts of a C-contiguous array, each small enough to be widened. Local."""
    flat = x.reshape(-1)
    return [flat[part] for part in passes(flat.size, DEVICE_PASS if is_on_device(x) else PASS)]


def view(x: Any, what: str, *, device: bool = False) -> Array:
    """Return an array over the memory of another one, in any layout. Local.

    A CuPy array is returned as it is. Its type here is that of NumPy's arrays: callers use only operators, methods and
    ufuncs that both have.

    Parameters
    ----------
    x : object
        An array. A PyTorch parameter with ``requires_grad`` stands for its values.
    what : str
        The name of the array in messages.
    device : bool
        Whether the array must be a CuPy array. If not, it must lie in host memory.

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
    """Return whether two arrays on the host, or two on a device, may share memory. Local. `y` is C-contiguous."""
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
    """Return the dtype in which gradients are summed: float32 for narrow floats, else the same dtype."""
    return FLOAT32 if is_narrow(dtype) else dtype


def is_finite(x: Array) -> bool:
    """Return whether no element is NaN or infinite. Waits for a device. On the host, it is one pass without a copy."""
    if is_on_device(x):
        return bool(np.isfinite(x).all())
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(np.add.reduce(x, axis=None, dtype=np.float64)):
            return True  # infinities of both signs give NaN
    return x.dtype == np.float64 and bool(
        np.isfinite(x).all()
    )  # the sum of finite ones may overflow


def drop_nonfinite(x: Array) -> bool:
    """Set elements that are NaN or infinite to 0, and return whether there were any."""
    if is_finite(x):
        return False
    x[~np.isfinite(x)] = 0
    return True


class BucketKind(NamedTuple):
    """The common properties of a bucket's gradients: their dtype, and whether they lie on a device."""

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
        The shape of the parameter and of its gradient.
    dtype : dtype
        The dtype of both: a real floating type.
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
        """All properties but the name, as a text."""
        return f"{self.dtype} {self.shape}{' on a device' * self.on_device}"


Arrays = dict[Parameter, Array]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced by one call.

    Attributes
    ----------
    index : int
        Buckets are reduced in this order.
    dtype : dtype
        The dtype of all its gradients.
    parameters : tuple of Parameter
        The parameters of its gradients, in the order in which these lie.
    offsets : tuple of int
        The first element of each gradient.
    length : int
        Number of elements: those of gradients, and the padding between them.
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
        """Return the arrays in memory of at least its length, by name, in the shapes of their parameters. Local."""
        return {
            each.name: memory[offset : offset + each.size].reshape(each.shape)
            for each, offset in zip(self.parameters, self.offsets, strict=True)
        }

    def padding(self, length: int) -> NDArray[np.bool_]:
        """Return for each of `length` elements whether it lies between arrays, or behind them. Local."""
        between = np.ones(length, np.bool_)
        for place in self.views(between).values():
            place[...] = False
        return between

    def __str__(self) -> str:
        first, last = self.parameters[0].name, self.parameters[-1].name
        names = first if first == last else f"{first} to {last}"
        return f"bucket {self.index}: {len(self.parameters)} of {self.dtype}, {self.nbytes} bytes, {names}"


def read(parameters: Named, *, devices: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """Read a model. Local.

    Parameters
    ----------
    parameters : mapping or iterable of (str, array)
        NumPy arrays, or other arrays that share host memory, such as PyTorch CPU tensors.
    devices : bool
        Whether there may be CuPy arrays, too.

    Returns
    -------
    dict of Parameter to array
        The parameters in their order, each with an array over its memory.
    dict of str to object
        The parameters that keep their gradients in ``grad``, as PyTorch's do, by name.

    Raises
    ------
    UsageError
        If there are no parameters; if a name is empty, not a string or used twice; or if an array is of another kind.
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
        memory = view(array, f"parameter {name!r}", device=on_device)
        if not dtypes.is_float(memory.dtype) or not dtypes.is_native(memory.dtype):
            raise UnsupportedDtype(
                f"parameter {name!r} has dtype {memory.dtype}; gradients are real floats in the machine's "
                "byte order: leave the parameter out, or convert it"
            )
        arrays[name] = Parameter(name, memory.shape, memory.dtype, on_device), memory
        if getattr(array, "requires_grad", False):
            owners[name] = array
    if not arrays:
        raise UsageError("the model has no parameters; give at least one")
    return dict(arrays.values()), owners


def check_known(what: str, name: str, names: Collection[str]) -> None:
    """Raise unless a parameter has this name.

    Raises
    ------
    UsageError
        The message has the nearest name. `what` says whether a parameter or its gradient is meant.
    """
    if name not in names:
        advice = did_you_mean(name, names, "give the name of a parameter")
        raise UsageError(f"unknown {what} {name!r}; {advice}")


def check_writable(arrays: Mapping[Parameter, Array], remedy: str) -> None:
    """Raise unless all arrays can be written. Local.

    Raises
    ------
    UsageError
        The message has the name of a read-only array, and the remedy.
    """
    for each, array in arrays.items():
        if not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"parameter {each.name!r} is read-only, and would be written; {remedy}"
            )
