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
        self.numpy = np.dtype(numpy)

    def __repr__(self) -> str:
        return f"torch.{self._name}"


_DTYPES = {
    name: dtype(name, name if hasattr(np, name) else getattr(ml_dtypes, name))
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 "
        "complex128 bfloat16 float8_e4m3fn float8_e5m2"
    ).split()
}
globals().update(_DTYPES)


def _of(numpy: np.dtype) -> dtype:
    return next(d for d in _DTYPES.values() if d.numpy == numpy)


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
        self.array = array
        self._conj = conj
        self._neg = neg

    @property
    def is_cuda(self) -> Any:
        return isinstance(self.array, cupy.ndarray)

    @property
    def is_cpu(self) -> Any:
        return not self.is_cuda

    is_sparse = False

    @property
    def device(self) -> device:
        return device("cuda", self.get_device()) if self.is_cuda else device("cpu")

    @property
    def dtype(self) -> dtype:
        return _of(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def get_device(self) -> int:
        return self.array.data.device_id

    def data_ptr(self) -> int:
        return self.array.data.ptr

    def is_contiguous(self) -> Any:
        return self.array.flags.c_contiguous

    def is_conj(self) -> Any:
        return self._conj

    def is_neg(self) -> Any:
        return self._neg

    is_quantized = False

    def conj(self) -> Tensor:
        """Return a view of the same memory that only says that it is conjugated."""
        return Tensor(self.array, conj=not self._conj) if self.array.dtype.kind == "c" else self

    def to_sparse(self) -> Tensor:
        """Return what says that it is sparse, and has no address."""
        made = Tensor(self.array)
        made.layout = sparse_coo
        return made

    def numel(self) -> int:
        return self.array.size

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else self.new_empty(self.shape).copy_(self)

    def copy_(self, source: Tensor) -> Tensor:
        here = cuda.current_stream(self.get_device()).itself()
        with cuda.entered(self.get_device()):
            self.array[...] = source.array
        source.array.data.mem.use(here)
        return self

    def record_stream(self, stream: cuda.Stream) -> None:
        self.array.data.mem.record(stream.itself())

    def split(self, sizes: list[int]) -> list[Tensor]:
        ends = np.cumsum([0, *sizes]).tolist()
        return [self[start:end] for start, end in pairwise(ends)]

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def requires_grad_(self, requires_grad: Any = True) -> Tensor:
        self.requires_grad = requires_grad
        return self

    def new_empty(self, size: Any, *, dtype: dtype | None = None) -> Tensor:
        kind = self.array.dtype if dtype is None else dtype.numpy
        with cuda.entered(self.get_device()):
            return Tensor(_device_empty(size, kind))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key])

    def view(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(*shape))

    def t(self) -> Tensor:
        return Tensor(self.array.T)

    def fill_(self, value: Any) -> Tensor:
        with cuda.entered(self.get_device()):
            self.array[...] = np.asarray(value).astype(self.array.dtype)[()]
        return self

    def cpu(self) -> Tensor:
        if not self.is_cuda:
            return self
        with cuda.entered(self.get_device()):
            return Tensor(self.array.get())

    def flatten(self) -> Tensor:
        return Tensor(self.array.reshape(-1))

    reshape = view

    def tolist(self) -> Any:
        return self.cpu().array.tolist()


def _debug_has_internal_overlap(tensor: Tensor) -> int:
    return 0


def _neg_view(tensor: Tensor) -> Tensor:
    return Tensor(tensor.array, neg=not tensor.is_neg())


def _number(where: Any) -> int:
    """Return the number of a CUDA device: tensors in host memory are not made here."""
    return cuda.index(where if isinstance(where, device) else device(str(where)))


def _shape(size: Any) -> Any:
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size


def empty(
    *size: Any, dtype: dtype = _DTYPES["float32"], device: Any = None, requires_grad: Any = False
) -> Tensor:
    with cuda.entered(_number(device)):
        return Tensor(_device_empty(_shape(size), dtype.numpy)).requires_grad_(requires_grad)


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
