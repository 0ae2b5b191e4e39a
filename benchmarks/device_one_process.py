"""hpccomm on one GPU in one process: memory, messages, captures beside calls and threads, the end. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_one_process.py

Reductions and folds are for ``python -m pytest tests/cuda/test_one_rank.py tests/cuda/test_folding.py``, replays of each call
for ``tests/cuda/test_front.py``, the watchdog beside captures for ``tests/cuda/test_pending.py``. A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import hpccomm
from contest.device import captured, check, contexts_on, on_stream, one_rank
from contest.verdicts import Verdicts
from hpccomm.memory.cuda.library import visible_devices
from hpccomm.testing import run_ranks

SIZES = (1 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes of registered memory."""
END_SECONDS = 10.0
"""The most that finalize may take while a graph is there, which keeps NCCL from its end."""
CALLS = 50
"""Staged calls that are made while a graph is captured."""


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
    with cupy.cuda.Device(comm.device), ThreadPoolExecutor(1) as other:
        x, y = cupy.arange(1000.0), cupy.zeros(1000)
        # A message to itself is the one call of a single rank that NCCL carries out.
        work = comm.send_recv(x, 0, y, 0, async_op=True)

        def waited() -> bool:  # in a thread that has never used CUDA
            work.wait(block=True)
            with cupy.cuda.Device(comm.device):
                return bool((y == x).all())

        with verdicts.part("a message"):
            right = other.submit(waited).result(60)
            verdicts.limit(right, "a message to itself, waited for and read in a new thread")
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


def first_and_last(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Capture a message before which nothing was sent: NCCL connects inside the capture. Finalize with the graph alive."""
    import cupy

    with on_stream(comm) as stream:
        x, y = cupy.full(1000, 3.0), cupy.zeros(1000)
        graph = captured(stream, lambda: comm.send_recv(x, 0, y, 0))
        graph.launch(stream)
        right = bool((y.get(stream) == 3).all())
        verdicts.limit(right, "the first message of a communicator inside a capture")
        begin = time.perf_counter()
        comm.finalize()
        took = time.perf_counter() - begin
        del graph
    text = f"finalize with a graph alive: {took:.1f} s (at most {END_SECONDS:g})"
    verdicts.limit(took <= END_SECONDS, text)


def beside_a_capture(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Make staged calls while another thread captures in the mode "global", as PyTorch does by default."""
    import cupy

    def staged(arrays: list[Any]) -> None:
        for x in arrays:
            work = comm.all_reduce(x, async_op=True)
            while not work.done():
                time.sleep(0.001)

    with on_stream(comm) as stream, ThreadPoolExecutor(1) as other:
        counted = cupy.zeros(4)
        cupy.add(counted, 0, out=counted)  # compiled before the capture
        arrays = [cupy.arange(1000.0) for _ in range(CALLS)]
        staged([cupy.zeros(1000)])  # what is made once
        stream.synchronize()
        comm.barrier()

        def both() -> None:
            cupy.add(counted, 1, out=counted)
            other.submit(staged, arrays).result(60)
            cupy.add(counted, 0, out=counted)

        if comm.rank:
            staged(arrays)
            comm.barrier()
            return
        graph = captured(stream, both, "Global")
        comm.barrier()
        for _ in range(3):
            graph.launch(stream)
        right = all((x.get() == comm.size * np.arange(1000.0)).all() for x in arrays)
        verdicts.limit(right, f"{CALLS} staged calls beside a global capture: right")
        whole = bool((counted.get(stream) == 3).all())
        verdicts.limit(whole, f"a global capture beside {CALLS} staged calls: whole")


if __name__ == "__main__":
    check(
        "one process",
        {
            "the first kernel": first_kernel,
            "a communicator of one rank": one_rank(calls),
            "the first message and the end": one_rank(first_and_last),
            "staged calls beside a capture": lambda verdicts: run_ranks(
                2, beside_a_capture, verdicts, backend="loopback"
            ),
            # Two ranks of this process took devices 0 and, where there is one, 1.
            "contexts": lambda verdicts: contexts_on([*range(min(2, visible_devices()))], verdicts),
        },
    )
