"""Device arrays of other libraries, read and written where they lie, on their own current stream."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from front.arrays import OnlyDLPack
from front.device_inputs import device_of, filled, full, holds, ranks_sum, stream_of
from front.misuse import each_is_refused
from hpccomm import Communicator
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours

FRAMEWORKS = Behaviours("devices.frameworks")
OF_TORCH = Behaviours("devices.frameworks_of_torch")


class OnlyInterface:
    """An array that has ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.lacks = ""
        self._changes = changes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = {**self.array.__cuda_array_interface__, **self._changes}
        return {key: value for key, value in told.items() if key != self.lacks}


class Somewhere:
    """An array of a library whose arrays are in either memory, as JAX's are."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getattr__(self, name: str) -> Any:
        if name in ("__cuda_array_interface__", "__dlpack__", "__dlpack_device__"):
            return getattr(self.array, name)  # NumPy's arrays have no interface of CUDA's
        raise AttributeError(name)


@FRAMEWORKS.behaviour()
def a_class_with_arrays_in_either_memory(comm: Communicator) -> None:
    """Where an array lies is the array's, and not its class's."""
    with stream_of(comm):
        for host in (False, True, False):
            x: Any = np.full(6, comm.rank + 1.0, np.float32) if host else filled(comm, 6)
            comm.all_reduce(Somewhere(x))
            if host:
                assert x.tolist() == [ranks_sum(comm)] * 6, "in host memory"
            else:
                holds(x, full(ranks_sum(comm), 6), "on the device")


@FRAMEWORKS.behaviour(kind=(OnlyInterface, OnlyDLPack))
def protocols(comm: Communicator, kind: Callable[[Any], Any]) -> None:
    """Whatever shares device memory by a protocol takes part as x and as out."""
    with stream_of(comm):
        x, out = filled(comm, 6), filled(comm, 6)
        given = kind(x)
        assert comm.all_reduce(given) is given, "the result is x"
        holds(x, full(ranks_sum(comm), 6), "in place")
        x.fill(comm.rank + 1)
        comm.all_reduce(given, out=kind(out))
        holds(out, full(ranks_sum(comm), 6), "out")
        holds(x, full(comm.rank + 1, 6), "x")
        comm.broadcast(given, comm.size - 1)
        holds(x, full(comm.size, 6), "broadcast")
        x.fill(comm.rank + 1)
        comm.broadcast(given, 0, out=kind(out))
        holds(out, full(1, 6), "broadcast, out")
        holds(comm.broadcast(given, 0, out="new"), full(1, 6), "broadcast, new")
        holds(x, full(comm.rank + 1, 6), "x of the broadcasts")
        comm.send_recv(kind(x), comm.rank, kind(out), comm.rank)
        holds(out, full(comm.rank + 1, 6), "send_recv")


@FRAMEWORKS.behaviour()
def misused_protocols(comm: Communicator) -> None:
    """What is not contiguous, has a mask, or may not be written is refused."""
    with device_of(comm) as module:
        x = module.ones((4, 4), np.float32)
        frozen = OnlyInterface(x, data=(x.data.ptr, True))
        broken = OnlyInterface(x)
        broken.lacks = "data"
        wrong: tuple[tuple[Any, ...], ...] = (
            (OnlyInterface(x.T), "contiguous"),
            (OnlyInterface(x[:, 1]), "contiguous"),
            (OnlyInterface(x, mask=OnlyInterface(x)), "mask"),
            (broken, "__cuda_array_interface__", "data"),
            (frozen, "read-only"),
        )
        rows = ((UsageError, ("x", *words), comm.all_reduce, each) for each, *words in wrong)
        each_is_refused(comm, rows)
        comm.all_reduce(frozen, out=module.empty_like(x))
        comm.barrier()


@FRAMEWORKS.behaviour()
def the_stream_that_the_interface_names(comm: Communicator) -> None:
    """An array may say on which stream it is made; that is its current one."""
    with stream_of(comm), device_of(comm) as module:
        other = module.cuda.Stream(non_blocking=True)
        with other:
            x = filled(comm)
        comm.all_reduce(OnlyInterface(x, stream=other.ptr))
        with other:
            holds(x, full(ranks_sum(comm)), "on its stream")


@OF_TORCH.behaviour()
def torch_tensors(comm: Communicator) -> None:
    """PyTorch's CUDA tensors are read and written where they lie, on PyTorch's current stream."""
    import torch

    if not torch.cuda.is_available():
        return  # a PyTorch for the host
    device = torch.device("cuda", comm.device or 0)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        make_stream: Any = torch.cuda.Stream  # PyTorch has no types for it
        stream = make_stream(device)
        with torch.cuda.stream(stream):
            x = torch.full((3, 2), comm.rank + 1, dtype=dtype, device=device)
            assert comm.all_reduce(x) is x, "the result is x"
            made = comm.all_gather(x)
            assert isinstance(made, torch.Tensor), type(made)
            assert (made.dtype, tuple(made.shape)) == (dtype, (comm.size, 3, 2)), made
            work = comm.all_reduce(x, async_op=True)
            work.wait()
            total = ranks_sum(comm)
            assert x.cpu().flatten().tolist() == [total * comm.size] * 6, f"all_reduce, {dtype}"
            assert made.cpu().flatten().tolist() == [total] * 6 * comm.size, f"gathered, {dtype}"


@OF_TORCH.behaviour()
def tensors_whose_memory_is_not_what_they_hold(comm: Communicator) -> None:
    """One that is conjugated or negated when it is read, sparse, or recorded by autograd is refused."""
    import torch

    if not torch.cuda.is_available():
        return
    device = torch.device("cuda", comm.device or 0)
    x = torch.ones(3, dtype=torch.complex64, device=device)
    recorded = torch.ones(3, device=device, requires_grad=True)
    rows: tuple[tuple[Any, ...], ...] = (
        (UsageError, ("x", "grad", "detach"), comm.all_reduce, recorded),
        (UsageError, ("x", "conjugates", "resolve_conj"), comm.all_reduce, x.conj()),
        # PyTorch has no other name.
        (UsageError, ("x", "negates", "resolve_neg"), comm.all_reduce, torch._neg_view(x)),
        (UsageError, ("out", "sparse", "to_dense"), partial(comm.all_reduce, x, out=x.to_sparse())),
    )
    each_is_refused(comm, rows)


@FRAMEWORKS.behaviour()
def memory_that_lives_elsewhere(comm: Communicator) -> None:
    """CuPy arrays over memory of others, at odd places of it, are arrays as any."""
    with stream_of(comm), device_of(comm) as module:
        for odd in (1, comm.rank % 2):
            memory = module.zeros(8 * 5 + 1, np.uint8)
            pointer = module.cuda.MemoryPointer(memory.data.mem, 0) + odd
            x = module.ndarray((5,), np.uint8, pointer)
            x.fill(comm.rank + 1)
            cupy().cuda.get_current_stream().synchronize()
            comm.all_reduce(x)
            holds(x, full(ranks_sum(comm) % 256, 5, np.uint8), f"offset {odd}")
