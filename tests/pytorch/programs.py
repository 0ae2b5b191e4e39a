"""Training programs: on the backend and on Gloo, which differ in the group alone, to the same parameters."""

import inspect
import io
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from peers import both, same
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import hpccomm
import hpccomm.torch
from hpccomm import gradients
from hpccomm.torch.group import HpccommGroup
from hpccomm.torch.hooks import CompressedBuckets
from hpccomm.torch.registration import MARK
from hpccomm.torch.starting import JobStore
from hpccomm.torch.work import ReceiveWork

WIDTH = 16


class Block(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


def blocks() -> Any:
    """Return a model whose parameters are the same on all ranks."""
    torch.manual_seed(3)
    return nn.Sequential(Block(), Block())


def train(model: Any, optimizer: Any, *, rank: int, steps: int = 4) -> list[torch.Tensor]:
    """Train, and return the parameters."""
    for step in range(steps):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
        nn.functional.mse_loss(model(x), x.roll(1, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(model)


def adam(model: Any) -> Any:
    """Adam, which does not make large steps of gradients that are nothing but rounding."""
    return torch.optim.Adam(model.parameters(), 0.01, eps=1e-3)


def whole(model: Any) -> list[torch.Tensor]:
    return [
        each.full_tensor() if isinstance(each, DTensor) else each.detach().clone()
        for each in model.parameters()
    ]


def alike(ours: list[torch.Tensor], theirs: list[torch.Tensor], most: float = 1e-6) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=most, atol=most)


def on_both(run: Any, most: float = 1e-6) -> None:
    """Check that a program ends with the same parameters on the backend and on Gloo."""
    alike(*map(run, both()), most)


def mesh_of(group: Any) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu")


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), 0.1)


def ddp_ways() -> None:
    """DistributedDataParallel, and its options: views of buckets, unused parameters, a static graph, hooks, join."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    rank = dist.get_rank()

    def partly() -> Any:
        model = blocks()
        model.forward = model[rank % 2].forward  # ranks use different blocks
        return model

    def ddp(group: Any, make: Any = blocks, **options: Any) -> Any:
        return DistributedDataParallel(make(), process_group=group, bucket_cap_mb=0.002, **options)

    def run(group: Any, **options: Any) -> Any:
        model = ddp(group, **options)
        return train(model, sgd(model), rank=rank)

    def joined(group: Any) -> Any:
        model = ddp(group)
        with model.join():
            return train(model, sgd(model), rank=rank, steps=2 + rank)

    def halved(group: Any) -> Any:
        model = ddp(group)
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        return train(model, sgd(model), rank=rank)

    on_both(run)
    on_both(lambda group: run(group, make=partly, find_unused_parameters=True))
    on_both(lambda group: run(group, static_graph=True, gradient_as_bucket_view=True))
    on_both(joined)
    on_both(halved, 1e-4)  # Gloo rounds to float16 in another order


def compressed() -> None:
    """DistributedDataParallel sends what hpccomm's compressors make of gradients, and learns."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def run(state: Any, hook: Any, **options: Any) -> list[torch.Tensor]:
        model = DistributedDataParallel(blocks(), **options)
        if hook is not None:
            model.register_comm_hook(state, hook)
        return train(model, sgd(model), rank=dist.get_rank())

    exact = run(None, None)
    for compressor in (gradients.PowerSGD(2), gradients.TopK(0.3), gradients.MixedPrecision()):
        hook = hpccomm.torch.ddp_comm_hook(compressor)
        got = run(None, hook, gradient_as_bucket_view=True)
        first = [each.clone() for each in got]
        for each in first:
            dist.broadcast(each, 0)
        same(got, first)  # the same bits on all ranks
        alike(got, exact, 0.2)
    # PyTorch's own waits for one future within another one's callback.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    run(state, powerSGD_hook.powerSGD_hook)


def fsdp2() -> None:
    """Parameters, gradients and optimiser states divided among the ranks."""

    def run(group: Any) -> list[torch.Tensor]:
        model = blocks()
        for each in (*model, model):
            fully_shard(each, mesh=mesh_of(group))
        return train(model, adam(model), rank=dist.get_rank())

    on_both(run)


