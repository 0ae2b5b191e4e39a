"""Sums of floats that have the same bits in any order, and for any distribution of the addends over ranks.

The method is that of W. Ahrens, J. Demmel, H. D. Nguyen, "Algorithms for Efficient Reproducible Floating Point
Summation", ACM Transactions on Mathematical Software 46 (3), 2020 (ReproBLAS). The exponents are cut
into bins of `WIDTH` bits that are the same for all numbers. Each number is split into multiples of
the bins' units, rounded to the nearest. A number's contribution to a bin depends only on that number. A sum keeps
the `BINS` upper bins, from the bin of its largest number on. Here a bin is an integer of 64 bits, so
that it is exact up to 2**40 numbers.

With n numbers of at most m, a sum is rounded once to float64, after an error of at most n m 2**-72.

`hpccomm.memory.folding` adds binned sums, `hpccomm.calls.on_host` makes them of floats, and `hpccomm` exports
`binned_sum` and `rounded`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.errors import UnsupportedDtype, UsageError

Array = NDArray[Any]

WIDTH = 24
"""Bits of a bin."""

BINS = dtypes.BINNED["sums"].shape[0]
"""Number of bins that a sum keeps."""

_BIAS = 46
"""``top`` of the bin of 1. So the lowest bin of float64 has the ``top`` 1, and a sum of zeros has 0."""

_MIDDLE = WIDTH // 2
"""Offset of the bins, by which 1 lies in the middle of its bin: similar numbers tend to have the same bin."""

_SPECIAL = 1 << 20
"""``top`` of sums with infinities or NaN, whose bins count inf, -inf and NaN."""

_BLOCK = 1 << 15
"""Elements that are split at a time, so that they stay in cache."""


def binned_sum(x: npt.ArrayLike, axis: int | None = None) -> Array:
    """Return sums that `ReduceOp.SUM` adds up to the same bits in any order. Local.

    Parameters
    ----------
    x : array_like
        Real floating numbers.
    axis : int or None
        The axis that is summed; None sums all elements.

    Returns
    -------
    ndarray
        A structured array of the shape of x without that axis, with 40 bytes per element. Every call that reduces
        takes it with SUM; `rounded` returns the numbers.

    Raises
    ------
    UnsupportedDtype
        If x is not of real floating numbers.
    UsageError
        If x has no such axis.

    Examples
    --------
    >>> hpccomm.rounded(hpccomm.binned_sum([1e100, 1.0, -1e100, 0.1]))
    np.float64(0.0)
    >>> hpccomm.rounded(hpccomm.binned_sum([1e16, 1.0, -1e16, 0.125]))
    np.float64(1.125)
    """
    values = np.asarray(x)
    if not dtypes.is_float(values.dtype.newbyteorder("=")):
        raise UnsupportedDtype(
            f"x has dtype {values.dtype}; give real floating numbers of at most 64 bits (the parts of complex ones, "
            "x.real and x.imag; integers have the same sum in any order as they are)"
        )
    if axis is None:
        values, axis = values.reshape(-1), 0
    elif axis not in range(-values.ndim, values.ndim):
        raise UsageError(f"axis is {axis!r}, and x has {values.ndim} dimensions")
    values = np.moveaxis(values, axis, -1)
    sums = np.zeros(values.shape[:-1], dtypes.BINNED)
    table, flat = values.reshape(sums.size, values.shape[-1]), sums.reshape(-1)
    step = max(_BLOCK // max(table.shape[1], 1), 1)
    for first in range(0, sums.size, step):
        some = flat[first : first + step]
        for start in range(0, table.shape[1], _BLOCK):
            block = table[first : first + step, start : start + _BLOCK].astype(np.float64)
            if start:
                add(some, _split(block), some)
            else:
                some[...] = _split(block)
    return sums


def _split(x: NDArray[np.float64]) -> Array:
    """Return the binned sums of the rows of `x`, which is overwritten."""
    sums = np.empty(len(x), dtypes.BINNED)
    single = x.shape[1] == 1
    largest = abs(x[:, 0]) if single else np.abs(x).max(axis=1)
    special = ~np.isfinite(largest)
    others = x[special]
    x[special] = largest[special] = 0
    top = (np.frexp(largest)[1] + _MIDDLE) // WIDTH
    sums["top"] = np.where(largest > 0, top + _BIAS, 0)
    shift = _MIDDLE - WIDTH * (top + 1)  # the largest number becomes less than a half
    x *= np.ldexp(1.0, shift // 2)[:, None]  # by two factors, since one may exceed a float
    x *= np.ldexp(1.0, shift - shift // 2)[:, None]
    units = np.empty_like(x)
    for place in range(BINS):
        x *= 2.0**WIDTH
        np.rint(x, out=units)
        x -= units
        # The sum is exact, since the units are integers of 24 bits.
        sums["sums"][:, place] = units[:, 0] if single else units.sum(axis=1)
    if len(others):
        kinds = (others == np.inf, others == -np.inf, np.isnan(others), others == 0)
        sums["top"][special] = _SPECIAL
        sums["sums"][special] = np.stack([kind.sum(axis=1) for kind in kinds], axis=1)
    return sums


def add(a: Array, b: Array, out: Array) -> None:
    """Add binned sums; `out` may be either."""
    top, total = np.maximum(a["top"], b["top"]), a["sums"] + b["sums"]
    (unequal,) = np.nonzero(a["top"] != b["top"])
    if len(unequal):
        total[unequal] = sum(_from(each[unequal], top[unequal]) for each in (a, b))
    out["top"], out["sums"] = top, total


def _from(sums: Array, top: Array) -> Array:
    """Return the bins of sums from `top` on. `top` is at least that of the sums."""
    place = np.arange(BINS) - (top - sums["top"])[:, None]
    return np.where(place < 0, 0, np.take_along_axis(sums["sums"], np.maximum(place, 0), axis=1))


def rounded(sums: Array, dtype: npt.DTypeLike = np.float64) -> Any:
    """Return the numbers of binned sums, each rounded to the nearest float64. Local.

    Parameters
    ----------
    sums : ndarray
        Binned sums, as `binned_sum` returns them.
    dtype : dtype
        Type of the result; other floats are rounded from float64.

    Returns
    -------
    ndarray or scalar
        The numbers, of the shape of `sums`. They are infinite where a sum is too large or an addend is infinite.

    Raises
    ------
    UsageError
        If `sums` are not binned sums.
    """
    if getattr(sums, "dtype", None) != dtypes.BINNED:
        raise UsageError(f"sums are {sums!r}; give binned sums, such as hpccomm.binned_sum(x)")
    flat = np.asarray(sums).reshape(-1)
    bins, top = flat["sums"], flat["top"]
    carry: Any = 0
    digits = []  # from the lowest on
    for place in reversed(range(BINS)):
        total = bins[:, place] + carry
        digits.append(total & (1 << WIDTH) - 1)
        carry = total >> WIDTH
    low, middle = (digits[i] + (digits[i + 1] << WIDTH) for i in (0, 2))
    pair = 2.0 ** (2 * WIDTH)
    value = carry * pair + middle
    left = middle - (value - carry * pair)  # exact
    # The result is rounded once: if `value` was rounded, `low` only tells that something is left.
    value = np.where(left == 0, value * pair + low, (value + (left + 0.5 * (low > 0))) * pair)
    with np.errstate(over="ignore"):
        value = np.ldexp(value, WIDTH * (top - _BIAS - BINS + 1) - _MIDDLE)
        special = top >= _SPECIAL
        if special.any():
            plus, minus, nans, _ = (bins[special] > 0).T
            value[special] = np.where(
                nans | (plus & minus), np.nan, np.where(plus, np.inf, -np.inf)
            )
        return value.astype(dtype).reshape(np.shape(sums))[()]
