"""hpccomm on one GPU in one process: a first kernel, a message to oneself, memory. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_one_process.py

Reductions and folds are for ``python -m pytest tests/cuda/test_one_rank.py tests/cuda/test_folding.py``. A verdict stands
in a line of its own; the exit status is 1 if one fails.
"""

import time

import numpy as np

import hpccomm
from contest.device import check, one_rank
from contest.verdicts import Verdicts

SIZES = (1 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes of registered memory."""


def first_kernel(verdicts: Verdicts) -> None:
    """Take the time of a first kernel: it makes the context, and loads or compiles."""
    import cupy

    begin = time.perf_counter()
    float(cupy.ones(4).sum())
    verdicts.note(f"the first kernel of this process took {time.perf_counter() - begin:.2f} s")


def calls(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Check the calls of one rank, which give back what they are given."""
    import cupy

    assert comm.device is not None
    with cupy.cuda.Device(comm.device):
        x, y = cupy.arange(1000.0), cupy.zeros(1000)
        with verdicts.part("a message of a rank to itself over NCCL"):
            comm.send_recv(x, 0, y, 0)  # the one call of a single rank that NCCL carries out
            right = bool((y.get() == x.get()).all())
            verdicts.limit(right, "a message of a rank to itself over NCCL")
        with verdicts.part("explain"):
            verdicts.note(str(comm.explain("all_reduce", x)))
        for nbytes in SIZES:
            with verdicts.part(f"comm.empty of {nbytes} bytes"):
                begin = time.perf_counter()
                held = comm.empty(nbytes, np.uint8, device=comm.device)
                took = time.perf_counter() - begin
                held.fill(1)
                right = bool((comm.all_reduce(held) == 1).all())
                text = f"comm.empty of {nbytes} bytes on the device: {took * 1e3:.2f} ms"
                verdicts.limit(right, text)


if __name__ == "__main__":
    parts = {"the first kernel": first_kernel, "a communicator of one rank": one_rank(calls)}
    check("one process, one rank", parts)
