"""The collectives: each as Gloo does it, in both spellings, for what both take."""

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peers import both, gloo, same
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from hpccomm.errors import UsageError
from hpccomm.memory.shared.pages import join_pages
from hpccomm.torch.tensors import LARGE

gathered = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
scattered = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def data(shape: Any, dtype: Any = torch.float32, factor: int = 1) -> torch.Tensor:
    """Small numbers, which differ between ranks and are exact in every dtype."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * factor + dist.get_rank()) % 3
    return numbers.to(torch.float32).to(dtype).reshape(shape)


def collectives() -> None:
    """Tensors whose elements lie in memory in any way are taken as by Gloo; PyTorch's own tests have the usual ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    root = size - 1

    def like(x: Any) -> Any:
        return [torch.empty_like(x) for _ in range(size)]

    def parts(x: Any) -> Any:
        return [x + each for each in range(size)]

    for call, arguments in (
        (dist.all_reduce, lambda x: (x,)),
        (dist.broadcast, lambda x: (x, root)),
        (dist.all_gather, lambda x: (like(x), x)),
        (dist.gather, lambda x: (x, like(x) if rank == root else None, root)),
        (dist.scatter, lambda x: (like(x)[0], parts(x) if rank == root else None, root)),
        (dist.reduce_scatter, lambda x: (like(x)[0], parts(x))),
    ):
        for x in (data((4, 6)), data((6, 4)).mT, data((4, 12))[..., ::2]):
            theirs = arguments(x.clone(memory_format=torch.contiguous_format))
            call(*theirs, group=gloo())
            ours = arguments(x.clone() if x.is_contiguous() else x)
            call(*ours)
            same(ours, theirs)


