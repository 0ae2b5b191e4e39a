"""What the recorder and the check between ranks add to a call, from the second call on.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/watching.py "all_reduce 8 auto added" "all_reduce 1048576 auto ratio"

Two communicators take turns on the same array: one as it comes, one with ``record=False`` and ``check="off"``.
The watchdog looks after both. A figure is ``COLLECTIVE BYTES auto|plan added|ratio``: the microseconds that are
added to a call, or the time of a call over that without. Both are medians over the turns, of the slowest rank.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

import hpccomm
from contest import figures
from contest.figures import Figure


def seconds(call: Callable[[], object], calls: int) -> float:
    """Return what one call takes in a row of so many."""
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def bound(
    comm: hpccomm.Communicator, collective: str, x: np.ndarray, how: str
) -> Callable[[], object]:
    """Return a call without arguments."""
    if how == "plan":
        return comm.plan(collective, x)
    method = getattr(comm, collective)
    return lambda: method(x)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "all_reduce 8 auto added")
    parser.add_argument("--turns", type=int, default=61, help="of each (%(default)s)")
    request = parser.parse_args()
    options = hpccomm.CommOptions()
    bare_options = replace(options, record=False, check="off")
    measured = {}
    with hpccomm.new_comm() as watched, hpccomm.new_comm(options=bare_options) as bare:
        for figure in request.figures:
            collective, size, how, measure = figure.split()
            x = np.zeros(int(size) // 8)
            contenders = [bound(comm, collective, x, how) for comm in (watched, bare)]
            calls = max(10, min(2000, 20_000_000 // int(size)))
            for call in contenders:
                seconds(call, 10)
            turns = []
            for _ in range(request.turns):
                watched.barrier()
                turns.append([seconds(call, calls) for call in contenders])
                contenders.reverse()
            # Every second turn went the other way round.
            ours = statistics.median(turn[n % 2] for n, turn in enumerate(turns))
            theirs = statistics.median(turn[1 - n % 2] for n, turn in enumerate(turns))
            value = (ours - theirs) * 1e6 if measure == "added" else ours / theirs
            slowest = max(watched.all_gather_object((value, ours, theirs)))
            measured[figure] = Figure(
                slowest[0],
                f"{slowest[1] * 1e6:.2f} µs; {slowest[2] * 1e6:.2f} µs without",
                slowest[1] if measure == "ratio" else None,
            )
        rank = watched.rank
    if rank == 0:
        figures.show(measured, request.json)


if __name__ == "__main__":
    main()
