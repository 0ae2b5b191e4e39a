"""What calls take after others of the same signature on arrays of the other kind: registered or plain.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/before.py "all_reduce 65536 registered time" "all_reduce 1048576 plain time"

Two communicators take turns on the same arrays. One knows this kind alone. The other makes `OTHERS` calls on the
other kind before each turn. A figure is ``COLLECTIVE BYTES registered|plain time``: the time of a call of the latter
over that of the former, from the `SETTLED`th call of a turn on. It is the median over the turns, of the slowest rank.
"""

import argparse
import statistics

import numpy as np
from watching import bound, seconds

import hpccomm
from contest import figures
from contest.figures import Figure

OTHERS = 50
SETTLED = 20
"""Calls, after which the ranks have found what arrays they have now."""
TURN_BYTES = 100_000_000
"""How much a turn moves."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    figures.add_arguments(parser, "all_reduce 65536 registered time")
    parser.add_argument("--turns", type=int, default=21, help="of each (%(default)s)")
    request = parser.parse_args()
    measured = {}
    with hpccomm.new_comm() as mixed, mixed.dup() as pure:
        for figure in request.figures:
            collective, size, kind, _ = figure.split()
            nbytes = int(size)
            arrays = [np.zeros(nbytes // 4, np.float32), mixed.empty(nbytes // 4, np.float32)]
            arrays[1].fill(0)
            other, mine = arrays if kind == "registered" else reversed(arrays)
            before = bound(mixed, collective, other, "auto")
            contenders = [bound(comm, collective, mine, "auto") for comm in (mixed, pure)]
            calls = max(10, min(200, TURN_BYTES // nbytes))
            turns = []
            for _ in range(request.turns):
                seconds(before, OTHERS)
                for call in contenders:
                    seconds(call, SETTLED)
                mixed.barrier()
                turns.append([seconds(call, calls) for call in contenders])
                contenders.reverse()
            # Every second turn went the other way round.
            after = statistics.median(turn[n % 2] for n, turn in enumerate(turns))
            alone = statistics.median(turn[1 - n % 2] for n, turn in enumerate(turns))
            slowest = max(mixed.all_gather_object((after / alone, after, alone)))
            says = f"{slowest[1] * 1e6:.1f} µs; {slowest[2] * 1e6:.1f} µs where nothing else was called"
            measured[figure] = Figure(slowest[0], says, slowest[1])
        rank = mixed.rank
    if rank == 0:
        figures.show(measured, request.json)


if __name__ == "__main__":
    main()
