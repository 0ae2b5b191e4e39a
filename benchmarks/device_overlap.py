"""Whether an asynchronous all-reduce and a matrix product on one device go on at the same time.

Run it on two ranks, with a GPU each if there are two::

    mpiexec -n 2 python benchmarks/device_overlap.py

The array and the matrix are made so large that each takes 5 ms at least, and neither twice the other.
Then each is timed alone and both together, by CUDA events: an event before both on the program's
stream, one on that stream after the product, and one on a further stream that waits for the
all-reduce. Figures are medians over the turns, of the slowest rank.

A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import numpy as np
from mpi4py import MPI

import hpccomm
from contest import device, program
from contest.device import on_stream
from contest.program import Option
from contest.verdicts import Verdicts

MOST = 1.15
"""Together over the longer of the two, with a GPU a rank."""
HIDDEN = 0.1
"""Of the shorter one; less may be the clock's noise."""

Stamps = tuple[float, float]
"""Milliseconds from the common begin until the product and the all-reduce are done."""


def main() -> None:
    """Measure and print."""
    flags = {"milliseconds": Option(6.0, "at least, of each alone"), "turns": program.turns(21)}
    arguments = program.parser(__doc__, flags).parse_args()
    with device.ranks(high_priority_stream=True) as (comm, verdicts):
        with on_stream(comm):
            pair = sized(comm, arguments.milliseconds)
            product, _ = pair.turns(arguments.turns, product=True)
            _, reduction = pair.turns(arguments.turns, reduction=True)
            both = pair.turns(arguments.turns, product=True, reduction=True)
        for line in (
            f"# {pair.nbytes >> 20} MiB float32, matrices of order {pair.order}; {arguments.turns} turns",
            f"# {'milliseconds by CUDA events':28s} {'alone':>9s} {'together':>9s}",
            f"  {'all_reduce(async_op)':28s} {reduction:9.3f} {both[1]:9.3f}",
            f"  {'matrix product':28s} {product:9.3f} {both[0]:9.3f}",
            f"  {'until both are done':28s} {'':9s} {max(both):9.3f}",
        ):
            verdicts.say(line)
        judge(verdicts, (product, reduction), max(both))


class Pair:
    """An all-reduce of so many bytes, and a product of matrices of such an order."""

    def __init__(self, comm: hpccomm.Communicator, nbytes: int, order: int) -> None:
        import cupy

        self.nbytes, self.order = nbytes, order
        self._comm = comm
        self._cupy = cupy
        self._after = cupy.cuda.Stream(non_blocking=True)
        self._x = cupy.zeros(nbytes // 4, np.float32)
        self._a, self._b, self._c = (cupy.zeros((order, order), np.float32) for _ in range(3))

    def turns(self, number: int, *, product: bool = False, reduction: bool = False) -> Stamps:
        """Return the median of so many turns, of the slowest rank. Collective; blocks."""
        self._turn(product, reduction)
        own = np.array([self._turn(product, reduction) for _ in range(number)])
        slowest = np.empty_like(own)
        MPI.COMM_WORLD.Allreduce(own, slowest, MPI.MAX)
        multiplied, reduced = np.median(slowest, axis=0)
        return float(multiplied), float(reduced)

    def _turn(self, product: bool, reduction: bool) -> Stamps:
        """Return the milliseconds until the product and the all-reduce are done."""
        cuda = self._cupy.cuda
        stream = cuda.get_current_stream()
        begin, multiplied, reduced = (cuda.Event() for _ in range(3))
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        begin.record(stream)
        work = self._comm.all_reduce(self._x, async_op=True) if reduction else None
        if product:
            self._cupy.matmul(self._a, self._b, out=self._c)
        multiplied.record(stream)
        with self._after:
            self._after.wait_event(begin)
            if work is not None:
                work.wait()  # orders this stream, which nothing else is on
            reduced.record(self._after)
        if work is not None:
            work.wait()
        self._after.synchronize()
        stream.synchronize()
        return cuda.get_elapsed_time(begin, multiplied), cuda.get_elapsed_time(begin, reduced)


def sized(comm: hpccomm.Communicator, least: float) -> Pair:
    """Return a pair of which each takes `least` milliseconds alone, and neither twice the other."""
    import cupy

    # An eighth of what is free: ranks may share the device.
    room = comm.all_gather_object(int(cupy.cuda.runtime.memGetInfo()[0]) // 8)
    nbytes, order = 1 << 22, 512
    while True:
        took = Pair(comm, nbytes, 1).turns(3, reduction=True)[1]
        if took >= least or 2 * nbytes > min(room):
            break
        nbytes *= 2
    target = max(took, least)
    for _ in range(8):
        product = Pair(comm, 4, order).turns(3, product=True)[0]
        if 0.8 * target <= product <= 1.25 * target:
            break
        order = max(64, int(order * min(4.0, (target / product) ** (1 / 3))))
        order -= order % 16
    return Pair(comm, nbytes, order)


def judge(verdicts: Verdicts, alone: Stamps, both: float) -> None:
    """Print the verdicts: that the two overlap, and what they take together."""
    shorter, longer = sorted(alone)
    if longer > 2 * shorter:
        text = f"the two are too unequal to tell: {longer:.2f} and {shorter:.2f} ms alone"
        verdicts.time_limit(False, text)
        return
    # One after the other, the second would begin where the first ends.
    hidden, together = (sum(alone) - both) / shorter, both / longer
    overlap = f"all_reduce and a matrix product overlap: {hidden:.0%} of the shorter is hidden"
    cost = f"together they take {together:.2f} x the longer (at most {MOST:g})"
    verdicts.time_limit(hidden >= HIDDEN, overlap)
    verdicts.time_limit(together <= MOST, cost)


if __name__ == "__main__":
    main()
