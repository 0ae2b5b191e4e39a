"""A stand-in for PyTorch with CUDA: tensors that say where they lie, and streams of their own.

A current stream of its own is what matters: it is not CuPy's.
"""

import sys
from functools import partial
from itertools import pairwise

import ml_dtypes
import numpy as np

import cupy
from cupy.cuda.memory import MemoryPointer, PooledMemory
from standin import control, streams
from torch import cuda as cuda


class dtype:  # PyTorch's name
    """An element type."""

    def __init__(self, name, numpy):
        self._name = name
        self.numpy = np.dtype(numpy)

    def __repr__(self):
        return f"torch.{self._name}"


_DTYPES = {
    name: dtype(name, name if hasattr(np, name) else getattr(ml_dtypes, name))
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 "
        "complex128 bfloat16 float8_e4m3fn float8_e5m2"
    ).split()
}
globals().update(_DTYPES)


def _of(numpy):
    return next(d for d in _DTYPES.values() if d.numpy == numpy)


strided, sparse_coo = "torch.strided", "torch.sparse_coo"
"""How a tensor's elements are stored."""


class device:  # PyTorch's name
    """Where a tensor lies."""

    def __init__(self, type, index=None):
        kind, _, number = str(type).partition(":")
        self.type = kind
        self.index = int(number) if number else index


class _Memory(PooledMemory):
    """Memory of the caching allocator, which gives a dropped tensor's to the stream that it was made on.

    Others may still use it: PyTorch's documentation of `Tensor.record_stream`.
    """

    def __init__(self, size):
        super().__init__(size)
        self._uses: list[streams.Marker] = []
        self._recorded: set[streams.Stream] = set()

    def use(self, stream):
        """Note what a stream does with it so far."""
        self._uses.append(stream.mark())

    def record(self, stream):
        """Note that a stream uses it."""
        self._recorded.add(stream)

    def __del__(self, finalizing=sys.is_finalizing):
        if self._lent is None or finalizing():
            return
        for use in self._uses:
            if use.stream not in {self._lent.stream, *self._recorded} and not use.done():
                control.violation("a tensor was dropped while a stream was to read it")
        for stream in self._recorded:
            stream.put(partial(_keep, self._lent))


def _keep(lent):
    """Keep memory until a stream comes to this."""


class Tensor:
    """A tensor in device memory (or in the host's, where it says so)."""

    requires_grad = False
    layout = strided

    is_sparse = is_quantized = is_cuda = False

    def __init__(self, array, *, conj=False, neg=False):
        self.array, self.shape, self.dtype = array, array.shape, _of(array.dtype)
        self._conj, self._neg = conj, neg
        self.is_cuda = isinstance(array, cupy.ndarray)
        self.is_cpu = not self.is_cuda
        self.device = device("cuda", self.get_device()) if self.is_cuda else device("cpu")

    def get_device(self):
        return self.array.data.device_id

    def data_ptr(self):
        return self.array.data.ptr

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def is_conj(self):
        return self._conj

    def is_neg(self):
        return self._neg

    def conj(self):
        """Return a view of the same memory that only says that it is conjugated."""
        return Tensor(self.array, conj=not self._conj) if self.array.dtype.kind == "c" else self

    def to_sparse(self):
        """Return what says that it is sparse, and has no address."""
        made = Tensor(self.array)
        made.layout = sparse_coo
        return made

    def numel(self):
        return self.array.size

    def contiguous(self):
        return self if self.is_contiguous() else self.new_empty(self.shape).copy_(self)

    def copy_(self, source):
        here = cuda.current_stream(self.get_device()).itself()
        with cuda.entered(self.get_device()):
            self.array[...] = source.array
        source.array.data.mem.use(here)
        return self

    def record_stream(self, stream):
        self.array.data.mem.record(stream.itself())

    def split(self, sizes):
        ends = np.cumsum([0, *sizes]).tolist()
        return [self[start:end] for start, end in pairwise(ends)]

    def detach(self):
        return Tensor(self.array)

    def requires_grad_(self, requires_grad=True):
        self.requires_grad = requires_grad
        return self

    def new_empty(self, size):
        with cuda.entered(self.get_device()):
            return Tensor(_device_empty(size, self.array.dtype))

    def __getitem__(self, key):
        return Tensor(self.array[key])

    def view(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def t(self):
        return Tensor(self.array.T)

    def fill_(self, value):
        with cuda.entered(self.get_device()):
            self.array[...] = np.asarray(value).astype(self.array.dtype)[()]
        return self

    def cpu(self):
        if not self.is_cuda:
            return self
        with cuda.entered(self.get_device()):
            return Tensor(self.array.get())

    def flatten(self):
        return Tensor(self.array.reshape(-1))

    reshape = view

    def tolist(self):
        return self.cpu().array.tolist()


def _debug_has_internal_overlap(tensor):
    return 0


def _neg_view(tensor):
    return Tensor(tensor.array, neg=not tensor.is_neg())


def _number(where):
    """Return the number of a CUDA device: tensors in host memory are not made here."""
    return cuda.index(where if isinstance(where, device) else device(str(where)))


def _shape(size):
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def empty(*size, dtype=_DTYPES["float32"], device=None, requires_grad=False):
    with cuda.entered(_number(device)):
        return Tensor(_device_empty(_shape(size), dtype.numpy)).requires_grad_(requires_grad)


def _device_empty(shape, dtype):
    """PyTorch has dtypes that CuPy makes no arrays of."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = _Memory(int(np.prod(extents, dtype=np.int64)) * dtype.itemsize)
    return cupy.ndarray(extents, dtype, MemoryPointer(memory, 0))


def full(size, fill_value, **keywords):
    return empty(size, **keywords).fill_(fill_value)


def zeros(*size, **keywords):
    return full(_shape(size), 0, **keywords)


def ones(*size, **keywords):
    return full(_shape(size), 1, **keywords)


from torch import distributed as distributed  # noqa: E402 (it takes what is above)
from torch import futures as futures  # noqa: E402
from torch import utils as utils  # noqa: E402
