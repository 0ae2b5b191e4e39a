"""CUDA graphs with hpccomm's calls on one GPU: replay, the watchdog beside a capture, the end. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_graphs.py

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import time

import numpy as np

import hpccomm
from contest.device import captured, check, on_stream, one_rank, to_device, to_host
from contest.verdicts import Verdicts
from hpccomm import dtypes
from hpccomm.reductions import premul_sum

MODES = ("Global", "ThreadLocal", "Relaxed")
CAPTURED_SECONDS = 0.5
"""How long a capture lasts, so that the watchdog looks meanwhile."""
END_SECONDS = 10.0
"""The most that finalize may take while a graph is there, which keeps NCCL from its end."""


def first_kernels(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Capture a call that has kernels of hpccomm's, which nothing has run before."""
    import cupy

    with on_stream(comm) as stream:
        one = np.ones(1000, dtypes.BFLOAT16)
        x, y = to_device(one), to_device(np.zeros_like(one))
        # The pool has the call's scratch on this stream: it asks CUDA for none inside the capture.
        memory = [cupy.empty(nbytes, np.uint8) for nbytes in 4 * [2000, 4000, 8000]]
        del memory
        graph = captured(stream, lambda: comm.all_reduce(x, op=premul_sum(3), out=y))
        graph.launch(stream)
        stream.synchronize()
        right = bool((to_host(y) == 3).all())
    verdicts.limit(right, "the first kernels of a fold of bfloat16 inside a capture")


def replays(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Replay a graph with calls that NCCL carries out, and one that is a copy."""
    import cupy

    with on_stream(comm) as stream:
        x, y, z = cupy.zeros(1000), cupy.zeros(1000), cupy.zeros(1000)

        def calls() -> None:
            comm.send_recv(x, 0, y, 0)
            comm.all_reduce(y, out=z)

        calls()
        graph = captured(stream, calls)
        wrong = []
        for number in range(1, 21):
            x.fill(number)
            graph.launch(stream)
            wrong += [] if (z.get(stream) == number).all() else [number]
    verdicts.limit(not wrong, f"20 replays of a message and an all_reduce: {wrong or 'right'}")


def watched(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Have a call with a deadline under way while a graph is captured."""
    import cupy

    with on_stream(comm) as stream:
        x, y, z = cupy.ones(1000), cupy.zeros(1000), cupy.zeros(1000)
        other = cupy.cuda.Stream(non_blocking=True)
        cupy.add(z, 1, out=z)
        for mode in MODES:
            with verdicts.part(f"the watchdog beside a capture in the mode {mode}"):
                stream.synchronize()
                z.fill(0)
                work = comm.send_recv(x, 0, y, 0, async_op=True, timeout=30.0, stream=other)

                def call() -> None:
                    cupy.add(z, 1, out=z)
                    time.sleep(CAPTURED_SECONDS)

                graph = captured(stream, call, mode)
                graph.launch(stream)
                work.wait(block=True)
                right = bool((z.get(stream) == 1).all() and (y.get(stream) == 1).all())
                verdicts.limit(right, f"the watchdog beside a capture in the mode {mode}")


def ended(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Finalize while a graph with a call is alive."""
    import cupy

    with on_stream(comm) as stream:
        x, y = cupy.ones(1000), cupy.zeros(1000)
        comm.send_recv(x, 0, y, 0)
        graph = captured(stream, lambda: comm.send_recv(x, 0, y, 0))
        graph.launch(stream)
        stream.synchronize()
        begin = time.perf_counter()
        comm.finalize()
        took = time.perf_counter() - begin
        del graph
    text = f"finalize with a graph alive: {took:.1f} s (at most {END_SECONDS:g})"
    verdicts.limit(took <= END_SECONDS, text)


if __name__ == "__main__":
    check(
        "one process, one rank",
        {
            # Before anything else has run them.
            "the first kernels inside a capture": one_rank(first_kernels),
            "replays": one_rank(replays),
            "the watchdog beside a capture": one_rank(watched),
            "finalize with a graph alive": one_rank(ended),
        },
    )
