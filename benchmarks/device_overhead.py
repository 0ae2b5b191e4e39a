"""What a call on device arrays costs the host over CuPy's bare NCCL call: 8 bytes, out of place.

Run it on one rank or more; they may share a GPU::

    mpiexec -n 2 python benchmarks/device_overhead.py

On one rank NCCL copies, as hpccomm does without it; in place it would do nothing at all.

A turn is a block of calls that are put on a stream; the host's time for that is taken, and the stream
is waited for outside of the clock. The ways take turns, so that a change of the machine's speed meets
all alike. Figures are microseconds of a call, medians over the blocks; "over" is the median of the
differences within a round. CUDA graphs with one call each are replayed in the same way.

A verdict stands in a line of its own; the exit status is 1 if one fails. Where ranks share a GPU, no limit
holds: their kernels wait for each other's.
"""

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from contest import device, program
from contest.device import BareNccl, captured, on_stream
from contest.program import Option
from contest.rounds import Call, Times, compete
from contest.verdicts import Verdicts

BARE = "CuPy's allReduce"
CALL = "comm.all_reduce(x, out=y)"
LIMITS = (
    (0, CALL, f"{CALL} over", 5.0),
    (0, "plan()", "plan() over", 1.0),
    # A replay is the same call whoever captured the graph, and this is the clock's noise.
    (1, CALL, f"graph replay of {CALL} over that of", 0.5),
)
"""Of calls (0) or replays (1): which, in words, and the most microseconds over the bare call."""
PAST = 32
"""Calls before the first turn, so that what is made once is made."""


def main() -> None:
    """Measure and print."""
    options = {"calls": Option(200, "calls a block"), "blocks": Option(201, "blocks of each way")}
    arguments = program.parser(__doc__, options).parse_args()

    import cupy

    with device.ranks() as (comm, verdicts), on_stream(comm) as stream:
        bare = BareNccl(comm)
        x, y = cupy.zeros(2, np.float32), cupy.zeros(2, np.float32)
        stream.synchronize()
        calls: dict[str, Call] = {
            BARE: bare.all_reduce(x, y, stream),
            CALL: partial(comm.all_reduce, x, out=y),
            "plan()": comm.plan("all_reduce", x, out=y),
        }
        for call in calls.values():
            call()  # what is made once, such as connections, is no part of a graph
        replays: dict[str, Call] = {
            name: partial(captured(stream, calls[name]).launch, stream) for name in (BARE, CALL)
        }
        measured = [
            against(ways, stream, arguments.blocks, arguments.calls) for ways in (calls, replays)
        ]
        verdicts.say(f"# {x.nbytes} bytes, host time to enqueue, microseconds")
        verdicts.say(f"# {arguments.blocks} blocks of {arguments.calls} calls each")
        for title, times in zip(("calls", "replays of graphs"), measured, strict=True):
            show(title, times, verdicts)
        for at, name, what, most in LIMITS:
            cost = over(measured[at], name)
            text = f"{what} {BARE}: {cost:.2f} us (at most {most:g})"
            verdicts.time_limit(cost <= most, text)
        # NCCL frees no communicator while there is a graph with its calls.
        replays.clear()
        bare.close()


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
    return measured[name].beyond(measured[BARE]) * 1e6


def show(title: str, measured: dict[str, Times], verdicts: Verdicts) -> None:
    """Print a line for each way."""
    verdicts.say(f"# {title:36s} {'median':>8s} {'min':>8s} {'over':>8s}")
    for name, times in measured.items():
        figures = times.seconds * 1e6, float(times.rounds.min()) * 1e6, over(measured, name)
        verdicts.say(f"  {name:36s} " + " ".join(f"{each:8.2f}" for each in figures))


if __name__ == "__main__":
    main()
