"""The names that flags and tables have: of element types, reductions and kinds of memory.

Types and reductions have nccl-tests' names, and NumPy's or our own where it has none. Logs and tuning use
them too.
"""

import numpy as np

from hpccomm import dtypes
from hpccomm.dtypes import DType
from hpccomm.reductions import Op, ReduceOp, premul_sum

PREMUL_FACTOR = 2
"""Factor of the reduction ``mulsum``: exact in every dtype, and never lost in a rounding."""


def _of_numpy(*names: str) -> dict[str, DType]:
    return {name: np.dtype(name) for name in names}


TYPES: dict[str, DType] = {
    **_of_numpy("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    "half": np.dtype(np.float16),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "bfloat16": dtypes.BFLOAT16,
    "f8e4m3": dtypes.FLOAT8_E4M3FN,
    "f8e5m2": dtypes.FLOAT8_E5M2,
    # nccl-tests ends here; the rest goes by NumPy's names.
    **_of_numpy("bool", "int16", "uint16", "complex64", "complex128"),
}
"""Element types in the order of ``-d all``, by the name that is printed."""

OPS: dict[str, Op] = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PROD,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "avg": ReduceOp.AVG,
    "mulsum": premul_sum(PREMUL_FACTOR),
    # nccl-tests ends here, since NCCL has no bitwise reductions.
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}
"""Reductions in the order of ``-o all``, by the name that is printed."""

AUTO, HOST, DEVICE = "auto", "host", "device"
"""Where arrays may lie, as ``--arrays`` has it."""

NCCL = "nccl"
"""The backend that device arrays are for."""

NO_OP = "none"
"""Printed where nothing is reduced."""

NO_TYPE = "none"
"""Printed where nothing is moved: the barrier."""
