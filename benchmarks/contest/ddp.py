"""PyTorch's DistributedDataParallel as a contender: what it adds to a backward pass on the same gradients."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contest.rounds import Call


def ddp(shapes: Sequence[tuple[int, ...]], group: Any = None) -> tuple["Call", "Call"]:
    """Return a step with DistributedDataParallel and the same step without it, on float32 parameters. Collective.

    The backward pass computes nothing: it hands over gradients that are there, and autograd adds them to
    ``parameter.grad``. That is a view of a bucket in one step and a tensor of its own in the other, so that the
    difference of their times is what DistributedDataParallel takes to synchronise gradients that lie in its buckets.

    It goes over a process group, by default torch.distributed's, which must be there. The buckets have DistributedDataParallel's default sizes.
    """
    torch: Any = importlib.import_module("torch")
    parallel: Any = importlib.import_module("torch.nn.parallel")

    class Given(torch.autograd.Function):  # type: ignore[misc]  # PyTorch need not be there
        @staticmethod
        def forward(ctx: Any, gradients: Any, *_: Any) -> Any:
            ctx.gradients = gradients
            return torch.zeros(())

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            return None, *ctx.gradients

    class Model(torch.nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self) -> None:
            super().__init__()
            made = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
            self.parameters_by_layer = torch.nn.ParameterList(made)
            self.given = [torch.zeros(shape) for shape in shapes]

        def forward(self) -> Any:
            return Given.apply(self.given, *self.parameters_by_layer)

    def step(module: Any) -> "Call":
        return lambda: module().backward()

    plain = Model()
    synchronised = parallel.DistributedDataParallel(
        Model(), gradient_as_bucket_view=True, process_group=group
    )
    return step(synchronised), step(plain)
