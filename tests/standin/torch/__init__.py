"""A stand-in for PyTorch with CUDA: tensors that say where they lie, and streams of their own.

A current stream of its own is what matters: it is not CuPy's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

import cupy
from cupy.cuda.memory import MemoryPointer, PooledMemory
from standin import control, streams
from torch import cuda as cuda


class dtype:  # PyTorch's name
    """An element type."""

    def __init__(self, name: str, numpy: Any) -> None:
        self._name = name
        self._numpy = np.dtype(numpy)

    def __repr__(self) -> str:
        return f"torch.{self._name}"


bool = dtype("bool", np.bool_)
uint8 = dtype("uint8", np.uint8)
int8 = dtype("int8", np.int8)
int16 = dtype("int16", np.int16)
int32 = dtype("int32", np.int32)
int64 = dtype("int64", np.int64)
uint16 = dtype("uint16", np.uint16)
uint32 = dtype("uint32", np.uint32)
uint64 = dtype("uint64", np.uint64)
float16 = dtype("float16", np.float16)
float32 = dtype("float32", np.float32)
float64 = dtype("float64", np.float64)
complex64 = dtype("complex64", np.complex64)
complex128 = dtype("complex128", np.complex128)
bfloat16 = dtype("bfloat16", ml_dtypes.bfloat16)
float8_e4m3fn = dtype("float8_e4m3fn", ml_dtypes.float8_e4m3fn)
float8_e5m2 = dtype("float8_e5m2", ml_dtypes.float8_e5m2)

_DTYPES = [value for value in list(globals().values()) if isinstance(value, dtype)]


def _of(numpy: np.dtype) -> dtype:
    return next(d for d in _DTYPES if d._numpy == numpy)


class layout:  # PyTorch's name
    """How a tensor's elements are stored."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


strided = layout("strided")
sparse_coo = layout("sparse_coo")


class device:  # PyTorch's name
    """Where a tensor lies."""

    def __init__(self, type: Any, index: int | None = None) -> None:
        kind, _, number = str(type).partition(":")
        self.type = kind
        self.index = int(number) if number else index


