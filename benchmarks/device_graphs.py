"""CUDA graphs with hpccomm's calls on one GPU: replay, the watchdog beside a capture, the end. Needs no MPI.

Run it anywhere that has a GPU::

    python benchmarks/device_graphs.py

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import time

import hpccomm
from contest.device import captured, check, on_stream, one_rank
from contest.verdicts import Verdicts

MODES = ("Global", "ThreadLocal", "Relaxed")
CAPTURED_SECONDS = 0.5
"""How long a capture lasts, so that the watchdog looks meanwhile."""
END_SECONDS = 10.0
"""The most that finalize may take while a graph is there, which keeps NCCL from its end."""


def first_message(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Capture a message before which nothing was sent: NCCL connects inside the capture."""
    import cupy

    with on_stream(comm) as stream:
        x, y = cupy.full(1000, 3.0), cupy.zeros(1000)
        graph = captured(stream, lambda: comm.send_recv(x, 0, y, 0))
        graph.launch(stream)
        right = bool((y.get(stream) == 3).all())
    verdicts.limit(right, "the first message of a communicator inside a capture")


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
            "the first message inside a capture": one_rank(first_message),
            "replays": one_rank(replays),
            "the watchdog beside a capture": one_rank(watched),
            "finalize with a graph alive": one_rank(ended),
        },
    )
