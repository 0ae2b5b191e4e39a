"""The reductions, and what they compute on each dtype.

The meanings are NumPy's: integers wrap, SUM of bool is or, MIN and MAX give NaN as soon as one
contribution is NaN. AVG of integers is the (wrapped) sum divided towards zero, as in NCCL. Narrow
floats (float16, bfloat16, float8) are accumulated in float32 and rounded when they are stored.
MINLOC and MAXLOC are NumPy's argmin and argmax: for equal values, and for several NaN, the smallest
index.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UnsupportedDtype, UsageError, did_you_mean
from hpccomm.spelling import HintingEnum

Array = NDArray[Any]


class ReduceOp(Enum, metaclass=HintingEnum):
    """The named reductions."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    MINLOC = "minloc"
    MAXLOC = "maxloc"

    # Enum's own hash is a Python function; members are single objects, and calls look them up.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ReduceOp.{self.name}"


class WindowOp(Enum, metaclass=HintingEnum):
    """Further operations of a window's atomic calls, after MPI's names."""

    REPLACE = "replace"
    NO_OP = "no_op"

    def __repr__(self) -> str:
        return f"WindowOp.{self.name}"


@dataclass(frozen=True, slots=True)
class PremulSum:
    """SUM of the contributions, each multiplied by `factor` first."""

    factor: complex = field(compare=False)
    _text: str = field(init=False, repr=False)  # 2 and 2.0 are different factors

    def __post_init__(self) -> None:
        object.__setattr__(self, "_text", repr(self.factor))

    @property
    def value(self) -> str:
        """Name of the reduction."""
        return "premul_sum"


def premul_sum(factor: complex) -> PremulSum:
    """Return the reduction that multiplies each contribution by `factor` and sums.

    Parameters
    ----------
    factor : int, float or complex
        The same on all ranks. Of integer arrays an integer that their dtype holds; complex only of
        complex arrays.

    Returns
    -------
    PremulSum
        For ``op=``.

    Raises
    ------
    UsageError
        If `factor` is not a number.
    """
    if isinstance(factor, np.generic):
        factor = factor.item()
    if isinstance(factor, bool) or not isinstance(factor, int | float | complex):
        raise UsageError(f"premul_sum: factor is {factor!r}; give an int, float or complex number")
    return PremulSum(factor)


def loc_dtype(dtype: npt.DTypeLike, index: npt.DTypeLike = np.int64) -> DType:
    """Return the dtype of values with their indices, which MINLOC and MAXLOC reduce.

    Parameters
    ----------
    dtype : dtype
        Of the values: bool, an integer, or a real floating type.
    index : dtype
        Of the indices: an integer.

    Returns
    -------
    dtype
        Structured, with the fields ``value`` and ``index``. Any other dtype with these two fields serves as
        well, in any order, with or without padding, whose bits are lost.

    Raises
    ------
    UnsupportedDtype
        If values or indices have another dtype.
    """
    pair = np.dtype([("value", dtype), ("index", index)])
    if not dtypes.is_located(pair):
        raise UnsupportedDtype(
            f"values of dtype {pair['value']} with indices of dtype {pair['index']} have no reduction; "
            "give bool, integer or real floating values, and integer indices"
        )
    return pair


def with_index(value: npt.ArrayLike, index: npt.ArrayLike) -> Array:
    """Return values with their indices, for MINLOC and MAXLOC.

    Parameters
    ----------
    value : array_like
        Of any shape: bool, integers, or real floating numbers.
    index : int or array_like of int
        Where they come from, such as the rank. It is broadcast to the shape of `value`.

    Returns
    -------
    ndarray
        New, of the shape of `value`, with the fields ``value`` and ``index`` (int64).

    Raises
    ------
    UsageError
        If the indices are not integers, or do not fit the shape; `UnsupportedDtype` if the values
        cannot be ordered.

    Examples
    --------
    >>> hpccomm.with_index([2.5, 0.5], 3)
    array([(2.5, 3), (0.5, 3)], dtype=[('value', '<f8'), ('index', '<i8')])
    """
    values, indices = np.asarray(value), np.asarray(index)
    located = np.empty(values.shape, loc_dtype(values.dtype))
    if not np.can_cast(indices.dtype, np.int64, "same_kind"):
        raise UsageError(f"index has dtype {indices.dtype}; give integers that int64 holds")
    located["value"] = values
    try:
        located["index"] = indices
    except ValueError:
        raise UsageError(
            f"index has shape {indices.shape} and value {values.shape}; give one index, or one for each value"
        ) from None
    return located


