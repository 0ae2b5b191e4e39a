r"""torch.distributed over hpccomm, beside Gloo between the same processes.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/pytorch.py "all_reduce 64M speed" "all_reduce 8 time" "ddp 25M time"

A figure is ``CALL SIZE MEASURE``. The calls are

all_reduce    ``torch.distributed.all_reduce`` of so many bytes of float32, in place; 8, 64K, 1M or 64M
ddp           what DistributedDataParallel adds to a backward pass that computes nothing, of 25M parameters in 60
              tensors, which lie in its buckets

The measures are

speed    Gloo's time over hpccomm's
time     of all_reduce, hpccomm's time in microseconds; of ddp, hpccomm's over Gloo's

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import os
from typing import Any

import numpy as np
from gradients import MODELS

from contest import program
from contest.program import Ranks
from contest.promises import Figure
from hpccomm.units import size


def all_reduce(name: str, ranks: Ranks, gloo: Any) -> Figure:
    """Measure one size. Collective."""
    import torch
    import torch.distributed as dist

    _, spelled, measure = name.split()
    nbytes = size(spelled)
    tensors = [torch.zeros(nbytes // 4) for _ in range(2)]
    ours, theirs = ranks.compete(
        lambda: dist.all_reduce(tensors[0]),
        lambda: dist.all_reduce(tensors[1], group=gloo),
        calls=200 if nbytes <= 64 << 10 else None,
    )
    says = f"{ours.seconds * 1e6:.1f} µs; Gloo {theirs.seconds * 1e6:.1f} µs"
    value = theirs.over(ours) if measure == "speed" else ours.seconds * 1e6
    return Figure(value, says, ours.seconds)


def ddp(ranks: Ranks, gloo: Any) -> Figure:
    """Measure what a step of DistributedDataParallel adds. Collective."""
    from contest.ddp import ddp as steps

    over_hpccomm, alone = steps(MODELS["large"])
    over_gloo, _ = steps(MODELS["large"], gloo)
    ours, theirs, plain = ranks.compete(over_hpccomm, over_gloo, alone)
    added = ours.rounds - plain.rounds, theirs.rounds - plain.rounds
    says = " ms; Gloo ".join(f"{np.median(each) * 1e3:.2f}" for each in added)
    return Figure(float(np.median(added[0] / added[1])), f"{says} ms", ours.seconds)


def main() -> None:
    """Measure and print."""
    request = program.arguments(__doc__, "all_reduce 64M speed", {"rounds": program.turns(15)})
    program.needs_pytorch()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    import hpccomm.torch

    torch.set_num_threads(1)  # a rank computes on one core
    hpccomm.torch.init()
    comm = hpccomm.torch.communicator()
    ranks = Ranks(comm, comm.mpi_comm.Dup(), request)
    gloo = dist.new_group(backend="gloo")
    measured = {
        name: ddp(ranks, gloo) if name.startswith("ddp") else all_reduce(name, ranks, gloo)
        for name in request.figures
    }
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        program.report(request, measured)


if __name__ == "__main__":
    main()
