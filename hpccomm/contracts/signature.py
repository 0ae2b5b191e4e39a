"""What a collective call asks for, without its memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType
from hpccomm.reductions import Op


@dataclass(frozen=True, slots=True)
class Signature:
    """What a collective call asks for.

    Each call has at most two flat arrays on a rank, `send` and `recv`:

    =============== ========================== ===========================
    collective      send                       recv
    =============== ========================== ===========================
    all_reduce      the contribution           the result
    broadcast       (recv)                     x, on every rank
    reduce          the contribution           the result, at root
    all_gather      the own block              all blocks, by rank
    reduce_scatter  the contribution, blocks   the own block of the result
    all_to_all      a block for each rank      a block from each rank
    gather          the own block              all blocks, at root
    scatter         all blocks, at root        the own block
    scan            the contribution           the result
    barrier         nothing                    nothing
    =============== ========================== ===========================

    Attributes
    ----------
    collective : str
        One of `COLLECTIVES`.
    dtype : dtype
        Of all arrays.
    counts : tuple of int
        Elements: one number where every rank has the same (all_reduce, broadcast, reduce, scan:
        the whole array), else the block of each rank. For all_to_all what this rank sends to each.
    recv_counts : tuple of int
        For all_to_all, what this rank receives from each; else empty.
    uniform : bool
        Whether all blocks, on all ranks, have one size.
    op : ReduceOp, PremulSum, callable or None
        The reduction.
    root : int
        The root, or -1.
    exclusive : bool
        Of a scan.
    in_place : bool
        Whether `send` and `recv` lie in the same memory on this rank.
    """

    collective: str
    dtype: DType
    counts: tuple[int, ...]
    recv_counts: tuple[int, ...] = ()
    uniform: bool = True
    op: Op | None = None
    root: int = -1
    exclusive: bool = False
    in_place: bool = False

    @property
    def name(self) -> str:
        """Name of the call."""
        return self.collective if self.uniform else f"{self.collective}_v"

    @property
    def elements(self) -> int:
        """Elements of the larger array of this rank."""
        return max(sum(self.counts), sum(self.recv_counts))

    @property
    def nbytes(self) -> int:
        """Bytes of the larger array."""
        return self.elements * self.dtype.itemsize

    def lengths(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the elements of `send` and `recv` on each of `ranks`, after the table above."""
        counts = np.array(self.counts, np.int64)
        none = np.zeros(len(ranks), np.int64)
        total = none + counts.sum()
        own = none + counts[ranks % len(counts)]
        at_root = np.where(ranks == self.root, total, 0)
        return {
            "all_reduce": (total, total),
            "broadcast": (none, total),
            "reduce": (total, at_root),
            "all_gather": (own, total),
            "reduce_scatter": (total, own),
            "all_to_all": (total, none + sum(self.recv_counts)),
            "gather": (own, at_root),
            "scatter": (at_root, own),
            "scan": (total, total),
            "barrier": (none, none),
        }[self.collective]
