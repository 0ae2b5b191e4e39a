"""A planned exchange with four neighbors beside persistent requests, written with mpi4py.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/exchange.py "exchange 8 plan time" "exchange 1K plan time"

A figure is ``exchange SIZE CONTENDER time``: the time over that of mpi4py's Startall and Waitall on requests
that were made once. Each rank sends a message of SIZE to each neighbor and receives one from it. On two ranks,
all neighbors are the other rank. The contenders are

plan      a plan of `Communicator.neighbor_all_to_all`, and only that is called
auto      `Communicator.batch`, written anew each time

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import argparse
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import hpccomm
from contest import figures, rounds
from contest.figures import Figure
from hpccomm.units import size

if TYPE_CHECKING:
    from contest.rounds import Call
    from hpccomm.communicator import Communicator

NEIGHBORS = 4
CONTENDERS = ("plan", "auto")


class Arrays:
    """What one contender sends to the neighbors and receives from them, and who they are."""

    def __init__(self, rank: int, ranks: int, nbytes: int) -> None:
        steps = (1, -1, 2, -2) if ranks > 4 else (1, -1, 1, -1)
        self.peers = [(rank + step) % ranks for step in steps]
        self.x, self.out = np.zeros((2, NEIGHBORS, nbytes), np.uint8)
        self.x[:] = 10 * rank + np.arange(NEIGHBORS)[:, None]
        self.sends, self.receives = list(self.x), list(self.out)
        self.opposite = int(ranks > 2)

    def tags(self) -> list[tuple[int, int]]:
        """Return the tag of what is sent and of what is received, by neighbor.

        What comes from a side was sent to the opposite one; between two ranks, the messages keep their order.
        """
        return [(each, each ^ self.opposite) for each in range(NEIGHBORS)]

    def right(self) -> bool:
        """Tell whether what came is what was sent."""
        each = zip(self.receives, self.peers, self.tags(), strict=True)
        return all(bool((got == 10 * peer + tag).all()) for got, peer, (_, tag) in each)


def bare(comm: MPI.Intracomm, arrays: Arrays) -> "Call":
    """Return the exchange by mpi4py's persistent requests."""
    requests = [
        comm.Recv_init([into, into.size, MPI.BYTE], peer, tag)
        for into, peer, (_, tag) in zip(arrays.receives, arrays.peers, arrays.tags(), strict=True)
    ]
    requests += [
        comm.Send_init([data, data.size, MPI.BYTE], peer, tag)
        for data, peer, (tag, _) in zip(arrays.sends, arrays.peers, arrays.tags(), strict=True)
    ]
    start, wait = MPI.Prequest.Startall, MPI.Request.Waitall

    def exchange() -> None:
        start(requests)
        wait(requests)

    return exchange


def calls(comm: "Communicator", arrays: Arrays) -> None:
    """Make the calls of the exchange."""
    each = zip(arrays.sends, arrays.receives, arrays.peers, arrays.tags(), strict=True)
    with comm.batch():
        for data, into, peer, (outward, inward) in each:
            comm.recv(into, peer, inward)
            comm.send(data, peer, outward)


def ours(name: str, comm: "Communicator", arrays: Arrays) -> "Call":
    """Return the exchange by hpccomm. Collective."""
    if name == "auto":
        return lambda: calls(comm, arrays)
    return comm.plan("neighbor_all_to_all", arrays.x, arrays.peers, out=arrays.out)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures.add_arguments(parser, "exchange 8 plan time")
    parser.add_argument("--rounds", type=int, default=101, help="turns of each (%(default)s)")
    parser.add_argument("--calls", type=int, default=200, help="of a turn (%(default)s)")
    request = parser.parse_args()
    world = MPI.COMM_WORLD.Dup()
    measured: dict[str, Figure] = {}
    with hpccomm.new_comm() as comm:
        for figure in request.figures:
            _, nbytes, name, _ = figure.split()
            mine, theirs = (Arrays(comm.rank, comm.size, size(nbytes)) for _ in range(2))
            racing = [ours(name, comm, mine), bare(world, theirs)]
            times = rounds.compete(racing, world, request.rounds, request.calls)
            right = world.allreduce(mine.right() and theirs.right(), MPI.LAND)
            took, beside = (each.seconds * 1e6 for each in times)
            measured[figure] = Figure(
                times[0].over(times[1]) if right else float("nan"),
                f"{took:.2f} µs; mpi4py {beside:.2f} µs{'' if right else ', WRONG'}",
                times[0].seconds,
            )
        rank = comm.rank
    if rank == 0:
        figures.show(measured, request.json)


if __name__ == "__main__":
    main()