ANY_RANKS = "any ranks"
Deterministic = bool | Literal["any ranks"]
"""The argument of reductions."""

Elementwise = Callable[[Array, Array], Array]
Op = ReduceOp | PremulSum | Elementwise

_BITWISE = frozenset((ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR))
_ORDERED = frozenset((ReduceOp.MIN, ReduceOp.MAX))
LOCATING = frozenset((ReduceOp.MINLOC, ReduceOp.MAXLOC))
"""Reductions of values with their indices."""


_ALIKE = {
    np.add: ReduceOp.SUM, operator.add: ReduceOp.SUM, sum: ReduceOp.SUM,
    np.multiply: ReduceOp.PROD, operator.mul: ReduceOp.PROD,
    np.minimum: ReduceOp.MIN, min: ReduceOp.MIN,
    np.maximum: ReduceOp.MAX, max: ReduceOp.MAX,
    np.bitwise_and: ReduceOp.BAND, operator.and_: ReduceOp.BAND,
    np.bitwise_or: ReduceOp.BOR, operator.or_: ReduceOp.BOR,
    np.bitwise_xor: ReduceOp.BXOR, operator.xor: ReduceOp.BXOR,
}  # fmt: skip
_BY_ID = {id(function): op for function, op in _ALIKE.items()}
"""A callable of the user's need have no hash."""
_LOGICAL = {np.logical_and: "BAND", np.logical_or: "BOR", np.logical_xor: "BXOR"}
_ELSEWHERE: dict[object, Any] = {
    **{each.name: each for kind in (ReduceOp, WindowOp) for each in kind},
    **{f"L{name[1:]}": ufunc for ufunc, name in _LOGICAL.items()},
    "PRODUCT": ReduceOp.PROD,
}
"""By mpi4py's and PyTorch's names."""


def recognised(op: Any, dtype: DType) -> Any:
    """Return the reduction that an operator of NumPy, Python, mpi4py or PyTorch is on `dtype`; else `op`."""
    library = type(op).__module__.partition(".")[0]
    if library == "mpi4py":
        op = _ELSEWHERE.get(op.__reduce__(), op)  # a string, where MPI has it from the start
    elif library == "torch":
        op = _ELSEWHERE.get(getattr(op, "name", None), op)
    known = _BY_ID.get(id(op))
    if dtype == dtypes.BOOL and isinstance(op, np.ufunc) and op in _LOGICAL:
        return ReduceOp[_LOGICAL[op]]
    # NumPy orders complex numbers, too.
    return op if known is None or not meaningful(known, dtype) else known


def name_of(op: Op) -> str:
    """Return the name under which `op` is shown."""
    if isinstance(op, ReduceOp | PremulSum):
        return op.value
    return named(op)


def named(function: Callable[..., object]) -> str:
    """Return the name under which a user's function is shown."""
    return str(getattr(function, "__name__", type(function).__name__))


def code_of(op: object) -> str:
    """Return the identity of a user's function: 8 hexadecimal digits, "" if unknown.

    Equal in all processes that run the same program. Values that it takes from elsewhere do not count.
    """
    code = getattr(op, "__code__", None)
    if code is None:
        return ""
    plain = [each for each in code.co_consts if isinstance(each, int | float | complex | str)]
    return f"{crc32(repr((code.co_code, plain, code.co_names)).encode()):08x}"


def meaningful(op: Op, dtype: DType) -> bool:
    """Whether `op` on elements of `dtype` means something."""
    if isinstance(op, ReduceOp) and op in LOCATING:
        return dtypes.is_located(dtype)
    if not dtypes.is_reducible(dtype):
        if isinstance(op, ReduceOp | PremulSum):
            return op is ReduceOp.SUM and dtype == dtypes.BINNED
        return dtype.names is not None
    if not isinstance(op, ReduceOp):
        return not isinstance(op, PremulSum) or dtype != dtypes.BOOL
    if op in _BITWISE:
        return dtype == dtypes.BOOL or dtypes.is_integer(dtype)
    if op in _ORDERED:
        return not dtypes.is_complex(dtype)
    return op is not ReduceOp.AVG or dtype != dtypes.BOOL


def accumulator(op: Op, dtype: DType) -> DType:
    """Return the dtype in which contributions are folded: float32 for narrow floats.

    A user's function folds in the dtype itself.
    """
    wide = isinstance(op, ReduceOp | PremulSum) and dtypes.is_narrow(dtype)
    return dtypes.FLOAT32 if wide else dtype


