"""Arrays in device memory, as CuPy has them; what is done with them runs on the current stream."""

import math
from typing import Any

import numpy as np

from cupy.cuda import runtime
from cupy.cuda.memory import alloc
from cupy.cuda.stream import get_current_stream
from standin import graphs, streams
from standin.arrays import Layout, kernel

_TYPES = frozenset("?bBhHiIlLqQefdFD")


def check_kernel_dtype(dtype):
    """Raise where CuPy has no C type for a dtype, so that nothing can be computed with it."""
    plain_void = dtype.num == np.dtype("V1").num and dtype.subdtype is None and dtype.itemsize
    if dtype.hasobject or not (dtype.char in _TYPES or dtype.name == "bfloat16" or plain_void):
        raise ValueError(f"Unsupported dtype {dtype}")


class ndarray:  # CuPy's name
    """An array in device memory."""

    __array_priority__ = 100

    def __init__(self, shape, dtype=float, memptr=None, strides=None, *, _base=None):
        self.shape = (int(shape),) if np.isscalar(shape) else tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        if memptr is None:  # over memory that is there it takes any
            check_kernel_dtype(self.dtype)
        self.itemsize = self.dtype.itemsize
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.itemsize
        if strides is None:
            after = [math.prod(self.shape[axis + 1 :]) for axis in range(self.ndim)]
            strides = [self.itemsize * each for each in after]
        self.strides = tuple(strides)
        self.data = alloc(self.nbytes) if memptr is None else memptr
        self.base = _base
        # NumPy's of the same form, which is never looked into.
        void = np.empty(1, f"V{self.itemsize}")
        form = np.lib.stride_tricks.as_strided(void, self.shape, self.strides)
        self._form = form.view(self.dtype)
        self.flags = self._form.flags
        self._c_contiguous = self.flags.c_contiguous

    # What it is

    @property
    def device(self):
        return self.data.device

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "strides": None if self.flags.c_contiguous else self.strides,
            "version": 3,
            "data": (self.data.ptr, False),
            "stream": get_current_stream().ptr or 1,
        }

    def __dlpack_device__(self):
        return 2, self.data.device_id

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        from cupy import _dlpack  # imports this module

        return _dlpack.export(self, max_version=max_version)

    def __len__(self):
        return self.shape[0]

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    # Views

    def _same_memory(self, change):
        changed = change(self._form)
        offset = _address(changed) - _address(self._form) if changed.size else 0
        base = self if self.base is None else self.base
        memory = self.data + offset
        return ndarray(changed.shape, changed.dtype, memory, changed.strides, _base=base)

    def __getitem__(self, key):
        if isinstance(key, ndarray):
            return _taken(self, key)
        return self._same_memory(lambda form: _at_least_array(form, key))

    def __setitem__(self, key, value):
        target = self[key]
        run(lambda x: x, target, value)

    def reshape(self, *shape, order="C"):
        wanted = shape[0] if len(shape) == 1 and not np.isscalar(shape[0]) else shape
        return self._same_memory(lambda form: form.reshape(wanted, copy=False))

    def ravel(self, order="C"):
        return self.reshape(-1)

    def view(self, dtype):
        return self._same_memory(lambda form: form.view(dtype))

    def transpose(self, *axes):
        return self._same_memory(lambda form: form.transpose(*axes))

    @property
    def T(self):  # NumPy's name
        return self.transpose()

    # Copies

    def get(self, stream=None, order="C", out=None, blocking=True):
        result = np.empty(self.shape, self.dtype) if out is None else out
        chosen = get_current_stream() if stream is None else stream
        layout = layout_of(self)
        there = streams.find(chosen.ptr, self.data.device_id)
        there.put(lambda: np.copyto(result, layout.host()))
        if blocking:
            runtime.streamSynchronize(chosen.ptr)
        return result

    def set(self, arr, stream=None):
        copied = arr.copy()
        layout = layout_of(self)
        chosen = get_current_stream() if stream is None else stream
        streams.find(chosen.ptr, self.data.device_id).put(lambda: np.copyto(layout.host(), copied))

    def copy(self, order="C"):
        return self.astype(self.dtype)

    def astype(self, dtype):
        wanted = np.dtype(dtype)
        if wanted != self.dtype:
            check_kernel_dtype(self.dtype)
        made = ndarray(self.shape, wanted)
        run(lambda x: x.astype(wanted), made, self)
        return made

    def fill(self, value):
        check_kernel_dtype(self.dtype)
        run(lambda: value, self)

    def tolist(self):
        return self.get().tolist()

    def __bool__(self):
        return bool(self.get())

    def __float__(self):
        return float(self.get())

    # NumPy's functions on it are CuPy's

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        import cupy

        kwargs = {name: each[0] if name == "out" else each for name, each in kwargs.items()}
        return getattr(cupy, ufunc.__name__)(*inputs, **kwargs)


def layout_of(x):
    """Return where the elements lie."""
    return Layout(x.data.ptr, x.shape, x.strides, x.dtype)


def _address(x):
    return x.__array_interface__["data"][0]


def _at_least_array(like, key):
    """Index so that a single element is an array without extents, as in CuPy."""
    parts = key if isinstance(key, tuple) else (key,)
    return like[key] if any(part is ... for part in parts) else like[(*parts, ...)]


def _taken(x, key):
    rows = key.get()
    made = ndarray(np.broadcast_to(np.False_, x.shape)[rows].shape, x.dtype)
    run(lambda values: values[rows], made, x)
    return made


def _operand(x, device):
    if not isinstance(x, ndarray):
        if isinstance(x, np.ndarray) and x.ndim:
            raise TypeError(f"Unsupported type {type(x)}")
        return x
    if x.data.device_id != device:
        raise ValueError("Array device must be same as the current device")
    return layout_of(x)


loaded: set[tuple[Any, ...]] = set()
"""Kernels that this process has compiled and loaded, by device."""


def _load(kernel):
    """Load a kernel upon its first use, which is refused where a capture forbids unsafe calls."""
    if kernel not in loaded:
        graphs.forbid_while_capturing()
        loaded.add(kernel)


def run(function, out, *inputs):
    """Put ``out[...] = function(*inputs)`` on the current stream."""
    device = runtime.getDevice()
    values = [_operand(x, device) for x in inputs]
    layout = _operand(out, device)
    stream = streams.find(get_current_stream().ptr)
    if stream.device.number != device:
        raise runtime.CUDARuntimeError(400)
    name = getattr(function, "kernel", function.__qualname__)
    _load((device, name, *(str(x.dtype) for x in (*inputs, out) if isinstance(x, ndarray))))
    if out.size:
        stream.put(kernel(function, layout, *values))
    return out
