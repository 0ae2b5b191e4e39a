"""Floats for which CuPy has no arithmetic: bfloat16 and the two float8, handled as bits.

CuPy has no float8, and only some versions have bfloat16. Integer operations widen them to float32 and
round them back, to nearest with ties to even, as `ml_dtypes` does on the host. The bits are the same,
except for which NaN they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.dtypes import FLOAT32, DType
from hpccomm.memory.cuda.library import cupy

Empty = Callable[[int, DType], Any]
"""``empty(count, dtype)`` gives scratch on the current stream."""

_BITS = np.dtype(np.uint32)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_LAST = np.uint32(31)


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a float of fewer bits, relative to float32.

    Attributes
    ----------
    bits : dtype
        Unsigned integers of its size.
    dropped : int
        Bits of float32's fraction that it lacks.
    rebias : int
        Bias of float32's exponent less its own.
    special : int
        The smallest magnitude that is infinite or NaN.
    overflow : int
        The result for a magnitude that is too large.
    nan : int
        The NaN that replaces every NaN.
    """

    bits: DType
    dropped: int
    rebias: int
    special: int
    overflow: int
    nan: int


FORMATS = {
    dtypes.BFLOAT16: Format(np.dtype(np.uint16), 16, 0, 0x7F80, 0x7F80, 0x7FC0),
    dtypes.FLOAT8_E4M3FN: Format(np.dtype(np.uint8), 20, 120, 0x7F, 0x7F, 0x7F),
    dtypes.FLOAT8_E5M2: Format(np.dtype(np.uint8), 21, 112, 0x7C, 0x7C, 0x7E),
}
"""The formats handled here. float16 is not among them, because CuPy computes with it."""


def carrier(dtype: DType) -> DType:
    """Return the dtype in which CuPy gets elements of `dtype`: unsigned bits if CuPy lacks it."""
    known = FORMATS.get(dtype)
    return dtype if known is None else known.bits


def widen(source: Any, dtype: DType, wide: Any, empty: Empty) -> None:
    """Write elements of `dtype` as float32. On CuPy's current stream; never blocks.

    Parameters
    ----------
    source : cupy.ndarray, 1-D of ``carrier(dtype)``
        What is read.
    dtype : dtype
        One of `hpccomm.dtypes.NARROW`.
    wide : cupy.ndarray, 1-D of float32, as long
        Overwritten.
    empty : callable
        Gives scratch.
    """
    module = cupy()
    known = FORMATS.get(dtype)
    if known is None:
        module.copyto(wide, source)
        return
    bits = wide.view(_BITS)
    if not known.rebias:
        module.left_shift(source, np.uint32(known.dropped), out=bits)
        return
    size = 8 * known.bits.itemsize - 1
    rest = empty(wide.size, _BITS)
    module.bitwise_and(source, known.bits.type((1 << size) - 1), out=rest)
    # Scaling does not preserve an exponent of all ones. `rest` is 1 where the value is infinite or NaN.
    module.left_shift(rest, np.uint32(known.dropped), out=bits)
    module.subtract(np.uint32(known.special - 1), rest, out=rest)
    module.right_shift(rest, _LAST, out=rest)
    module.multiply(rest, _INFINITY, out=rest)
    module.multiply(wide, np.float32(2.0**known.rebias), out=wide)
    module.bitwise_or(bits, rest, out=bits)
    module.right_shift(source, known.bits.type(size), out=rest)
    module.left_shift(rest, _LAST, out=rest)
    module.bitwise_or(bits, rest, out=bits)


def narrow(wide: Any, target: Any, dtype: DType, empty: Empty) -> None:
    """Round float32 to elements of `dtype`. On CuPy's current stream; never blocks.

    Parameters
    ----------
    wide : cupy.ndarray, 1-D of float32
        What is rounded; it is overwritten.
    target : cupy.ndarray, 1-D of ``carrier(dtype)``, as long
        Overwritten.
    dtype : dtype
        One of `hpccomm.dtypes.NARROW`.
    empty : callable
        Gives scratch.
    """
    module = cupy()
    known = FORMATS.get(dtype)
    if known is None:
        module.copyto(target, wide, casting="unsafe")
        return
    size = np.uint32(8 * known.bits.itemsize - 1)
    bits, magnitude = wide.view(_BITS), empty(wide.size, _BITS)
    result, rest = empty(wide.size, _BITS), empty(wide.size, _BITS)
    module.bitwise_and(bits, _MAGNITUDE, out=magnitude)
    module.right_shift(bits, _LAST, out=bits)
    module.left_shift(bits, size, out=bits)  # the sign, at its place
    dropped = known.dropped
    # Half of the last kept bit, a little less where that bit is 0, so that ties round to even.
    # The 32-bit arithmetic may wrap, which cancels.
    half = (1 << (dropped - 1)) - 1 - (known.rebias << 23)
    module.right_shift(magnitude, np.uint32(dropped), out=result)
    module.bitwise_and(result, np.uint32(1), out=result)
    module.add(result, magnitude, out=result)
    module.add(result, np.uint32(half % (1 << 32)), out=result)
    module.right_shift(result, np.uint32(dropped), out=result)
    module.minimum(result, np.uint32(known.overflow), out=result)
    if known.rebias:
        _subnormal(magnitude, result, rest, empty(wide.size, _BITS), known)
    module.subtract(_INFINITY, magnitude, out=magnitude)
    module.right_shift(magnitude, _LAST, out=magnitude)  # 1 where there is a NaN
    _replace(result, magnitude, np.uint32(known.nan), rest)
    module.bitwise_or(result, bits, out=result)
    module.copyto(target, result, casting="unsafe")


def _subnormal(magnitude: Any, result: Any, rest: Any, small: Any, known: Format) -> None:
    """Put the subnormal results into `result`.

    Adding a number whose last bit is the smallest subnormal rounds the value at that bit.
    """
    module = cupy()
    # float32's exponent of the smallest subnormal's 1, plus as many as its fraction has bits.
    anchor = np.uint32((known.rebias + 1 + known.dropped) << 23)
    smallest_normal = np.uint32((known.rebias + 1) << 23)
    module.add(magnitude.view(FLOAT32), anchor.view(FLOAT32), out=rest.view(FLOAT32))
    module.subtract(rest, anchor, out=rest)
    module.subtract(rest, result, out=rest)
    module.subtract(magnitude, smallest_normal, out=small)
    module.right_shift(small, _LAST, out=small)
    module.multiply(rest, small, out=rest)
    module.add(result, rest, out=result)


def _replace(result: Any, where: Any, value: np.uint32, rest: Any) -> None:
    """Put `value` in `result` where `where` is 1 and not 0."""
    module = cupy()
    module.subtract(value, result, out=rest)
    module.multiply(rest, where, out=rest)
    module.add(result, rest, out=result)
