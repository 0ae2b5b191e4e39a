"""What reductions of arrays are: NumPy's operation of two, and the average of a sum."""

from fractions import Fraction
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.reductions import ReduceOp

FOLDS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
"""Of two arrays of one dtype; of booleans NumPy's sum is "or", their product "and"."""


def average(total: Any, ranks: int) -> Any:
    """Divide a sum: integers towards zero, real and imaginary parts each in their dtype."""
    if dtypes.is_integer(total.dtype):
        return np.array([int(Fraction(int(each), ranks)) for each in total], total.dtype)
    parts = total.view(total.real.dtype)
    return (parts / parts.dtype.type(ranks)).view(total.dtype)