def tensor_parallel() -> None:
    """Layers divided among pairs of ranks."""
    pairs: dict[str, Any] = {}
    for backend in ("hpccomm", "gloo"):
        for first in range(0, dist.get_world_size(), 2):
            group = dist.new_group([first, first + 1], backend=backend)
            if dist.get_rank() // 2 == first // 2:
                pairs[backend] = group

    def run(backend: str) -> list[torch.Tensor]:
        model = blocks()
        for block in model:
            layers = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh_of(pairs[backend]), layers)
        return train(model, adam(model), rank=0)

    alike(run("hpccomm"), run("gloo"))
    alone = blocks()
    plain = train(alone, adam(alone), rank=0)
    torch.testing.assert_close(run("hpccomm")[0], plain[0], rtol=1e-3, atol=1e-3)


def pipeline() -> None:
    """Stages of a model exchange what they compute and its gradients."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()

    def run(group: Any) -> list[torch.Tensor]:
        torch.manual_seed(rank)
        layer = nn.Linear(4, 4)
        stage = PipelineStage(layer, rank, size, torch.device("cpu"), group=group)
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, target: (y - target).square().mean())
        x, target = torch.arange(32.0).reshape(8, 4) / 32, torch.zeros(8, 4)
        schedule.step(*([x] if rank == 0 else []), target=target if rank == size - 1 else None)
        return [each.grad for each in layer.parameters()]

    on_both(run)


def checkpoint() -> None:
    """A divided model is saved and loaded."""
    import torch.distributed.checkpoint as dcp

    x = torch.arange(24.0).reshape(6, 4)
    mesh = mesh_of(dist.group.WORLD)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    dcp.save({"x": distribute_tensor(x, mesh, [Shard(0)])}, checkpoint_id=folder[0])
    by_column = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)])
    dcp.load({"x": by_column}, checkpoint_id=folder[0])
    assert torch.equal(by_column.full_tensor(), x)


def zero_redundancy() -> None:
    """An optimiser whose state is divided, and gathered for saving."""

    def run(group: Any) -> list[torch.Tensor]:
        model = DistributedDataParallel(blocks(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01, eps=1e-3
        )
        trained = train(model, optimizer, rank=dist.get_rank())
        optimizer.consolidate_state_dict(0)
        if dist.get_rank() == 0:
            torch.save(optimizer.state_dict(), io.BytesIO())
        return trained

    on_both(run)


def compiled() -> None:
    """Functional collectives, traced as well."""
    size = dist.get_world_size()
    gathered = getattr(functional, "all_gather_single", functional.all_gather_tensor)
    scattered = getattr(functional, "reduce_scatter_single", functional.reduce_scatter_tensor)

    def program(x: torch.Tensor) -> torch.Tensor:
        summed = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        every = gathered(summed, 0, dist.group.WORLD)
        return scattered(every, "sum", 0, dist.group.WORLD) + 1

    x = torch.ones(4, 2)
    right = torch.full((4, 2), 2.0 * size * size + 1)
    assert torch.equal(program(x), right)
    traced = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(x), right)
    exchanged = functional.all_to_all_single(torch.arange(2.0 * size), None, None, dist.group.WORLD)
    assert exchanged.tolist()[::2] == [2.0 * dist.get_rank()] * size


def compiled_ddp() -> None:
    """Dynamo leaves out what C++ calls under a compiled model, such as ``broadcast`` as buckets are made anew.

    Gloo's group is none of Python, so it has nothing to trace.
    """
    for kind in (HpccommGroup, ReceiveWork, JobStore, CompressedBuckets):
        for own in (each for each in kind.__mro__ if each.__module__.startswith("hpccomm")):
            for name, function in vars(own).items():
                assert not inspect.isfunction(function) or hasattr(function, MARK), name

    def run(group: Any, hook: Any = None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Linear(4, 4), process_group=group)
        optimizer = sgd(model)
        if hook is not None:
            model.register_comm_hook(None, hook)

        def step(x: torch.Tensor) -> None:
            model(x).square().sum().backward()

        compiled, whole_step = (torch.compile(each, backend="aot_eager") for each in (model, step))
        for way in (lambda x: compiled(x).square().sum().backward(), whole_step):
            for _ in range(3):
                way(torch.full((2, 4), 0.1 + dist.get_rank()))
                optimizer.step()
                optimizer.zero_grad()
        return whole(model)

    on_both(run)
    run(None, hpccomm.torch.ddp_comm_hook(gradients.TopK(0.5)))
