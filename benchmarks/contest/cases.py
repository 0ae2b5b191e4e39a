"""One call of a collective on one rank: its arrays, what goes in, what must come out.

Only public names of hpccomm are used here, so that one checkout's benchmarks can measure another's
package. Data are small integers, so that sums are exact in any order and results are compared for
equality.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Allocate = Callable[[int], Array]
"""Returns an array of so many elements, whose contents do not matter."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call: positional, and by keyword."""

DTYPE = np.dtype(np.float32)
ROOT = 0
ALIGNMENT = 4
"""Elements of which a block is a multiple, as nccl-tests' blocks are."""
OVERWRITES = ("all_reduce", "broadcast", "reduce", "scan")
"""Calls that are made in place unless an output of its own is wanted."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a collective takes and gives.

    Attributes
    ----------
    x, out : str
        What each rank has: ``"whole"`` (an array of the case's size), ``"block"`` (one rank's part of
        it), ``"root"`` (the whole array, on the root alone) or ``"none"``.
    reduces : bool
        Whether it sums.
    blocks : bool
        Whether its array consists of one block for each rank.
    """

    x: str
    out: str
    reduces: bool = False
    blocks: bool = True


SHAPES = {
    "all_reduce": Shape("whole", "whole", reduces=True, blocks=False),
    "reduce_scatter": Shape("whole", "block", reduces=True),
    "all_gather": Shape("block", "whole"),
    "broadcast": Shape("root", "whole", blocks=False),
    "reduce": Shape("whole", "root", reduces=True, blocks=False),
    "all_to_all": Shape("whole", "whole"),
    "gather": Shape("block", "root"),
    "scatter": Shape("root", "block"),
    "send_recv": Shape("whole", "whole", blocks=False),
    "scan": Shape("whole", "whole", reduces=True, blocks=False),
    "all_gather_v": Shape("block", "whole"),
    "reduce_scatter_v": Shape("whole", "block", reduces=True),
    "all_to_all_v": Shape("whole", "whole"),
    "gather_v": Shape("block", "root"),
    "scatter_v": Shape("root", "block"),
    "neighbor_all_to_all": Shape("whole", "whole"),
    "barrier": Shape("none", "none", blocks=False),
}
"""Every collective that has contenders. ``send_recv`` is an exchange round the ranks, and in
``neighbor_all_to_all`` every rank is a neighbor."""

COLLECTIVES = tuple(SHAPES)[:10]
"""Those that are measured by default over sizes."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of one call: `x` goes in, `out` comes out; None where this rank has none.

    In place they are one.
    """

    x: Array | None
    out: Array | None


class Case:
    """One call of a collective, as one rank makes it.

    Parameters
    ----------
    collective : str
        One of `SHAPES`.
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
    shape : Shape
        What the collective takes and gives.
    elements, block : int
        Of the whole array, and of one rank's part of it.
    in_place : bool
        Whether input and output are one array.
    expected : ndarray of float32, or None
        What must come out on this rank.
    """

    def __init__(self, collective: str, nbytes: int, rank: int, ranks: int, *, apart: bool) -> None:
        self.collective, self.rank, self.ranks = collective, rank, ranks
        self.shape = SHAPES[collective]
        self.in_place = collective in OVERWRITES and not (apart and collective != "broadcast")
        self.elements = 0 if self.shape.x == "none" else nbytes // DTYPE.itemsize
        if self.shape.blocks:
            aligned = self.elements // (ranks * ALIGNMENT) * ALIGNMENT
            self.elements = max(aligned, ALIGNMENT) * ranks
        self.block = self.elements // ranks
        self._arrays: dict[Allocate, Arrays] = {}
        self._input = self._part(self.shape.x, self._contribution(rank))
        self.expected = self._part(self.shape.out, self._result())

    @property
    def nbytes(self) -> int:
        """The size that was meant, rounded to what the collective can do."""
        return self.elements * DTYPE.itemsize

    @property
    def own(self) -> slice:
        """The block of the whole array that is this rank's."""
        return slice(self.rank * self.block, (self.rank + 1) * self.block)

    def arrays(self, allocate: Allocate) -> Arrays:
        """Return arrays for the call; contenders with the same kind of memory share them."""
        if allocate not in self._arrays:
            x, out = (
                None if part is None else allocate(part.size)
                for part in (self._input, self.expected)
            )
            if self.in_place:
                both = out if x is None else x
                x, out = (None if part is None else both for part in (x, out))
            self._arrays[allocate] = Arrays(x, out)
        return self._arrays[allocate]

    def arguments(self, arrays: Arrays) -> Arguments:
        """Return what hpccomm's call is made with."""
        counts, name = (self.block,) * self.ranks, self.collective
        if name == "barrier":
            return (), {}
        if name == "send_recv":
            after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
            return (arrays.x, after, arrays.out, before), {}
        keywords: dict[str, Any] = (
            {"root": ROOT} if "root" in (self.shape.x, self.shape.out) else {}
        )
        if name == "broadcast":
            return (arrays.out,), keywords
        # Calls in place get no output, but for a scan, which makes one unless it gets one.
        if not self.in_place or name == "scan":
            keywords["out"] = arrays.out
        if name == "neighbor_all_to_all":
            return (arrays.x, list(range(self.ranks))), keywords
        if name == "all_to_all_v":
            return (arrays.x, counts, counts), keywords
        return (arrays.x,), keywords | ({"counts": counts} if name.endswith("_v") else {})

    def prepare(self, arrays: Arrays) -> None:
        """Put in what goes in; what comes out is then wrong everywhere."""
        if arrays.out is not None:
            arrays.out.fill(np.nan)
        if arrays.x is not None and self._input is not None:
            np.copyto(arrays.x, self._input)

    def wrong(self, arrays: Arrays) -> int:
        """Return how many elements differ from what must come out on this rank."""
        if arrays.out is None or self.expected is None:
            return 0
        return int(np.count_nonzero(arrays.out != self.expected))

    def rest(self) -> None:
        """Put in what stays as it is however often calls are made, so that no sum overflows."""
        if self.in_place:
            for arrays in self._arrays.values():
                array = arrays.out if arrays.x is None else arrays.x  # in place they are one
                if array is not None:
                    array.fill(0)

    def _contribution(self, rank: int) -> Array:
        """Return the whole array of a rank; where ranks have blocks, they send their part of it."""
        period = ((np.arange(61) + 31 * rank) % 61 + 1).astype(DTYPE)
        return np.resize(period, self.elements)

    def _part(self, which: str, whole: Array) -> Array | None:
        """Return what this rank has of an array."""
        if which == "none" or (which == "root" and self.rank != ROOT):
            return None
        return whole[self.own] if which == "block" else whole

    def _result(self) -> Array:
        """Return the whole array that comes out, of which this rank may get a part."""
        name = self.collective.removesuffix("_v").removeprefix("neighbor_")
        if self.shape.reduces:
            last = self.rank if name == "scan" else self.ranks - 1
            total = self._contribution(0)
            for rank in range(1, last + 1):
                total += self._contribution(rank)
            return total
        if name in ("broadcast", "scatter"):
            return self._contribution(ROOT)
        if name == "send_recv":
            return self._contribution((self.rank - 1) % self.ranks)
        result = np.empty(self.elements, DTYPE)
        for rank in range(self.ranks):
            place = slice(rank * self.block, (rank + 1) * self.block)
            result[place] = self._contribution(rank)[self.own if name == "all_to_all" else place]
        return result
