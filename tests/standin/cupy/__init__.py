"""A stand-in for CuPy: the part of it that hpccomm and its tests use, on a machine without a GPU."""

import os
import warnings

from numpy import bool_ as bool_
from numpy import can_cast as can_cast
from numpy import complex64 as complex64
from numpy import complex128 as complex128
from numpy import dtype as dtype
from numpy import finfo as finfo
from numpy import float16 as float16
from numpy import float32 as float32
from numpy import float64 as float64
from numpy import iinfo as iinfo
from numpy import inf as inf
from numpy import int8 as int8
from numpy import int16 as int16
from numpy import int32 as int32
from numpy import int64 as int64
from numpy import nan as nan
from numpy import newaxis as newaxis
from numpy import pi as pi
from numpy import result_type as result_type
from numpy import uint8 as uint8
from numpy import uint16 as uint16
from numpy import uint32 as uint32
from numpy import uint64 as uint64

from cupy import cuda as cuda
from cupy._arrays import ndarray as ndarray
from cupy._creation import *  # noqa: F403
from cupy._dlpack import from_dlpack as from_dlpack
from cupy._ufuncs import *  # noqa: F403
from cupy.cuda.memory import _pool
from standin import driver as _driver

_driver.install()

__version__ = "14.2.0"

if os.environ.get("STANDIN_WARNING"):
    # As CuPy 14.2's _environment.py does for several packages of CuPy, and for a library that fails to load.
    warnings.warn(os.environ["STANDIN_WARNING"], UserWarning, stacklevel=1)


def get_default_memory_pool() -> "cuda.MemoryPool":
    return _pool
