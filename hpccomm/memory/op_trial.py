"""Tries a user's function before it reduces anything: a reduction has to be commutative and so on.

A function that is not elementwise, commutative and associative gives another result on each number of
ranks, and with each algorithm. Nothing in the result shows it. So the function is tried on a few values
first, once for each dtype. With ``deterministic=True`` it is folded in rank order, and must only be
elementwise.

The values are small, so that sums and products do not overflow in 8 bits. None of them is zero, and
no two combined ones differ in their sign alone: the element of the larger magnitude is a common
reduction, which prefers one of two of equal magnitude.

`hpccomm.memory.folding` tries a function on its first use.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.reductions import Op, name_of

Array = NDArray[Any]
Apply = Callable[[Array, Array], Array]
"""``apply(a, b)`` gives what the function makes of two arrays in host memory, in their dtype."""

ELEMENTS = 8
"""Elements of each array of the trial."""

REMEDY = "give a commutative, associative, elementwise function of two arrays, such as np.maximum"

IN_ORDER = "; collectives fold others in the order of the ranks with deterministic=True"

KEPT = 256
"""Functions that are remembered as fit; a program with more different ones tries them again."""

_A = (1, 2, 3, -5, 1, 2, 4, 3)
_B = (2, 1, 5, 3, 3, 2, -1, 4)
_C = (3, 4, 1, 2, 16, 1, 2, -6)

_finfo: Any = ml_dtypes.finfo  # of NumPy's floats too; it has no types

_fit: dict[object, None] = {}


def samples(dtype: DType) -> Array:
    """Return three arrays of `ELEMENTS` elements for the trial of a user's function."""
    if dtype.names is not None:
        whole = np.zeros((3, ELEMENTS), dtype)
        for place, name in enumerate(dtype.names):
            field = whole[name]
            base = dtype[name].base
            if base.names is not None or dtypes.is_reducible(base):  # others stay zero
                # Fields have values of their own. Positive ones may be counts and variances.
                each = np.roll(samples(base), place, axis=1)
                each = each if base.names is not None else abs(each)
                field[...] = each.reshape(each.shape + (1,) * (field.ndim - 2))
        return whole
    if dtype == dtypes.BOOL:
        bits = np.arange(ELEMENTS)
        return np.array((bits & 1, bits & 2, bits & 4), np.bool_)
    each = np.array((_A, _B, _C))
    if dtype.kind == "u":
        each = np.abs(each)
    if dtypes.is_complex(dtype):
        # The signs tell a number from its conjugate.
        each = each + 1j * each * np.array([[0.5], [-0.25], [0.5]])
    return each.astype(dtype)


def check_fit(op: Op, dtype: DType, apply: Apply, *, ordered: bool = False) -> None:
    """Raise unless a user's function is fit for reductions of `dtype`, as far as the trial shows.

    A function that was found fit is not tried again. It must not write to its arguments, which may be
    peers' own arrays.

    Parameters
    ----------
    op : callable
        The user's function.
    dtype : dtype
        Of the arrays.
    apply : callable
        Calls it. It raises `UsageError` if the function fails, or makes an array of another shape or of
        a dtype that does not fit.
    ordered : bool
        Whether it is folded in rank order, so that it need not be commutative and associative.

    Raises
    ------
    UsageError
        With the values that show the fault.
    """
    key = (op, dtype, ordered)
    try:
        if key in _fit:
            return
        if len(_fit) >= KEPT:
            _fit.clear()
    except TypeError:  # a callable object that cannot be hashed is tried each time
        key = None  # type: ignore[assignment]
    with np.errstate(all="ignore"):
        _try(op, dtype, apply, ordered)
    if key is not None:
        _fit[key] = None


def _try(op: Op, dtype: DType, apply: Apply, ordered: bool) -> None:
    name = name_of(op)
    a, b, c = samples(dtype)

    def call(x: Array, y: Array) -> Array:
        given = x.tobytes(), y.tobytes()
        result = apply(x, y)
        if (x.tobytes(), y.tobytes()) != given:
            before, after = (np.frombuffer(each, dtype) for each in given)
            raise UsageError(
                f"op {name} writes to its arguments, which may be the arrays of any rank: of "
                f"{before} and {after} it left {x} and {y}; give a function that returns a new array"
            )
        return result

    def refuse(law: str, shown: str, remedy: str = IN_ORDER) -> UsageError:
        return UsageError(f"op {name} is not {law} on {dtype}: {shown}; {REMEDY}{remedy}")

    whole, half = call(a, b), ELEMENTS // 2
    for part in (slice(half), slice(half, None), slice(1), slice(1, 2)):
        alone = call(a[part], b[part])
        if _differing(whole[part], alone, (a[part], b[part])) is not None:
            raise refuse(
                "elementwise",
                f"of {a} and {b} it makes {whole}, and of their parts {a[part]} and {b[part]} it makes "
                f"{alone}, not {whole[part]}",
                remedy="",
            )
    if ordered:
        return
    turned = call(b, a)
    at = _differing(whole, turned, (a, b))
    if at is not None:
        raise refuse(
            "commutative",
            f"{name}({a[at]}, {b[at]}) is {whole[at]}, and {name}({b[at]}, {a[at]}) is {turned[at]}",
        )
    left, right = call(whole, c), call(a, call(b, c))
    at = _differing(left, right, (a, b, c))
    if at is not None:
        raise refuse(
            "associative",
            f"{name}({name}({a[at]}, {b[at]}), {c[at]}) is {left[at]}, and "
            f"{name}({a[at]}, {name}({b[at]}, {c[at]})) is {right[at]}",
        )


def _differing(one: Array, other: Array, inputs: tuple[Array, ...]) -> int | None:
    """Return the first element in which two results differ by more than rounding, or None.

    Elements that are not finite are left aside: the values need not lie where the function is defined.
    """
    dtype = one.dtype
    if dtype.names is not None:
        each = (_differing(one[n], other[n], tuple(x[n] for x in inputs)) for n in dtype.names)
        return min((at for at in each if at is not None), default=None)
    if not (dtypes.is_float(dtype) or dtypes.is_complex(dtype)):
        differs = one != other
    else:
        wide = np.complex128 if dtypes.is_complex(dtype) else np.float64
        x, y, *given = (each.astype(wide) for each in (one, other, *inputs))
        scale = np.max(np.abs([x, y, *given]), axis=0)
        differs = np.abs(x - y) > sqrt(float(_finfo(dtype).eps)) * scale
        differs &= np.isfinite(x) & np.isfinite(y)
    differs = differs.reshape(len(differs), -1).any(axis=1)  # of fields that are arrays
    return int(np.argmax(differs)) if differs.any() else None
