"""In which dtype compressors compute, and how what they keep stays finite."""

import numpy as np

from hpccomm.dtypes import FLOAT32, DType, is_narrow
from hpccomm.gradients.arrays import Array


def wide(dtype: DType) -> DType:
    """Return in which dtype gradients are summed up: float32 for narrow floats, else their own."""
    return FLOAT32 if is_narrow(dtype) else dtype


def is_finite(x: Array) -> bool:
    """Return whether no element is NaN or infinite, by one pass without a temporary array."""
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(np.add.reduce(x, axis=None, dtype=np.float64)):
            return True  # infinities of both signs give NaN
    return x.dtype == np.float64 and bool(np.isfinite(x).all())  # whose sum may overflow


def drop_nonfinite(x: Array) -> bool:
    """Set elements that are NaN or infinite to 0, and return whether there were any."""
    if is_finite(x):
        return False
    x[~np.isfinite(x)] = 0
    return True
