"""Threads beside hpccomm on a GPU: contexts, a capture in another thread, a wait in a new one. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_threads.py

PyTorch captures, if it is there, as it does in programs of its users; else CuPy does. A verdict stands in
a line of its own; the exit status is 1 if one fails.
"""

import ctypes
import threading
import time
from typing import Any

import numpy as np

import hpccomm
from contest.device import captured, check, one_rank
from contest.verdicts import Verdicts
from hpccomm.memory.cuda.library import driver_library, visible_devices
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
    """Capture a graph in the mode "global", and replay it."""
    try:
        x = (by_torch if has_torch() else by_cupy)(capturing, over)
        if x != 3.0:
            told.append(f"three replays counted to {x}")
    except Exception as error:  # noqa: BLE001 (told as a verdict)
        told.append(f"{type(error).__name__}: {error}".partition("\n")[0])
        capturing.set()


def has_torch() -> bool:
    """Tell whether PyTorch can capture here."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available()) and hasattr(torch.cuda, "CUDAGraph")


def by_torch(capturing: threading.Event, over: threading.Event) -> float:
    """Capture with PyTorch."""
    import torch

    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        capturing.set()
        over.wait(60)
        x += 0
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return float(x[0])


def by_cupy(capturing: threading.Event, over: threading.Event) -> float:
    """Capture with CuPy."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.zeros(4)
        cupy.add(x, 1, out=x)  # compiled before the capture
        x.fill(0)

        def counted() -> None:
            cupy.add(x, 1, out=x)
            capturing.set()
            over.wait(60)
            cupy.add(x, 0, out=x)

        graph = captured(stream, counted, "Global")
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        return float(x[0])


def contexts(verdicts: Verdicts) -> None:
    """Count the devices on which this process has a context: each takes hundreds of MiB."""
    driver: Any = driver_library()
    if driver is None:
        verdicts.note("contexts: there is no driver to ask")
        return
    active = []
    for device in range(visible_devices()):
        flags, state = ctypes.c_uint(), ctypes.c_int()
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state))
        active += [device] if state.value else []
    # Two ranks of this process took devices 0 and, where there is one, 1.
    most = min(2, visible_devices())
    verdicts.limit(active == list(range(most)), f"contexts on devices {active}, which ranks had")


if __name__ == "__main__":
    check(
        "one process, threads",
        {
            "wait() in a new thread": one_rank(waited_elsewhere),
            "staged calls beside a capture": beside_a_capture,
            "contexts": contexts,
        },
    )
