"""The training of ``train_digits.py`` with PyTorch's autograd, on CPU tensors.

``mpiexec -n 4 python train_digits_torch.py``. It takes PyTorch and scikit-learn.

Autograd adds each gradient up in ``parameter.grad``. Here that is a tensor over the gradient's place in its bucket, so
that nothing is copied between PyTorch and hpccomm.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import digits
import torch
from train_digits import Outcome, arguments

import hpccomm
from hpccomm.gradients import GradientSync


def network(first: digits.Model) -> torch.nn.Sequential:
    """Return a network with the parameters of `digits.initial`."""
    layers: list[torch.nn.Module] = []
    for layer in range(len(first) // 2):
        weight = torch.from_numpy(first[f"weight{layer}"].T.copy())
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": torch.from_numpy(first[f"bias{layer}"])})
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def train(
    comm: hpccomm.Communicator,
    *,
    epochs: int = 20,
    batch: int = 64,
    seed: int = 0,
    rate: float = 0.05,
    hidden: Sequence[int] = (128, 64),
    wait: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Train on all ranks of `comm`. Collective; blocks. Parameters are those of ``train_digits.train``."""
    images = digits.load(seed) if comm.rank == 0 else None
    training, others = (digits.on(torch.from_numpy, each) for each in comm.broadcast_object(images))
    module = network(digits.initial(hidden, seed))
    sync = GradientSync(comm, module.named_parameters(), op="sum")
    sync.broadcast_parameters()
    for name, parameter in module.named_parameters():
        parameter.grad = torch.from_numpy(sync.gradients[name])
        if not wait:
            hook = partial(_ready, sync, name)
            parameter.register_post_accumulate_grad_hook(hook)
    descent = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
    begun = time.perf_counter()
    for epoch in range(1, epochs + 1):
        for mine, count in digits.shares(len(training), batch, seed + epoch, comm.rank, comm.size):
            share = training[torch.from_numpy(mine)]
            sync.zero()  # autograd adds to what is there
            scores = module(share.pixels)
            # The sum, divided by the size of the whole batch: the ranks' gradients add up to the batch's.
            total = torch.nn.functional.cross_entropy(scores, share.targets, reduction="sum")
            (total / count).backward()
            if wait:
                sync.sync()
            else:
                sync.wait()
            descent.step()
        if comm.rank == 0 and tell and digits.is_told(epoch, epochs):
            tell(digits.line(epoch, *judge(module, others), time.perf_counter() - begun))
    seconds = time.perf_counter() - begun
    model = {name: each.detach().numpy() for name, each in module.named_parameters()}
    return Outcome(model, *judge(module, others), seconds, sync.stats())


def _ready(sync: GradientSync, name: str, parameter: torch.Tensor) -> None:
    """Tell that autograd has completed a gradient."""
    sync.ready(name, parameter.grad)


@torch.no_grad()
def judge(module: torch.nn.Module, images: digits.Images) -> tuple[float, float]:
    """Return the mean cross entropy, and the share of images that are read rightly."""
    scores = module(images.pixels)
    right = (scores.argmax(1) == images.targets.argmax(1)).double().mean()
    return float(torch.nn.functional.cross_entropy(scores, images.targets)), float(right)


def main() -> None:
    """Train as the command line says."""
    request = arguments("Train a network on handwritten digits, by PyTorch.").parse_args()
    torch.set_num_threads(1)  # the network is small, and the cores are the ranks'
    with hpccomm.new_comm() as comm:
        outcome = train(comm, tell=print, **vars(request))
        if comm.rank == 0:
            print(f"{comm.size} ranks; rank 0: {outcome.stats}")


if __name__ == "__main__":
    main()