def shapes() -> None:
    """Tensors without elements, without dimensions, and lists of different sizes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for group in both():
        nothing = torch.empty(0, 3)
        dist.all_reduce(nothing, group=group)
        dist.broadcast(nothing, 0, group=group)
        number = torch.tensor(rank + 1.0)
        dist.all_reduce(number, group=group)
        assert number.item() == size * (size + 1) / 2
        every = [torch.tensor(0.0) for _ in range(size)]
        dist.all_gather(every, torch.tensor(float(rank)), group=group)
        assert [each.item() for each in every] == list(range(size))
    # As NCCL does, which Gloo refuses.
    outs = [torch.empty(each + 1) for each in range(size)]
    dist.all_gather(outs, torch.full((rank + 1,), float(rank)))
    assert [each.tolist() for each in outs] == [[float(each)] * (each + 1) for each in range(size)]
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [torch.ones(each + 1) for each in range(size)])
    assert out.tolist() == [size] * (rank + 1)
    outs = [torch.empty(rank + 1) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((each + 1,), float(rank)) for each in range(size)])
    assert [each[0].item() for each in outs] == list(range(size))
    # A rank without rows has a tensor without columns; each of the others has rows for rank 0.
    x, out = torch.empty(0), torch.zeros(size - 1, 4)
    if rank > 0:
        x, out = torch.full((1, 4), float(rank)), torch.empty(0)
    sent = [int(rank > 0), *[0] * (size - 1)]
    dist.all_to_all_single(out, x, [0] * size if rank else [0, *[1] * (size - 1)], sent)
    assert rank > 0 or out[:, 3].tolist() == list(range(1, size))
    # Parts that add up to the right sum are refused where they are, before anything is sent.
    if rank == 0:
        parts = [torch.empty(1), torch.empty(3), *[torch.empty(2)] * (size - 2)]
        with pytest.raises(UsageError, match="equal ones"):
            dist.gather(torch.empty(2), parts, 0)
        with pytest.raises(UsageError, match="equal ones"):
            dist.scatter(torch.empty(2), parts, 0)
    conj = torch.full((2,), 1 + 2j).conj()
    dist.group.WORLD.broadcast(conj, 0).wait()  # c10d's own functions refuse it
    assert conj.tolist() == [1 - 2j] * 2


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int32, torch.int64,
)  # fmt: skip


def reductions() -> None:
    """Every reduction of every dtype that Gloo has, and those that it lacks."""
    rank, size, op = dist.get_rank(), dist.get_world_size(), dist.ReduceOp
    known = itertools.product(DTYPES, (op.SUM, op.MIN, op.MAX, op.PRODUCT))
    bits = itertools.product((torch.int32, torch.uint8), (op.BAND, op.BOR, op.BXOR))
    for dtype, reduction in (*known, *bits):
        results = []
        for group in both():
            x = data((5,), dtype)
            dist.all_reduce(x, reduction, group=group)
            results.append(x)
        same(*results)
    half = dist._make_nccl_premul_sum(0.5)  # PyTorch has no public one
    for x, reduction, wanted in (
        (torch.full((3,), rank + 1.0), op.AVG, [(size + 1) / 2] * 3),
        (torch.ones(3, dtype=torch.float64), half, [size / 2] * 3),
        (torch.tensor([rank == 0, True, False]), op.SUM, [True, True, False]),
        (torch.full((3,), 1 + rank * 1j), op.SUM, [size + size * (size - 1) / 2 * 1j] * 3),
        (torch.ones(8).to(torch.float8_e4m3fn), op.SUM, [size] * 8),
    ):
        dist.all_reduce(x, reduction)
        x = x.float() if x.dtype.itemsize == 1 and x.is_floating_point() else x
        assert x.tolist() == wanted


def sparse() -> None:
    """Sparse tensors are summed as by Gloo, also as gradients of DistributedDataParallel; shapes must be equal."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for values in (torch.ones(3).bfloat16(), torch.ones(3, 2, dtype=torch.float64), torch.empty(0)):
        indices = torch.tensor([[0, rank, 0], [1, 2, 1]])[:, : len(values)]  # one twice
        results = []
        for group in both():
            torch.manual_seed(1)
            x = torch.sparse_coo_tensor(indices, values, (size, 3, *values.shape[1:]))
            assert dist.all_reduce(x, group=group, async_op=True).get_future().wait()[0] is x
            embedding = torch.nn.Embedding(9, 2, sparse=True)
            model = DistributedDataParallel(embedding, process_group=group)
            model(torch.tensor([rank, 8])).sum().backward()
            results.append([x.to_dense(), embedding.weight.grad.to_dense()])
        same(*results)
    with pytest.raises(dist.DistBackendError, match=r"RankMismatch: .*\[1, 3\]"):
        dist.all_reduce(torch.ones(1, 3 + rank).to_sparse(), group=dist.new_group())


def movements() -> None:
    """Every dtype is moved, also those that are known as bytes alone."""
    size = dist.get_world_size()
    narrow = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu)
    paired = (torch.complex32, torch.complex64, torch.complex128)
    for dtype in (*DTYPES, *paired, *narrow, torch.bool, torch.uint16):
        x = data((2, 3)).to(dtype)
        every = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(every, x)
        same(every[dist.get_rank()], x)
        dist.broadcast(x, 0)
        same(x, every[0])


