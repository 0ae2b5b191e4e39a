"""NCCL's reductions, with its arithmetic."""

import ml_dtypes
import numpy as np

AVG, PREMUL = 4, 5

_FLOATS = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
DTYPES = tuple(map(np.dtype, (*"i1 u1 i4 u4 i8 u8 f2 f4 f8".split(), *_FLOATS)))
"""By NCCL's numbers."""

FLOAT8 = (10, 11)

_LARGEST = {DTYPES[10]: 448.0, DTYPES[11]: 57344.0}

# NaN gives way to a number, as fmaxf and fminf have it.
_FOLDS = (np.add, np.multiply, np.fmax, np.fmin, np.add, np.add)
"""By NCCL's numbers of reductions: averages and sums with a factor are sums."""


def _rounded(function: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a function of elements; of narrower floats it is computed in float32."""
    narrow = a.dtype.itemsize < 4 and a.dtype.kind not in "iu"
    wide = np.dtype(np.float32) if narrow else a.dtype
    values, largest = function(a.astype(wide), b.astype(wide)), _LARGEST.get(a.dtype, np.inf)
    if narrow:
        values = np.clip(values, -largest, largest)  # CUDA's conversions to float8 saturate
    return values.astype(a.dtype)


def scaled(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return `x` times a factor of its own dtype."""
    return _rounded(np.multiply, x, factor)


def reduced(parts: list[np.ndarray], op: int) -> np.ndarray:
    """Return the reduction of the ranks' contributions.

    Floats are rounded at each hop, and no order is promised: as on a ring, each part of the elements
    is folded from another rank on.
    """
    ranks = len(parts)
    with np.errstate(all="ignore"):
        if op == AVG and parts[0].dtype.kind not in "iu":
            # NCCL multiplies by 1/n, of the elements' own precision, and then sums.
            factor = np.asarray(1.0 / ranks).astype(parts[0].dtype)
            parts = [scaled(part, factor) for part in parts]
        result = np.empty_like(parts[0])
        cuts = [len(result) * i // ranks for i in range(ranks + 1)]
        for block in range(ranks):
            span = slice(cuts[block], cuts[block + 1])
            total = parts[(block + 1) % ranks][span]
            for hop in range(2, ranks + 1):
                total = _rounded(_FOLDS[op], total, parts[(block + hop) % ranks][span])
            result[span] = total
        if op == AVG and result.dtype.kind in "iu":
            quotient = np.abs(result.astype(object)) // ranks if result.size else result
            result[...] = np.where(result < 0, -quotient, quotient)
    return result
