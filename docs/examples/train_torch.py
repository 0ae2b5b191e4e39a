"""A small network trained by DistributedDataParallel, on CPU tensors.

``mpiexec -n 2 python train_torch.py``. It takes PyTorch. The line that starts hpccomm's backend is the only one that
differs from a program that torchrun starts.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hpccomm.torch


def train(steps: int = 20) -> float:
    """Train on all ranks; return the last loss, averaged over them. Collective."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        x = torch.rand(64, 8, generator=numbers)
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean.item()


def main() -> None:
    """Train, and print on rank 0."""
    hpccomm.torch.init()  # in place of dist.init_process_group("gloo")
    loss = train()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
