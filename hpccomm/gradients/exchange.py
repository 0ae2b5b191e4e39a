"""The interface of a compressor, also of a user's own, and its exchange with other ranks. `compression` implements it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hpccomm.gradients.arrays import Array
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import Bucket
from hpccomm.reductions import ReduceOp


class Exchange:
    """The communication of a compressor. Each method is collective, and blocks.

    Parameters
    ----------
    group : RankGroup
        The ranks.

    Attributes
    ----------
    rank, size : int
        Of the ranks that exchange compressed gradients.
    scale : float
        What gradients may be multiplied by before they are narrowed, and divided by afterwards, so that small ones
        survive: the loss scale; 1 without one.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group, self.rank, self.size = group, group.rank, group.size
        self.scale = 1.0
        self.wire_nbytes = 0

    def sum(self, x: Array) -> None:
        """Replace an array by the sum over the ranks, with the same bits on each."""
        self.wire_nbytes += x.nbytes
        self._group.reduce(x, deterministic=True)

    def max(self, x: Array) -> None:
        """Replace an array by the largest elements over the ranks."""
        self.wire_nbytes += x.nbytes
        self._group.reduce(x, ReduceOp.MAX)

    def gather(self, x: Array) -> Array:
        """Return the arrays of all ranks, of shape ``(size, *x.shape)``. `x` has one shape and dtype everywhere."""
        self.wire_nbytes += x.nbytes
        return self._group.gather(np.ascontiguousarray(x))

    def gather_uneven(self, x: Array) -> Sequence[Array]:
        """Return the 1-D arrays of all ranks, which may have different lengths, by rank."""
        self.wire_nbytes += x.nbytes
        comm, timeout = self._group.comm, self._group.timeout
        every, counts = comm.all_gather_v(x, timeout=timeout, return_counts=True)
        return np.split(every, np.cumsum(counts)[:-1])

    def swap(self, x: Array) -> Array:
        """Send ``x[r]`` to rank `r`, and return what the ranks sent here, of `x`'s shape, by rank."""
        self.wire_nbytes += x.nbytes
        comm, timeout = self._group.comm, self._group.timeout
        received: Array = comm.all_to_all(np.ascontiguousarray(x), timeout=timeout)
        return received


class Channel(Protocol):
    """A compressor at work on one bucket, with its state between steps.

    Attributes
    ----------
    memory_bytes : int
        Size of its state.
    """

    @property
    def memory_bytes(self) -> int:
        """Size of its state in bytes."""

    def reduce(self, x: Array, exchange: Exchange) -> None:
        """Replace a bucket's gradients by an approximation of their sum over the ranks. Collective; blocks.

        It calls `exchange` in the same way on all ranks, and leaves the same bits on all of them.

        Parameters
        ----------
        x : ndarray, 1-D
            This rank's gradients, of the bucket's dtype and length: views of it at the bucket's offsets have the
            gradients' elements, and the padding between them is 0. Elements that this rank lacks are 0.
        exchange : Exchange
            To the other ranks.
        """


class Compressor(Protocol):
    """A way to send less than the gradients themselves.

    Its ``repr`` has its settings, and must be equal on all ranks. That of a frozen dataclass does.
    """

    def channel(self, bucket: Bucket) -> Channel:
        """Return the reducer of a bucket. Local.

        Raises
        ------
        UsageError
            If the bucket's dtype does not fit.
        """
