"""Accepted arrays: any object that shares memory in NumPy's terms."""

import array
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from front.forms import ALL_FORMS, made
from hpccomm import Communicator
from hpccomm.testing.conformance.case import Behaviours, equal

ARRAYS = Behaviours("arrays")
OF_TORCH = Behaviours("arrays_of_torch")


class OnlyDLPack:
    """An array of a foreign library that offers DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the memory over, as the array of NumPy or CuPy within would."""
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say where the memory is: the host's or CUDA's."""
        kind, number = self.values.__dlpack_device__()
        return int(kind), int(number)


KINDS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "bytearray": lambda values: bytearray(values.astype(np.uint8).tobytes()),
    "memoryview": lambda values: values.copy().data,
    "array": lambda values: array.array("d", values.tolist()),
    "ctypes": lambda values: (ctypes.c_double * values.size)(*values.tolist()),
    "DLPack": lambda values: OnlyDLPack(values.copy()),
    "subclass": lambda values: values.copy().view(np.recarray),
}


def contents(x: Any) -> list[float]:
    """Return the elements of any of the kinds."""
    return list(np.asarray(x.values if isinstance(x, OnlyDLPack) else x).tolist())


@ARRAYS.behaviour(name=KINDS)
def kinds(comm: Communicator, name: str) -> None:
    """Whatever has the buffer protocol or DLPack is read and written where it lies."""
    kind = KINDS[name]
    values = [np.arange(4.0) + rank for rank in range(comm.size)]
    total = np.sum(values, axis=0).tolist()
    x = kind(values[comm.rank])
    result = comm.all_reduce(x)
    assert contents(x) == total, "all_reduce, in place"
    assert contents(result) == total, "all_reduce, result"
    x, out = kind(values[comm.rank]), kind(np.zeros(4))
    comm.all_reduce(x, out=out)
    assert contents(out) == total, "all_reduce, out"
    assert contents(x) == values[comm.rank].tolist(), "x"
    comm.broadcast(x, comm.size - 1)
    assert contents(x) == values[-1].tolist(), "broadcast"
    gathered = comm.all_gather(kind(values[comm.rank]))
    assert contents(gathered) == np.stack(values).tolist(), "all_gather"
    left = (comm.rank - 1) % comm.size
    comm.send_recv(kind(values[comm.rank]), (comm.rank + 1) % comm.size, out, left)
    assert contents(out) == values[left].tolist(), "send_recv"


@ARRAYS.behaviour(form=ALL_FORMS)
def broadcast_to_another_array(comm: Communicator, form: str) -> None:
    """With `out`, every rank gets the root's array there, as from numpy.copyto, and no x is written."""
    for root in range(comm.size):
        x = np.arange(6.0).reshape(2, 3) + 10 * comm.rank
        x.flags.writeable = False
        expected = np.arange(6.0).reshape(2, 3) + 10 * root
        new = made(comm, form, "broadcast", x, root, out="new")
        equal(new, expected, "new")
        assert not np.shares_memory(new, x), "the new array is x"
        out = np.zeros(6) if comm.rank % 2 else np.zeros((3, 2))  # any shape of as many elements
        assert made(comm, form, "broadcast", x, root, out=out) is out, "the result is out"
        equal(out.ravel(), expected.ravel(), "out")
        equal(x, np.arange(6.0).reshape(2, 3) + 10 * comm.rank, "x")
        y = x.copy()
        assert made(comm, form, "broadcast", y, root, out=y) is y, "out may be x"
        equal(y, expected, "out is x")


@ARRAYS.behaviour()
def read_only_arrays_may_be_read(comm: Communicator) -> None:
    """What a call does not write may be read-only: bytes and frozen arrays."""
    x = np.full((comm.size, 2), comm.rank, np.int64)
    x.flags.writeable = False
    ranks = np.arange(comm.size)
    equal(comm.all_gather(x)[:, 0, 0], ranks, "all_gather")
    equal(comm.all_to_all(x)[:, 0], ranks, "all_to_all")
    equal(comm.reduce_scatter(x), np.full((1, 2), ranks.sum()), "reduce_scatter")
    equal(comm.all_reduce(x, out=np.empty_like(x))[0], np.full(2, ranks.sum()), "all_reduce")
    comm.broadcast(x if comm.rank == 0 else np.empty_like(x))
    comm.gather(x)
    comm.reduce(x, out=np.empty_like(x) if comm.rank == 0 else None)
    out = np.empty(2, np.int64)
    comm.scatter(x if comm.rank == 0 else None, out=out)
    comm.send_recv(x[0], comm.rank, out, comm.rank)
    assert bytes(comm.all_gather(bytes([comm.rank]))) == bytes(range(comm.size)), "bytes"


@OF_TORCH.behaviour()
def torch_tensors(comm: Communicator) -> None:
    """PyTorch's CPU tensors are read and written where they lie, bfloat16 and bool among them.

    A call that makes its own result makes it in PyTorch too.
    """
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64):
        x = torch.full((3, 2), comm.rank + 1, dtype=dtype)
        comm.all_reduce(x)
        total = comm.size * (comm.size + 1) // 2
        assert torch.equal(x, torch.full((3, 2), total, dtype=dtype)), f"all_reduce, {dtype}"
        out = torch.zeros((comm.size, 6), dtype=dtype)
        comm.all_gather(torch.full((3, 2), comm.rank, dtype=dtype), out=out)
        expected = torch.arange(comm.size).to(dtype).repeat_interleave(6).reshape(-1, 6)
        assert torch.equal(out, expected), f"all_gather, {dtype}"
    flag = torch.tensor([comm.rank == 0, False, True])
    comm.all_reduce(flag)
    assert flag.tolist() == [True, False, True], "bool SUM is or"
    comm.broadcast(x, comm.size - 1)
    received = torch.empty(3)
    left = (comm.rank - 1) % comm.size
    comm.send_recv(torch.full((3,), float(comm.rank)), (comm.rank + 1) % comm.size, received, left)
    assert received.tolist() == [left] * 3, "send_recv"
    x = torch.full((comm.size, 2), float(comm.rank), dtype=torch.bfloat16)
    for outcome in (comm.all_gather(x), comm.all_to_all(x), comm.reduce_scatter(x), comm.scan(x)):
        assert isinstance(outcome, torch.Tensor), type(outcome)
        assert outcome.dtype == torch.bfloat16, outcome.dtype
