"""A stand-in for CuPy: the part of it that hpccomm and its tests use, on a machine without a GPU."""

import os
import warnings

from numpy import float32 as float32

from cupy import cuda as cuda
from cupy._arrays import ndarray as ndarray
from cupy._creation import *  # noqa: F403
from cupy._dlpack import from_dlpack as from_dlpack
from cupy._ufuncs import *  # noqa: F403
from cupy.cuda.memory import _pool  # CuPy keeps its pool to itself as well
from standin import driver as _driver

_driver.install()

__version__ = "14.2.0"

if os.environ.get("STANDIN_WARNING"):
    # As CuPy 14.2's _environment.py does for several packages of CuPy, and for a library that fails to load.
    warnings.warn(os.environ["STANDIN_WARNING"], UserWarning, stacklevel=1)


def get_default_memory_pool() -> "cuda.MemoryPool":
    return _pool
