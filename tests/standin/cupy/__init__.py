"""A stand-in for CuPy: the part of it that hpccomm and its tests use, on a machine without a GPU."""

from cupy import cuda as cuda
from cupy._arrays import *  # noqa: F403
from cupy._arrays import ndarray as ndarray
from cupy._dlpack import from_dlpack as from_dlpack
from cupy._ufuncs import *  # noqa: F403
from cupy.cuda.memory import _pool

from numpy import (  # noqa: F401, I001  # CuPy has NumPy's own
    bool_, complex64, complex128, dtype, float16, float32, float64, inf, int8, int16, int32, int64,
    nan, newaxis, pi, uint8, uint16, uint32, uint64, finfo, iinfo, result_type, can_cast,
)

__version__ = "14.2.0"


def get_default_memory_pool() -> "cuda.MemoryPool":
    return _pool


def get_array_module(*args: object) -> object:
    import sys

    import numpy

    return sys.modules[__name__] if any(isinstance(x, ndarray) for x in args) else numpy
