"""The parameters of a model as data, and the buckets of their gradients. All of this package uses it.

Checks settings before ranks compare them, and gives them one type, and so one text.

`settings` and the compressors check their values here.

Update rules for parameters, element by element, for `ShardedOptimizer` and `LocalSteps`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32, DType, is_narrow
from hpccomm.errors import UnsupportedDtype, UsageError, did_you_mean
from hpccomm.gradients.arrays import Array, is_on_device, passes, view
from hpccomm.settings import check_bool, check_int


def set_checked(settings: object, **values: object) -> None:
    """Give a frozen dataclass the values that were checked. Ranks compare their texts."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


def check_choice(name: str, value: object, kind: object) -> str:
    """Return a setting as a str, if it is one of the texts that a Literal names.

    Raises
    ------
    UsageError
        With the texts, and the nearest one.
    """
    known = get_args(kind)
    if value not in known:
        advice = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
        raise UsageError(f"{name} is {value!r}; {advice}")
    return str(value)


def check_least(name: str, value: object, least: int) -> int:
    """Return a setting as an int.

    Raises
    ------
    UsageError
        If it is not an integer of at least `least`.
    """
    number = check_int(name, value)
    if number < least:
        raise UsageError(f"{name} is {number}; give at least {least}")
    return number


def check_number(name: str, value: object, fits: Callable[[float], bool], range_: str) -> float:
    """Return a setting as a float.

    Parameters
    ----------
    name : str
        Of the setting.
    value : object
        What was given.
    fits : callable
        Returns whether a finite number is in the range.
    range_ : str
        The same in words, such as ``"above 0"``.

    Raises
    ------
    UsageError
        If it is not a finite number in the range.
    """
    real = isinstance(value, int | float | np.integer | np.floating)
    huge = isinstance(value, int) and value.bit_length() > 1023  # no float holds it
    if huge or not real or not isfinite(value) or not fits(float(value)):  # type: ignore[arg-type]
        raise UsageError(f"{name} is {value!r}; give a finite number {range_}")
    return float(value)  # type: ignore[arg-type]


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


Flat = NDArray[Any]
State = Mapping[str, Flat]
Rate = float | Callable[[int], float]
"""A learning rate, or a function from the number of the step, from 1, to one."""

PASS = 1 << 15
"""Elements that are updated at once, so that temporary arrays stay in the cache."""


@dataclass(frozen=True, slots=True)
class Update:
    """An update with the state that it needs. Is called with flat arrays; see `ShardedOptimizer`.

    Attributes
    ----------
    name : str
        With its settings. Ranks compare it.
    state : mapping of str to None
        Names of its arrays of state, which begin as zeros: float32 for narrow parameters, else of their dtype.
    rule : callable
        ``rule(parameter, gradient, *state, step)`` writes the parameter and the state.
    """

    name: str
    state: Mapping[str, None]
    rule: Callable[..., None]

    def __call__(self, parameter: Flat, gradient: Flat, state: State, step: int) -> None:
        """Update one shard in place. Local. Narrow floats are widened to float32, and rounded once.

        Parameters
        ----------
        parameter, gradient : ndarray, 1-D, of one length
            Of the shard.
        state : mapping of str to ndarray
            Of the same length, by name.
        step : int
            From 1.
        """
        arrays = (parameter, gradient, *(state[name] for name in self.state))
        narrow = is_narrow(parameter.dtype)
        for part in passes(parameter.size, PASS):
            p, g, *rest = (each[part] for each in arrays)
            if narrow:  # what is added, such as eps, may be 0 in it
                wide = p.astype(FLOAT32)
                self.rule(wide, g.astype(FLOAT32), *rest, step)
                p[:] = wide
            else:
                self.rule(p, g, *rest, step)


def sgd(
    lr: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Update:
    """Return stochastic gradient descent. Local.

    With the gradient g (plus `weight_decay` times the parameter), the velocity is ``v = momentum * v + g``, and the
    parameter loses ``lr * v``; with `nesterov`, ``lr * (g + momentum * v)``. This is the form of Sutskever et al.
    2013, "On the importance of initialization and momentum in deep learning", that PyTorch uses.

    Parameters
    ----------
    lr : float or callable
        The learning rate, or a function of the number of the step, from 1.
    momentum : float
        At least 0 and below 1. With 0 there is no state; else it is ``"velocity"``.
    nesterov : bool
        Look ahead along the velocity. Needs a momentum.
    weight_decay : float
        At least 0.

    Raises
    ------
    UsageError
        If a number does not fit.
    """
    rate_of, rate_name = _rate(lr)
    momentum = _below_1("momentum", momentum)
    weight_decay = _at_least_0("weight_decay", weight_decay)
    nesterov = check_bool("nesterov", nesterov)
    if nesterov and not momentum:
        raise UsageError("nesterov needs a momentum above 0; give one, such as momentum=0.9")

    def rule(p: Flat, g: Flat, *rest: Any) -> None:
        rate = float(rate_of(rest[-1]))
        if weight_decay:
            g = g + weight_decay * p
        if momentum:
            v = rest[0]
            v *= momentum
            v += g
            g = g + momentum * v if nesterov else v
        p -= rate * g

    name = f"sgd(lr={rate_name}, {momentum=}, {nesterov=}, {weight_decay=})"
    return Update(name, {"velocity": None} if momentum else {}, rule)


def adam(
    lr: Rate = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Update:
    """Return Adam, or AdamW if there is a weight decay. Local.

    Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", algorithm 1. The weight decay is that of
    Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization": the parameter loses ``lr * weight_decay``
    of itself before the step, and the moments do not see it. The state is ``"m"`` and ``"v"``.

    Parameters
    ----------
    lr : float or callable
        The learning rate, or a function of the number of the step, from 1.
    betas : (float, float)
        Decay of the first and the second moment, at least 0 and below 1.
    eps : float
        Is added to the root of the second moment; above 0.
    weight_decay : float
        At least 0.

    Raises
    ------
    UsageError
        If a number does not fit.
    """
    rate_of, rate_name = _rate(lr)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise UsageError(f"betas is {betas!r}; give two numbers")
    first, second = betas = _below_1("a beta", betas[0]), _below_1("a beta", betas[1])
    eps = check_number("eps", eps, lambda x: x > 0, "above 0")
    weight_decay = _at_least_0("weight_decay", weight_decay)

    def rule(p: Flat, g: Flat, m: Flat, v: Flat, step: int) -> None:
        rate = float(rate_of(step))
        m *= first
        m += (1 - first) * g
        v *= second
        v += (1 - second) * (g * g)
        if weight_decay:
            p *= 1 - rate * weight_decay
        # sqrt(v / (1 - second**t)) with the division taken out of the root
        root = np.sqrt(v)
        root *= 1 / sqrt(1 - second**step)
        root += eps
        p -= (rate / (1 - first**step)) * (m / root)

    name = f"adam(lr={rate_name}, {betas=}, {eps=}, {weight_decay=})"
    return Update(name, {"m": None, "v": None}, rule)


def _rate(lr: Rate) -> tuple[Callable[[int], float], str]:
    """Return a learning rate as a function, and its name for other ranks."""
    if callable(lr):
        return lr, getattr(lr, "__qualname__", type(lr).__name__)
    rate = _at_least_0("lr", lr)
    return lambda _: rate, repr(rate)


def _at_least_0(name: str, value: object) -> float:
    return check_number(name, value, lambda x: x >= 0, "of at least 0")


def _below_1(name: str, value: object) -> float:
    return check_number(name, value, lambda x: 0 <= x < 1, "of at least 0 and below 1")
