"""What compressors send over a communicator."""

from collections.abc import Sequence

import numpy as np

from hpccomm.gradients.arrays import Array
from hpccomm.gradients.group import RankGroup
from hpccomm.reductions import ReduceOp


class RankExchange:
    """The ranks of a group as an `Exchange`, which counts what is sent.

    Parameters
    ----------
    group : RankGroup
        The ranks.

    Attributes
    ----------
    rank, size : int
        Of the group.
    scale : float
        See `Exchange`.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.scale = 1.0
        self.wire_nbytes = 0

    def sum(self, x: Array) -> None:
        """Replace an array by the sum over the ranks, with the same bits on each. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        self._group.reduce(x, deterministic=True)

    def max(self, x: Array) -> None:
        """Replace an array by the largest elements over the ranks. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        self._group.reduce(x, ReduceOp.MAX)

    def gather(self, x: Array) -> Array:
        """Return the arrays of all ranks, of shape ``(size, *x.shape)``. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        return self._group.gather(np.ascontiguousarray(x))

    def gather_uneven(self, x: Array) -> Sequence[Array]:
        """Return the 1-D arrays of all ranks, which may have different lengths, by rank. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        comm, timeout = self._group.comm, self._group.timeout
        every, counts = comm.all_gather_v(x, timeout=timeout, return_counts=True)
        return np.split(every, np.cumsum(counts)[:-1])

    def swap(self, x: Array) -> Array:
        """Send ``x[r]`` to rank `r`, and return what the ranks sent here, by rank. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        comm, timeout = self._group.comm, self._group.timeout
        received: Array = comm.all_to_all(np.ascontiguousarray(x), timeout=timeout)
        return received