class _Memory(PooledMemory):
    """Memory of the caching allocator, which gives a dropped tensor's to the stream that it was made on.

    Others may still use it: PyTorch's documentation of `Tensor.record_stream`.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._uses: list[streams.Marker] = []
        self._recorded: set[streams.Stream] = set()

    def use(self, stream: streams.Stream) -> None:
        """Note what a stream does with it so far."""
        self._uses.append(stream.mark())

    def record(self, stream: streams.Stream) -> None:
        """Note that a stream uses it."""
        self._recorded.add(stream)

    def __del__(self, finalizing: Callable[[], Any] = sys.is_finalizing) -> None:
        if self._lent is None or finalizing():
            return
        for use in self._uses:
            if use.stream not in {self._lent.stream, *self._recorded} and not use.done():
                control.violation(
                    f"a tensor was dropped while stream {use.stream.pointer:#x} was to read it, "
                    "without a record_stream"
                )
        for stream in self._recorded:
            stream.put(partial(_keep, self._lent))


def _keep(lent: Any) -> None:
    """Keep memory until a stream comes to this."""


class Tensor:
    """A tensor in device memory (or in the host's, where it says so)."""

    requires_grad = False
    layout = strided

    def __init__(self, array: Any, *, conj: Any = False, neg: Any = False) -> None:
        self._array = array
        self._conj = conj
        self._neg = neg

    @property
    def is_cuda(self) -> Any:
        return isinstance(self._array, cupy.ndarray)

    @property
    def is_cpu(self) -> Any:
        return not self.is_cuda

    is_sparse = False

    @property
    def device(self) -> device:
        return device("cuda", self.get_device()) if self.is_cuda else device("cpu")

    @property
    def dtype(self) -> dtype:
        return _of(self._array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def get_device(self) -> int:
        return self._array.data.device_id

    def data_ptr(self) -> int:
        return self._array.data.ptr

    def is_contiguous(self) -> Any:
        return self._array.flags.c_contiguous

    def is_conj(self) -> Any:
        return self._conj

    def is_neg(self) -> Any:
        return self._neg

    is_quantized = False

    def conj(self) -> Tensor:
        """Return a view of the same memory that only says that it is conjugated."""
        return Tensor(self._array, conj=not self._conj) if self._array.dtype.kind == "c" else self

    def to_sparse(self) -> Tensor:
        """Return what says that it is sparse, and has no address."""
        made = Tensor(self._array)
        made.layout = sparse_coo
        return made

    def numel(self) -> int:
        return self._array.size

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else self.new_empty(self.shape).copy_(self)

    def copy_(self, source: Tensor) -> Tensor:
        here = cuda.current_stream(self.get_device())._itself()
        with cuda._current(self.get_device()):
            self._array[...] = source._array
        source._array.data.mem.use(here)
        return self

    def record_stream(self, stream: cuda.Stream) -> None:
        self._array.data.mem.record(stream._itself())

    def split(self, sizes: list[int]) -> list[Tensor]:
        ends = np.cumsum([0, *sizes]).tolist()
        return [self[start:end] for start, end in pairwise(ends)]

    def detach(self) -> Tensor:
        return Tensor(self._array)

    def requires_grad_(self, requires_grad: Any = True) -> Tensor:
        self.requires_grad = requires_grad
        return self

    def new_empty(self, size: Any, *, dtype: dtype | None = None) -> Tensor:
        kind = self._array.dtype if dtype is None else dtype._numpy
        with cuda._current(self.get_device()):
            return Tensor(_device_empty(size, kind))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self._array[key])

    def view(self, *shape: Any) -> Tensor:
        return Tensor(self._array.reshape(*shape))

    def t(self) -> Tensor:
        return Tensor(self._array.T)

    def fill_(self, value: Any) -> Tensor:
        with cuda._current(self.get_device()):
            self._array[...] = np.asarray(value).astype(self._array.dtype)[()]
        return self

    def cpu(self) -> Tensor:
        if not self.is_cuda:
            return self
        with cuda._current(self.get_device()):
            return Tensor(self._array.get())

    def flatten(self) -> Tensor:
        return Tensor(self._array.reshape(-1))

    reshape = view

    def tolist(self) -> Any:
        return self.cpu()._array.tolist()


def _debug_has_internal_overlap(tensor: Tensor) -> int:
    return 0


def _neg_view(tensor: Tensor) -> Tensor:
    return Tensor(tensor._array, neg=not tensor._neg)


def _number(where: Any) -> int:
    """Return the number of a CUDA device: tensors in host memory are not made here."""
    return cuda._index(where if isinstance(where, device) else device(str(where)))


def _shape(size: Any) -> Any:
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def empty(
    *size: Any, dtype: dtype = float32, device: Any = None, requires_grad: Any = False
) -> Tensor:
    with cuda._current(_number(device)):
        return Tensor(_device_empty(_shape(size), dtype._numpy)).requires_grad_(requires_grad)


def _device_empty(shape: Any, dtype: Any) -> Any:
    """PyTorch has dtypes that CuPy makes no arrays of."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = _Memory(int(np.prod(extents, dtype=np.int64)) * dtype.itemsize)
    return cupy.ndarray(extents, dtype, MemoryPointer(memory, 0))


def full(size: Any, fill_value: Any, **keywords: Any) -> Tensor:
    return empty(size, **keywords).fill_(fill_value)


def zeros(*size: Any, **keywords: Any) -> Tensor:
    return full(_shape(size), 0, **keywords)


def ones(*size: Any, **keywords: Any) -> Tensor:
    return full(_shape(size), 1, **keywords)


from torch import distributed as distributed  # noqa: E402 (it takes what is above)
from torch import futures as futures  # noqa: E402
from torch import utils as utils  # noqa: E402
