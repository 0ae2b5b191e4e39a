"""The element types that hpccomm supports: a table that all layers above read."""

from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8_E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)
FLOAT8_E5M2 = np.dtype(ml_dtypes.float8_e5m2)

SIGNED: tuple[DType, ...] = tuple(np.dtype(f"i{size}") for size in (1, 2, 4, 8))
UNSIGNED: tuple[DType, ...] = tuple(np.dtype(f"u{size}") for size in (1, 2, 4, 8))
NARROW: tuple[DType, ...] = (np.dtype(np.float16), BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)
"""Floats that are accumulated in float32."""
WIDE: tuple[DType, ...] = (FLOAT32, np.dtype(np.float64))
COMPLEX: tuple[DType, ...] = (np.dtype(np.complex64), np.dtype(np.complex128))

BINNED = np.dtype([("top", np.int64), ("sums", np.int64, (4,))])
"""Sums of `hpccomm.memory.binned`, which SUM takes."""

REDUCIBLE: tuple[DType, ...] = (BOOL, *SIGNED, *UNSIGNED, *NARROW, *WIDE, *COMPLEX)
"""Every plain dtype that some reduction takes. MINLOC and MAXLOC take a structured one, `is_located`;
others (structured, datetime, ...) move but do not reduce."""

_INTEGERS = frozenset((*SIGNED, *UNSIGNED))
_FLOATS = frozenset((*NARROW, *WIDE))
_NARROW = frozenset(NARROW)
_COMPLEX = frozenset(COMPLEX)
_REDUCIBLE = frozenset(REDUCIBLE)


def is_integer(dtype: DType) -> bool:
    """Whether `dtype` is one of NumPy's fixed-size integers."""
    return dtype in _INTEGERS


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a real floating type, the narrow ones included."""
    return dtype in _FLOATS


def is_narrow(dtype: DType) -> bool:
    """Whether `dtype` is a float that is accumulated in float32."""
    return dtype in _NARROW


def is_complex(dtype: DType) -> bool:
    """Whether `dtype` is complex."""
    return dtype in _COMPLEX


def is_reducible(dtype: DType) -> bool:
    """Whether some reduction takes `dtype`."""
    return dtype in _REDUCIBLE


def is_located(dtype: DType) -> bool:
    """Whether elements of `dtype` are pairs of a real value and its index."""
    if dtype.names is None or set(dtype.names) != {"value", "index"}:
        return False
    value, index = dtype["value"], dtype["index"]
    return value in _REDUCIBLE and value not in _COMPLEX and index in _INTEGERS


def is_native(dtype: DType) -> bool:
    """Whether `dtype` has the machine's byte order, in all its fields."""
    # NumPy gives ml_dtypes' one-byte types the byte order '<' or '|', which is native either way.
    return dtype.isnative


def is_movable(dtype: DType) -> bool:
    """Whether elements of `dtype` are plain bytes (no references to Python objects)."""
    return not dtype.hasobject and dtype.itemsize > 0
