"""How arrays in device memory are made, and brought to the host."""

import numpy as np

from cupy._arrays import ndarray
from cupy.cuda import runtime
from cupy.cuda.memory import MemoryPointer, UnownedMemory
from cupy.cuda.stream import get_current_stream

__all__ = [
    "arange", "array", "asarray", "asnumpy", "empty", "empty_like", "full", "ndarray", "ones", "zeros",
    "zeros_like",
]  # fmt: skip


def empty(shape, dtype=float):
    return ndarray(shape, dtype)


def zeros(shape, dtype=float):
    made = ndarray(shape, dtype)
    runtime.memsetAsync(made.data.ptr, 0, made.nbytes, get_current_stream().ptr)
    return made


def full(shape, fill_value, dtype=None):
    made = ndarray(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
    made.fill(fill_value)
    return made


def ones(shape, dtype=float):
    return full(shape, 1, dtype)


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    like = prototype
    return ndarray(like.shape if shape is None else shape, like.dtype if dtype is None else dtype)


def zeros_like(a, dtype=None):
    return zeros(a.shape, a.dtype if dtype is None else dtype)


def array(obj, dtype=None, copy=True, order="K"):
    if isinstance(obj, ndarray):
        if dtype is None or np.dtype(dtype) == obj.dtype:
            return obj.copy() if copy else obj
        return obj.astype(dtype)
    if hasattr(obj, "__cuda_array_interface__"):
        return array(_from_interface(obj), dtype, copy)
    values = np.ascontiguousarray(obj, dtype).reshape(np.shape(obj))
    made = ndarray(values.shape, values.dtype)
    made.set(values)
    return made


def _from_interface(obj):
    told = obj.__cuda_array_interface__
    pointer, _ = told["data"]
    dtype = np.dtype(told["typestr"])
    nbytes = int(np.prod(told["shape"], dtype=np.int64)) * dtype.itemsize
    memory = UnownedMemory(pointer, nbytes, obj, -1 if pointer else runtime.getDevice())
    return ndarray(told["shape"], dtype, MemoryPointer(memory, 0), told.get("strides"))


def asarray(a, dtype=None, order=None):
    return array(a, dtype, copy=False)


def arange(start, stop=None, step=1, dtype=None):
    values = np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype)
    return array(values)


def asnumpy(a, stream=None, order="C", out=None):
    return a.get(stream=stream, out=out) if isinstance(a, ndarray) else np.asarray(a)
