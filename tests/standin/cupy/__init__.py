"""A stand-in for CuPy: the part of it that hpccomm and its tests use, on a machine without a GPU."""

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


def get_default_memory_pool():
    return _pool