def spellings() -> None:
    """Each method of a group has both its names, and takes options or what they have in them."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2

    def ones() -> torch.Tensor:
        return torch.full((size,), rank + 1.0)

    def one(out: torch.Tensor) -> Any:
        return out, ones()

    def several(out: torch.Tensor) -> Any:
        return [out], [ones()]

    for call in (
        lambda x: group.allreduce([x]),
        lambda x: group.allreduce(x),
        lambda x: group.allreduce(x, dist.ReduceOp.SUM),
        lambda x: group.allreduce([x], dist.AllreduceOptions()),
        lambda x: group.allreduce([x], opts=dist.AllreduceOptions()),
        lambda x: group.allreduce_coalesced([x], dist.AllreduceCoalescedOptions()),
    ):
        x = ones()
        call(x).wait()
        assert x.tolist() == [total] * size
    x = ones().requires_grad_()
    with torch.no_grad():
        group.broadcast(x, 0).wait()
    assert x.tolist() == [1] * size
    each = [float(one + 1) for one in range(size)]
    square = [value for value in each for _ in range(size)]
    # Both names, what comes, and the arguments that take it.
    for names, wanted, arguments in (
        (("_allgather_base", "all_gather_single"), square, one),
        (("_reduce_scatter_base", "reduce_scatter_single"), [total], one),
        (("alltoall_base", "all_to_all_single"), each, lambda out: (out, ones(), [], [])),
        (("allgather_into_tensor_coalesced", "all_gather_single_coalesced"), square, several),
        (("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"), [total], several),
    ):
        usual = [getattr(group, names[0])] if names[0].startswith("_") else []
        for name in names:
            out = torch.empty(len(wanted))
            getattr(group, name, *usual)(*arguments(out)).wait()
            assert out.tolist() == wanted
    for name in ("gather_single", "gather_into_tensor"):  # from PyTorch 2.14 on
        out, options = torch.empty(size * size if rank == 1 else 0), dist.GatherOptions()
        options.rootRank = 1
        getattr(group, name)(out, ones(), options).wait()
        assert out.tolist() == (square if rank == 1 else [])
    outs = [[torch.empty(size) for _ in range(size)]]
    group.allgather(outs, [ones()]).wait()
    group.allgather(outs[0], ones()).wait()
    by_rank = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
    group.allgather_coalesced(by_rank, [torch.full((2,), float(rank)), torch.ones(1)]).wait()
    assert [each[0][1].item() for each in by_rank] == list(range(size))
    assert (group.rank(), group.size(), group.name()) == (rank, size, "hpccomm")


def coalescing() -> None:
    """Calls within c10d's coalescing manager are made at its end, and none is lost after it."""
    size, group, cpu = dist.get_world_size(), dist.group.WORLD, torch.device("cpu")
    # FSDP and others take these of PyTorch's, which has no public ones.
    manager, start, end = c10d._coalescing_manager, group._start_coalescing, group._end_coalescing
    xs = [torch.ones(each + 1) for each in range(3)]
    outs = [torch.empty(size * 2) for _ in range(2)]
    for times, options in enumerate(({}, {"device": cpu, "async_ops": True}), 1):
        with manager(**options) as coalesced:
            for x in xs:
                dist.all_reduce(x)
        if options:
            coalesced.wait()
        assert all(x.eq(size**times).all() for x in xs)
    with manager(async_ops=True) as coalesced:
        for out in outs:
            gathered(out, torch.ones(2))
    coalesced.wait()
    assert all(out.eq(1).all() for out in outs)
    # What is coalesced is a thread's own: others go on, and within it there is no other.
    x, y = torch.ones(1), torch.ones(1)
    start(cpu)
    group.allreduce([x])
    with pytest.raises(UsageError, match="outer"):
        start(cpu)
    thread = threading.Thread(target=lambda: group.allreduce([y]).wait(), daemon=True)
    thread.start()
    thread.join(60)
    assert (x.item(), y.item()) == (1, size)
    end(cpu).wait()
    assert x.item() == size
    for nothing in (group.allreduce([]), group.allreduce_coalesced([])):
        nothing.wait()
        nothing.get_future().wait()


def pages() -> None:
    """A large tensor has huge pages from its second call on: one of a single call does not pay for them."""

    def huge() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHuge"))

    def tensor() -> torch.Tensor:
        return torch.ones(2 * LARGE)  # 32 MiB

    def able() -> bool:  # not on every system, nor while it lacks memory
        other, before = tensor(), huge()
        join_pages(other.data_ptr(), other.nbytes)
        return huge() > before + LARGE

    dist.all_reduce(tensor())  # has memory that later calls use
    x = tensor()
    able_before, before = able(), huge()
    dist.all_reduce(x)
    assert huge() < before + LARGE
    dist.all_reduce(x)
    assert huge() > before + LARGE or not (able_before and able())
