"""PyTorch's parameters and gradients in host memory, against what its own optimiser makes of given gradients."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpccomm import Communicator, UsageError
from hpccomm.gradients import Bucket, GradientSync, ShardedOptimizer, sgd
from hpccomm.testing import run_ranks

torch = pytest.importorskip("torch")


def test_a_module_is_a_model_and_its_gradients_are_reduced_in_place() -> None:
    def body(comm: Communicator) -> None:
        module = torch.nn.Linear(3, 2)
        with torch.no_grad():
            module.weight.fill_(comm.rank)
            module.bias.fill_(1)
        sync = GradientSync(comm, module.named_parameters(), initial="ignore")
        sync.broadcast_parameters(root=1)
        assert (module.weight == 1).all()
        module(torch.full((1, 3), float(comm.rank))).sum().backward()
        assert sync.sync({name: each.grad for name, each in module.named_parameters()})
        assert (module.weight.grad == 0.5).all()
        assert (module.bias.grad == 1).all()
        # Gradients that autograd writes to the buckets need no copy.
        attached(sync, module)
        sync.zero()
        module(torch.full((1, 3), 4.0 * comm.rank)).sum().backward()
        assert sync.sync()
        assert (module.weight.grad == 2).all()
        np.testing.assert_array_equal(sync.gradients["bias"], 1)
        # Those that are copied by hand may be the same in every step.
        views = dict(sync.gradients)
        for _ in range(3):
            module.zero_grad()
            module(torch.ones(1, 3)).sum().backward()
            for name, each in module.named_parameters():
                views[name][...] = each.grad
            assert sync.sync()

    run_ranks(2, body)


def test_a_removed_parameter_does_not_own_its_name() -> None:
    def body(comm: Communicator) -> None:
        weight = torch.nn.Parameter(torch.zeros(3))
        sync = GradientSync(comm, {"w": weight, "other": np.zeros(2)})
        weight.grad = torch.full((3,), 5.0)
        sync.remove("w")
        sync.add("w", np.zeros(3, np.float32))
        for step in (1.0, 2.0):
            sync.gradients["w"][...] = step
            sync.ready("w")
            sync.ready("other", np.full(2, step))
            assert sync.wait()
            assert (sync.gradients["w"] == step).all()
        views = dict(sync.gradients)
        for step in (3.0, 0.0):
            views["w"][...] = step
            assert sync.sync()  # the gradient that is left in `weight.grad` does not matter
        gone = weakref.ref(weight)
        del weight
        gc.collect()
        assert gone() is None

    run_ranks(2, body)


DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("overlapped", [False, True])
def test_parameters_of_any_dtype_and_layout_are_synchronised(overlapped: bool) -> None:
    def filled(value: float) -> dict[str, Any]:
        """Tensors whose elements differ, so that another order of them would show."""
        flat = (torch.arange(96) % 4 + value).reshape(2, 3, 4, 4)
        made = {}
        for dtype in DTYPES:
            kind = flat.to(getattr(torch, dtype))
            made[f"{dtype} plain"] = kind.clone()
            made[f"{dtype} channels_last"] = kind.to(memory_format=torch.channels_last)
            made[f"{dtype} turned"] = kind[0, 0].clone().T
        return made

    def body(comm: Communicator) -> None:
        model = {name: each.requires_grad_() for name, each in filled(comm.rank).items()}
        sync = GradientSync(comm, model, op="sum", initial="broadcast")
        for name, each in model.items():
            assert each.detach().double().equal(filled(0)[name].double())
        sync.check_consistency()
        grads = filled(comm.rank)
        if overlapped:
            for name, grad in grads.items():
                model[name].grad = grad
                sync.ready(name, grad)  # the parameter's own gradient gets the result
            sync.wait()
        else:
            sync.sync(grads)
        for name, first in filled(0).items():
            total = 2 * first.double() + 1
            assert grads[name].double().equal(total), name
            assert np.array_equal(sync.gradients[name].astype("f8"), total.numpy()), name

    run_ranks(2, body)


# PyTorch's zero_grad() sets .grad to None by default since version 2.0, and backward() then makes a new tensor.


def attached(sync: GradientSync, module: Any) -> None:
    for name, each in module.named_parameters():
        each.grad = torch.from_numpy(sync.gradients[name])


def hooked(sync: GradientSync, module: Any, own: bool) -> None:
    for name, each in module.named_parameters():
        each.register_post_accumulate_grad_hook(
            lambda parameter, name=name: sync.ready(name, parameter.grad if own else None)
        )


def put_back(sync: GradientSync, module: Any) -> None:
    """The hook of the documentation, which gives each gradient its place in the bucket again."""
    for name, each in module.named_parameters():

        def hook(parameter: Any, name: str = name, place: Any = each.grad) -> None:
            if parameter.grad is not place:
                place.copy_(parameter.grad)
                parameter.grad = place
            sync.ready(name)

        each.register_post_accumulate_grad_hook(hook)


def trained(comm: Communicator, way: str) -> bytes:
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for each in module.parameters():
            each.fill_(0.5)
    sync = GradientSync(comm, module.named_parameters(), first_bucket_bytes=1, min_bucket_bytes=0)
    descent = torch.optim.SGD(module.parameters(), 0.1)
    attached(sync, module)
    if way in ("hooks", "hooks with their own"):
        hooked(sync, module, own=way != "hooks")
    if way == "hooks that put it back":
        put_back(sync, module)
    for number in range(5):
        if way == "zero()":
            sync.zero()
        elif way == "kept":
            descent.zero_grad(set_to_none=False)
        elif way == "one parameter":
            module.bias.grad.zero_()
            module.weight.grad = None
        elif way != "from the second step" or number:
            descent.zero_grad()
        if way == "zero() and zero_grad()":
            sync.zero()
        x = torch.linspace(comm.rank, number + 1, 12).reshape(4, 3)
        module(x).square().mean().backward()
        if way == "given":
            sync.sync({name: each.grad for name, each in module.named_parameters()})
        elif way.startswith("hooks"):
            sync.wait()
        else:
            sync.sync()
        descent.step()
    return module.weight.detach().numpy().tobytes()


RIGHT = ("zero()", "kept", "given", "hooks with their own", "hooks that put it back")
WRONG = ("from the second step", "from the first step", "hooks", "zero() and zero_grad()")


@pytest.mark.slow("the first backward pass loads much of PyTorch")
def test_gradients_that_autograd_has_put_elsewhere_are_named_on_every_rank() -> None:
    def body(comm: Communicator) -> None:
        for way in (*WRONG, "one parameter"):
            names = "'bias', 'weight'" if way in WRONG else "'weight'"
            says = rf"step: {names} on ranks 0 and 1; zero_grad\(\).*sync\({{name: parameter.grad, ...}}\)"
            with pytest.raises(UsageError, match=says):
                trained(comm, way)
            comm.barrier()

    run_ranks(2, body)


def test_an_optimiser_whose_state_is_divided_looks_for_them_too() -> None:
    def body(comm: Communicator) -> bytes:
        module = torch.nn.Linear(3, 2)
        model = dict(module.named_parameters())
        optimizer = ShardedOptimizer(comm, model, sgd(0.1), initial="broadcast")

        def backward() -> None:
            module(torch.full((1, 3), comm.rank + 1.0)).square().sum().backward()

        for name, each in model.items():
            each.grad = torch.from_numpy(optimizer.gradients[name])
        backward()
        optimizer.step()  # in place
        module.zero_grad()
        backward()
        before = module.weight.detach().clone()
        says = "gradients of 'weight', 'bias' are not in `gradients`"
        with pytest.raises(UsageError, match=says):
            optimizer.step()
        assert module.weight.equal(before)
        optimizer.step({name: each.grad for name, each in model.items()})
        return module.weight.detach().numpy().tobytes()

    assert len(set(run_ranks(2, body))) == 1


def test_ways_that_keep_the_gradients_where_they_belong_train_alike() -> None:
    weights = {each for way in RIGHT for each in run_ranks(2, trained, way)}
    assert len(weights) == 1


class Kept:
    """A compressor that sends nothing, and knows which of its channels are still there."""

    memory_bytes = 0

    def __init__(self) -> None:
        self.channels: Any = weakref.WeakSet()

    def channel(self, bucket: Bucket) -> "Kept":
        made = Kept()
        self.channels.add(made)
        return made

    def reduce(self, x: Any, exchange: Any) -> None:
        """Leave the gradients as they are."""


def test_the_hook_of_ddp_divides_narrow_sums_by_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 has no 257, and took it for 256."""
    from hpccomm.torch import hooks

    many = SimpleNamespace(rank=0, size=257, abort=lambda: None)
    # No machine of tests has so many ranks, and the hook asks PyTorch's group for them.
    monkeypatch.setattr(hooks, "duplicate", lambda state: many)
    compressor = Kept()
    hook = hooks.ddp_comm_hook(compressor)
    for size in (4, 6):  # made anew after the first step
        x = torch.full((size,), 384.0, dtype=torch.bfloat16)
        of_ddp = SimpleNamespace(buffer=lambda: x, gradients=lambda: [x], index=lambda: 0)  # noqa: B023
        assert (hook(None, of_ddp).wait() == 1.4921875).all()  # the nearest to 384 / 257
        gc.collect()
        assert len(compressor.channels) == 1
