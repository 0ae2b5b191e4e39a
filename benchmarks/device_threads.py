"""Threads beside hpccomm on a GPU: contexts, a capture in another thread, a wait in a new one. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_threads.py

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import threading
import time

import numpy as np

import hpccomm
from contest.device import captured, check, contexts_on, one_rank
from contest.verdicts import Verdicts
from hpccomm.memory.cuda.library import visible_devices
from hpccomm.testing import run_ranks

CALLS = 50
"""Staged calls that are made while a graph is captured."""


def waited_elsewhere(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Wait for a call in a thread that has never used CUDA, and read there."""
    import cupy

    found: list[bool] = []
    with cupy.cuda.Device(comm.device):
        x, y = cupy.arange(1 << 20, dtype=np.float32), cupy.zeros(1 << 20, np.float32)
        work = comm.send_recv(x, 0, y, 0, async_op=True)

        def wait() -> None:
            work.wait(block=True)
            with cupy.cuda.Device(comm.device):
                found.append(bool((y == x).all()))

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(60)
    verdicts.limit(found == [True], "wait() in a new thread, which then reads the result")


def beside_a_capture(verdicts: Verdicts) -> None:
    """Have a thread capture in the mode "global" while other threads move the arrays of staged calls."""
    capturing, over = threading.Event(), threading.Event()
    told: list[str] = []
    thread = threading.Thread(target=capture, args=(capturing, over, told))

    def staged(comm: hpccomm.Communicator) -> None:
        with cupy.cuda.Device(comm.device):
            arrays = [cupy.arange(1000.0) for _ in range(CALLS)]
            comm.all_reduce(cupy.zeros(1000), async_op=True).wait(block=True)  # what is made once
            comm.barrier()
            if comm.rank == 0:
                thread.start()
            capturing.wait(60)
            for x in arrays:
                work = comm.all_reduce(x, async_op=True)
                while not work.done():
                    time.sleep(0.001)
            comm.barrier()
            over.set()
            thread.join(60)
            for number, x in enumerate(arrays):
                if not (x.get() == comm.size * np.arange(1000.0)).all():
                    raise RuntimeError(f"call {number} gave another sum")

    import cupy

    try:
        run_ranks(2, staged, backend="loopback")
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(60)
    verdicts.limit(True, f"{CALLS} staged calls beside a global capture: right")
    verdicts.limit(not told, f"a global capture beside {CALLS} staged calls: {told or 'whole'}")


def capture(capturing: threading.Event, over: threading.Event, told: list[str]) -> None:
    """Capture a graph in the mode "global", as PyTorch does by default, and replay it."""
    import cupy

    def counted() -> None:
        cupy.add(x, 1, out=x)
        capturing.set()
        over.wait(60)
        cupy.add(x, 0, out=x)

    try:
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.zeros(4)
            cupy.add(x, 1, out=x)  # compiled before the capture
            x.fill(0)
            graph = captured(stream, counted, "Global")
            for _ in range(3):
                graph.launch(stream)
            stream.synchronize()
            if (x.get() != 3).any():
                told.append(f"three replays counted to {x}")
    except Exception as error:  # noqa: BLE001 (told as a verdict)
        told.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        capturing.set()


def contexts(verdicts: Verdicts) -> None:
    """Look at the devices on which this process has a context: each takes hundreds of MiB."""
    # Two ranks of this process took devices 0 and, where there is one, 1.
    contexts_on(list(range(min(2, visible_devices()))), verdicts)


if __name__ == "__main__":
    check(
        "one process, threads",
        {
            "wait() in a new thread": one_rank(waited_elsewhere),
            "staged calls beside a capture": beside_a_capture,
            "contexts": contexts,
        },
    )
