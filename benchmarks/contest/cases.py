"""One call of a collective on one rank: its arrays, what goes in, what must come out.

The data are those of ``hpccomm perf``: sums are exact in any order, so that results are compared for
equality.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm import ReduceOp
from hpccomm.bench.perf.collectives import COLLECTIVES as MEASURED
from hpccomm.bench.perf.collectives import Benchmark, benchmark
from hpccomm.bench.perf.layouts import ALIGNMENT, Layout, Member
from hpccomm.bench.perf.verification import CheckedData, RankSlice, fill, poison

Array = NDArray[np.float32]
Allocate = Callable[[int], Array]
"""Gives an array of so many elements, whose contents do not matter."""

DTYPE = np.dtype(np.float32)
ROOT = 0
OVERWRITES = ("all_reduce", "broadcast", "reduce", "scan")
"""Calls that work in place unless they are told not to."""

COLLECTIVES: dict[str, Benchmark] = {
    name: collective
    for name, collective in {**MEASURED, "scan": benchmark("scan")}.items()
    if name not in ("barrier", "all_to_all_v")
}
"""The collectives that have contenders, and the exchange ``send_recv`` round the ranks."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of one call: `x` goes in, `out` comes out; None where this rank has none.

    In place they are one.
    """

    x: Array | None
    out: Array | None

    def each(self) -> Iterator[Array]:
        """Yield the arrays, one that is both once."""
        if self.x is not None:
            yield self.x
        if self.out is not None and self.out is not self.x:
            yield self.out


class Case:
    """One call of a collective, as one rank makes it.

    Parameters
    ----------
    collective : str
        One of `COLLECTIVES`.
    nbytes : int
        Size after nccl-tests: of the larger of what a rank sends and receives in full. Where that
        leaves nothing for the blocks of the ranks, they get the smallest that there is.
    rank, ranks : int
        Of the communicator.
    apart : bool
        Whether a call of `OVERWRITES` gets an output of its own, which others have anyway; a
        broadcast never does.

    Attributes
    ----------
    collective : Benchmark
        How it is called.
    layout : Layout
        How much goes in and out.
    place : Member
        The rank, the ranks, and the root.
    in_place : bool
        Whether input and output are one array.
    """

    def __init__(self, collective: str, nbytes: int, rank: int, ranks: int, *, apart: bool) -> None:
        self.collective = COLLECTIVES[collective]
        self.place = Member(rank, ranks, ROOT)
        self.in_place = collective in OVERWRITES and not (apart and collective != "broadcast")
        self.layout: Layout = self.collective.arrange(nbytes, DTYPE.itemsize, self.place)
        if self.layout.nbytes == 0:
            self.layout = self.collective.arrange(ALIGNMENT * ranks, DTYPE.itemsize, self.place)
        self._data = CheckedData(DTYPE, self.op, ranks, seed=1)
        self._arrays: dict[Allocate, Arrays] = {}
        self._inputs = self._made(self.layout.inputs)
        self._expected = self._made(self.layout.outputs)
        if collective == "scan":
            self._expected = self._sum_to(rank)

    @property
    def op(self) -> ReduceOp | None:
        """The reduction, where there is one."""
        return ReduceOp.SUM if self.collective.reduces else None

    @property
    def nbytes(self) -> int:
        """The size that was meant, rounded to what the collective can do."""
        return self.layout.nbytes

    def arrays(self, allocate: Allocate) -> Arrays:
        """Return arrays for the call; contenders with the same kind of memory share them."""
        found = self._arrays.get(allocate)
        if found is None:
            found = self._arrays[allocate] = self._allocated(allocate)
        return found

    def _allocated(self, allocate: Allocate) -> Arrays:
        inside, outside = self.layout.inputs is not None, self.layout.outputs is not None
        if self.in_place:
            both = allocate(self.layout.input_size or self.layout.output_size)
            return Arrays(both if inside else None, both if outside else None)
        return Arrays(
            allocate(self.layout.input_size) if inside else None,
            allocate(self.layout.output_size) if outside else None,
        )

    def prepare(self, arrays: Arrays) -> None:
        """Put in what goes in; what comes out is then wrong everywhere."""
        if arrays.out is not None and self.layout.outputs is not None:
            poison(arrays.out, self._data, self.layout.outputs)
        if arrays.x is not None and self._inputs is not None:
            np.copyto(arrays.x, self._inputs)

    def wrong(self, arrays: Arrays) -> int:
        """Return how many elements differ from what must come out on this rank."""
        if arrays.out is None or self._expected is None:
            return 0
        # By their bits: data that is moved may be not a number.
        differ = arrays.out.view(np.uint32) != self._expected.view(np.uint32)
        return int(np.count_nonzero(differ))

    def rest(self) -> None:
        """Put in what stays as it is however often calls are made, so that no sum overflows."""
        if self.in_place:
            for arrays in self._arrays.values():
                for array in arrays.each():
                    array.fill(0)

    def _made(self, segments: tuple[RankSlice, ...] | None) -> Array | None:
        if segments is None:
            return None
        array = np.empty(sum(segment.count for segment in segments), DTYPE)
        fill(array, self._data, segments)
        return array

    def _sum_to(self, rank: int) -> Array:
        """Return the sum of the contributions up to that of `rank`."""
        total = np.zeros(self.layout.input_size, DTYPE)
        share = np.empty_like(total)
        for source in range(rank + 1):
            fill(share, self._data, (RankSlice(source, 0, share.size),))
            total += share
        return total
