"""Floats that are accumulated in float32, in device memory: one kernel reads, computes and rounds.

CuPy has no float8, and only some versions have bfloat16. So kernels take their bits, widen them to
float32 and round the result to nearest with ties to even, as `ml_dtypes` does on the host. The bits
are the same, except those of NaNs. `hpccomm.memory.cuda.folding` uses these kernels.
"""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.library import cupy
from hpccomm.reductions import ReduceOp

AT_ONCE = 16
"""Most contributions that one kernel takes. Each number of them is a kernel to compile."""

COMBINED = {
    ReduceOp.SUM: "__fadd_rn(t, s)",
    ReduceOp.AVG: "__fadd_rn(t, s)",
    ReduceOp.PROD: "__fmul_rn(t, s)",
    ReduceOp.MIN: "((t != t) | (t < s)) ? t : s",
    ReduceOp.MAX: "((t != t) | (t > s)) ? t : s",
}
"""How a kernel combines its value, t, with the next contribution, s. A NaN stays."""

DIVIDED, MULTIPLIED = "__fdiv_rn(t, c)", "__fmul_rn(t, c)"
"""The operations of a kernel on its number c before it rounds."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a float of fewer bits, relative to float32.

    Attributes
    ----------
    bits : dtype
        Unsigned integers of its size.
    sign : int
        Place of its sign.
    dropped : int
        Bits of float32's fraction that it lacks.
    scale : int
        Bits of the float32 by which a value is multiplied, as its exponent has another bias.
    special : int
        The smallest magnitude that is infinite or NaN.
    overflow : int
        The result for a magnitude that is too large.
    nan : int
        The NaN that replaces every NaN.
    half : int
        The number added before bits are dropped, besides the last kept bit: a little less than half
        of that bit, so that ties round to even, and the difference of the biases. It wraps in 32
        bits.
    normal : int
        Bits of the smallest float32 that does not become subnormal.
    anchor : int
        Bits of a float32 whose last bit is the smallest subnormal, so that adding it rounds there.
    """

    bits: DType
    sign: int
    dropped: int
    scale: int
    special: int
    overflow: int
    nan: int
    half: int
    normal: int
    anchor: int


def _format(
    bits: DType, dropped: int, rebias: int, special: int, overflow: int, nan: int
) -> Format:
    half = ((1 << (dropped - 1)) - 1 - (rebias << 23)) % (1 << 32)
    # Subnormals of bfloat16 are float32's, which need no care.
    normal = (rebias + 1) << 23 if rebias else 0
    anchor = (rebias + 1 + dropped) << 23
    sign, scale = 8 * bits.itemsize - 1, (127 + rebias) << 23
    return Format(bits, sign, dropped, scale, special, overflow, nan, half, normal, anchor)


FORMATS = {
    dtypes.BFLOAT16: _format(np.dtype(np.uint16), 16, 0, 0x7F80, 0x7F80, 0x7FC0),
    dtypes.FLOAT8_E4M3FN: _format(np.dtype(np.uint8), 20, 120, 0x7F, 0x7F, 0x7F),
    dtypes.FLOAT8_E5M2: _format(np.dtype(np.uint8), 21, 112, 0x7C, 0x7C, 0x7E),
}
"""The formats handled as bits. float16 is not among them, because CuPy has it."""

# Each operand stands in parentheses. Infinity and NaN have an exponent of all ones, which scaling loses.
_WIDENED = """
b = x{n}; m = b & ((1u << {sign}) - 1u);
s = (m < {special}u) ? __fmul_rn(__uint_as_float(m << {dropped}), __uint_as_float({scale}u)) : __uint_as_float((m << {dropped}) | 0x7f800000u);
s = __uint_as_float(__float_as_uint(s) | ((b >> {sign}) << 31));
"""
_ROUNDED = """
b = __float_as_uint(t); m = b & 0x7fffffffu;
r = ((m + {half}u) + ((m >> {dropped}) & 1u)) >> {dropped};
r = (r > {overflow}u) ? {overflow}u : r;
r = (m < {normal}u) ? (__float_as_uint(__fadd_rn(__uint_as_float(m), __uint_as_float({anchor}u))) - {anchor}u) : r;
r = (m > 0x7f800000u) ? {nan}u : r;
y = r | ((b >> 31) << {sign});
"""


def carrier(dtype: DType) -> DType:
    """Return the dtype in which CuPy gets elements of `dtype`: unsigned bits if CuPy lacks it."""
    known = FORMATS.get(dtype)
    return dtype if known is None else known.bits


def operation(
    sources: tuple[DType, ...], target: DType, combined: str = "", last: str = DIVIDED
) -> str:
    """Return the kernel's text for one element: x0, x1, ... and c give y."""
    text = ["unsigned int b, m, r; float s, t;"]
    for number, source in enumerate(sources):
        known = FORMATS.get(source)
        text.append(_WIDENED.format(n=number, **asdict(known)) if known else f"s = x{number};")
        text.append(f"t = {combined if number else 's'};")
    known = FORMATS.get(target)
    return "\n".join(
        (*text, f"t = {last};", _ROUNDED.format(**asdict(known)) if known else "y = t;")
    )


@cache
def kernel(
    sources: tuple[DType, ...], target: DType, combined: str = "", last: str = DIVIDED
) -> Any:
    """Return ``kernel(x0, x1, ..., c, out)``, which puts one kernel on CuPy's current stream.

    Parameters
    ----------
    sources : tuple of dtype
        Of the contributions: float32, or of `hpccomm.dtypes.NARROW`. Arrays have its `carrier`.
    target : dtype
        Of the result, as well.
    combined : str
        Of `COMBINED`.
    last : str
        `DIVIDED` or `MULTIPLIED`: the operation on the float32 c before the one rounding.
    """
    given = [f"{carrier(source)} x{number}" for number, source in enumerate(sources)]
    return cupy().ElementwiseKernel(
        ", ".join((*given, "float32 c")),
        f"{carrier(target)} y",
        operation(sources, target, combined, last),
        f"hpccomm_{len(sources)}_{sources[-1]}_to_{target}",
        no_return=True,
    )
