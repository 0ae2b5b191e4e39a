"""CUDA graphs with hpccomm's calls on one GPU: replay, the watchdog beside a capture, the end. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_graphs.py

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import hpccomm
from contest.bare_nccl import versions
from contest.verdicts import Verdicts
from hpccomm import dtypes
from hpccomm.reductions import premul_sum
from hpccomm.testing import run_ranks

MODES = ("Global", "ThreadLocal", "Relaxed")
CAPTURED_SECONDS = 0.5
"""How long a capture lasts, so that the watchdog looks meanwhile."""
END_SECONDS = 10.0
"""The most that finalize may take while a graph is there, which keeps NCCL from its end."""


def main() -> None:
    """Check and print."""
    verdicts = Verdicts(shown=True)
    print(f"# one process, one rank; {versions()}")
    for name, check in (
        ("the first kernels inside a capture", first_kernels),  # before anything else has run them
        ("replays", replays),
        ("the watchdog beside a capture", watched),
        ("finalize with a graph alive", ended),
    ):
        with verdicts.part(name):
            run_ranks(1, check, verdicts, backend="nccl")
    sys.exit(verdicts.failed)


def captured(stream: Any, mode: str, call: Callable[[], object]) -> Any:
    """Return a graph that holds a call."""
    from cupy.cuda import runtime

    stream.synchronize()
    stream.begin_capture(getattr(runtime, f"streamCaptureMode{mode}"))
    try:
        call()
    except Exception:
        with suppress(Exception):  # the first error says more
            stream.end_capture()
        raise
    return stream.end_capture()


def first_kernels(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Capture a call that has kernels of hpccomm's, which nothing has run before."""
    import cupy

    with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
        one = np.ones(1000, dtypes.BFLOAT16)
        x, y = (
            cupy.ndarray(one.shape, one.dtype, cupy.asarray(each.view(np.uint8)).data)
            for each in (one, np.zeros_like(one))
        )
        # The pool has the call's scratch on this stream: it asks CUDA for none inside the capture.
        memory = [cupy.empty(nbytes, np.uint8) for nbytes in 4 * [2000, 4000, 8000]]
        del memory
        graph = captured(stream, "ThreadLocal", lambda: comm.all_reduce(x, op=premul_sum(3), out=y))
        graph.launch(stream)
        stream.synchronize()
        got = cupy.ndarray((one.nbytes,), np.uint8, y.data).get().view(one.dtype)
        right = bool((got == 3).all())
    verdicts.limit(right, "the first kernels of a fold of bfloat16 inside a capture")


def replays(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Replay a graph with calls that NCCL carries out, and one that is a copy."""
    import cupy

    with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
        x, y, z = cupy.zeros(1000), cupy.zeros(1000), cupy.zeros(1000)

        def calls() -> None:
            comm.send_recv(x, 0, y, 0)
            comm.all_reduce(y, out=z)

        calls()
        graph = captured(stream, "ThreadLocal", calls)
        wrong = []
        for number in range(1, 21):
            x.fill(number)
            graph.launch(stream)
            wrong += [] if (z.get(stream) == number).all() else [number]
    verdicts.limit(not wrong, f"20 replays of a message and an all_reduce: {wrong or 'right'}")


def watched(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Have a call with a deadline under way while a graph is captured."""
    import cupy

    with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
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

                graph = captured(stream, mode, call)
                graph.launch(stream)
                work.wait(block=True)
                right = bool((z.get(stream) == 1).all() and (y.get(stream) == 1).all())
                verdicts.limit(right, f"the watchdog beside a capture in the mode {mode}")


def ended(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Finalize while a graph with a call is alive."""
    import cupy

    with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
        x, y = cupy.ones(1000), cupy.zeros(1000)
        comm.send_recv(x, 0, y, 0)
        graph = captured(stream, "ThreadLocal", lambda: comm.send_recv(x, 0, y, 0))
        graph.launch(stream)
        stream.synchronize()
        begin = time.perf_counter()
        comm.finalize()
        took = time.perf_counter() - begin
        del graph
    text = f"finalize with a graph alive: {took:.1f} s (at most {END_SECONDS:g})"
    verdicts.limit(took <= END_SECONDS, text)


if __name__ == "__main__":
    main()