def check(op: object, dtype: DType) -> None:
    """Raise unless `op` is a reduction that means something on `dtype`.

    A user's function is not called here. It is tried on arrays of the kind that the call gives it, by
    `hpccomm.memory.folding`, in the way of `hpccomm.memory.folding`.

    Raises
    ------
    UsageError
        If `op` is not a reduction, or a premul factor does not fit the dtype.
    UnsupportedDtype
        If the pair means nothing.
    """
    if not isinstance(op, ReduceOp | PremulSum) and not callable(op):
        if hasattr(op, "__array__") and not isinstance(op, np.generic):
            raise UsageError("op is an array; an array for the result is out=")
        known = ", ".join(f"ReduceOp.{member.name}" for member in ReduceOp)
        advice = (
            f"give one of {known}, hpccomm.premul_sum(factor), "
            "or a commutative, associative, elementwise function of two arrays"
        )
        raise UsageError(f"op is {op!r}; {did_you_mean(str(op), ReduceOp.__members__, advice)}")
    if not meaningful(op, dtype):
        fits = ", ".join(d.name for d in dtypes.REDUCIBLE if meaningful(op, d)) or (
            "a structured dtype of a value (bool, integer or real floating) and an index (integer), "
            "such as that of hpccomm.with_index(value, index)"
        )
        raise UnsupportedDtype(f"op {name_of(op)} means nothing on dtype {dtype}; it takes {fits}")
    if isinstance(op, PremulSum):
        _check_factor(op.factor, dtype)


def check_any_ranks(op: Op, dtype: DType) -> None:
    """Raise unless `op` on elements of `dtype` can have the same bits on any number of ranks.

    Raises
    ------
    UsageError
        If it cannot.
    """
    named = isinstance(op, ReduceOp | PremulSum)
    summed = isinstance(op, PremulSum) or op in (ReduceOp.SUM, ReduceOp.AVG)
    if not named or not (summed or not (dtypes.is_float(dtype) or dtypes.is_complex(dtype))):
        raise UsageError(
            f"deterministic is {ANY_RANKS!r}, which takes SUM, AVG and premul_sum, and of integers every named "
            f"reduction, and op is {name_of(op)} on {dtype}; give deterministic=True, which has the same bits on "
            "the same number of ranks"
        )


def _check_factor(factor: complex, dtype: DType) -> None:
    if dtypes.is_integer(dtype):
        bounds = np.iinfo(dtype)
        if not isinstance(factor, int) or not bounds.min <= factor <= bounds.max:
            raise UsageError(
                f"premul_sum: factor {factor!r} does not fit dtype {dtype}; "
                f"give an integer from {bounds.min} to {bounds.max}"
            )
        return
    if isinstance(factor, complex) and not dtypes.is_complex(dtype):
        raise UsageError(f"premul_sum: factor {factor!r} is complex and dtype {dtype} is real")
    try:
        float(abs(factor))
    except OverflowError:
        raise UsageError(
            f"premul_sum: factor has {len(str(factor))} digits; no float holds it"
        ) from None


def identity(op: Op, dtype: DType) -> Any:
    """Return the identity element of `op`, which leaves every other element unchanged.

    It is the result of an exclusive scan on rank 0.

    Raises
    ------
    UsageError
        If `op` is a callable.
    """
    if op is ReduceOp.SUM or op is ReduceOp.BOR or op is ReduceOp.BXOR or isinstance(op, PremulSum):
        return np.zeros((), dtype)[()]
    if op is ReduceOp.PROD:
        return dtype.type(1)
    if op is ReduceOp.BAND:
        return np.invert(dtype.type(0))
    if op is ReduceOp.MIN or op is ReduceOp.MAX:
        largest = op is ReduceOp.MIN
        if dtype == dtypes.BOOL:
            return dtype.type(largest)
        if dtypes.is_integer(dtype):
            return dtype.type(np.iinfo(dtype).max if largest else np.iinfo(dtype).min)
        if dtype == dtypes.FLOAT8_E4M3FN:  # the one float here that has no infinity
            return dtype.type(448.0 if largest else -448.0)
        return dtype.type(np.inf if largest else -np.inf)
    if op is ReduceOp.MINLOC or op is ReduceOp.MAXLOC:
        plain = ReduceOp.MIN if op is ReduceOp.MINLOC else ReduceOp.MAX
        both = np.empty((), dtype)
        both["value"] = identity(plain, dtype["value"])
        both["index"] = np.iinfo(dtype["index"]).max  # which every index of an equal value precedes
        return both[()]
    raise UsageError(
        f"op {name_of(op)} has no identity element, which rank 0 of an exclusive scan needs; "
        "give out=, which rank 0 leaves as it is, or use an inclusive scan"
    )
