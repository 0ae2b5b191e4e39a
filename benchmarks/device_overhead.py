"""What a call on device arrays costs the host over CuPy's bare NCCL call: 8 bytes, out of place.

Run it on one rank or more; they may share a GPU::

    mpiexec -n 2 python benchmarks/device_overhead.py

On one rank NCCL copies, as hpccomm does without it; in place it would do nothing at all.

A turn is a block of calls that are put on a stream; the host's time for that is taken, and the stream
is waited for outside of the clock. The ways take turns, so that a change of the machine's speed meets
all alike. Figures are microseconds of a call, medians over the blocks; "over" is the median of the
differences within a round. CUDA graphs with one call each are replayed in the same way.

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import argparse
import sys
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccomm
from contest.bare_nccl import BareNccl, Call, versions
from contest.rounds import Times, compete
from contest.verdicts import Verdicts

BARE = "CuPy's allReduce"
CALL = "comm.all_reduce(x, out=y)"
MOST = {CALL: 5.0, "plan()": 1.0}
"""Microseconds over the bare call."""
MOST_REPLAY = 0.5
"""Microseconds: a replay is the same call whoever captured the graph, and this is the clock's noise."""
PAST = 32
"""Calls before the first turn, so that what is made once is made."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=200, help="calls a block")
    parser.add_argument("--blocks", type=int, default=201, help="blocks of each way")
    arguments = parser.parse_args()

    import cupy

    with hpccomm.new_comm("nccl") as comm:
        assert comm.device is not None
        with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
            bare = BareNccl(MPI.COMM_WORLD, comm.device)
            x, y = cupy.zeros(2, np.float32), cupy.zeros(2, np.float32)
            stream.synchronize()
            calls: dict[str, Call] = {
                BARE: bare.all_reduce(x, y, stream),
                CALL: partial(comm.all_reduce, x, out=y),
                "plan()": comm.plan("all_reduce", x, out=y),
            }
            replays: dict[str, Call] = {
                BARE: captured(stream, bare.all_reduce(x, y, stream)),
                CALL: captured(stream, partial(comm.all_reduce, x, out=y)),
            }
            measured = [
                against(ways, stream, arguments.blocks, arguments.calls)
                for ways in (calls, replays)
            ]
            verdicts = Verdicts(shown=comm.rank == 0)
            if comm.rank == 0:
                print(f"# {x.nbytes} bytes, ranks: {comm.size}, host time to enqueue; {versions()}")
                print(f"# {arguments.blocks} blocks of {arguments.calls} calls each, microseconds")
            for title, times in zip(("calls", "replays of graphs"), measured, strict=True):
                show(title, times, comm.rank == 0)
            for name, most in MOST.items():
                cost = over(measured[0], name)
                text = f"{name} over {BARE}: {cost:.2f} us (at most {most:g})"
                verdicts.limit(cost <= most, text)
            cost = over(measured[1], CALL)
            verdicts.limit(
                cost <= MOST_REPLAY,
                f"graph replay of {CALL} over that of {BARE}: {cost:.2f} us "
                f"(none, within {MOST_REPLAY:g})",
            )
            # NCCL frees no communicator while there is a graph with its calls.
            replays.clear()
            bare.close()
    sys.exit(verdicts.failed)


def captured(stream: Any, call: Call) -> Call:
    """Return the replay of a graph that holds one call."""
    from cupy.cuda import runtime

    call()  # what is made once, such as connections, is no part of a graph
    stream.synchronize()
    stream.begin_capture(runtime.streamCaptureModeThreadLocal)
    call()
    return partial(stream.end_capture().launch, stream)


def against(ways: dict[str, Call], stream: Any, blocks: int, calls: int) -> dict[str, Times]:
    """Let the ways take turns, and wait for the stream after each."""
    for way in ways.values():
        for _ in range(PAST):
            way()
    stream.synchronize()
    found = compete(list(ways.values()), MPI.COMM_WORLD, blocks, calls, between=stream.synchronize)
    return dict(zip(ways, found, strict=True))


def over(measured: dict[str, Times], name: str) -> float:
    """Return the microseconds of a way over the bare call."""
    return float(np.median(measured[name].rounds - measured[BARE].rounds)) * 1e6


def show(title: str, measured: dict[str, Times], shown: bool) -> None:
    """Print a line for each way."""
    if not shown:
        return
    print(f"# {title:36s} {'median':>8s} {'min':>8s} {'over':>8s}")
    for name, times in measured.items():
        least = float(times.rounds.min()) * 1e6
        print(f"  {name:36s} {times.seconds * 1e6:8.2f} {least:8.2f} {over(measured, name):8.2f}")


if __name__ == "__main__":
    main()
