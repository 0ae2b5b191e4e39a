"""What compressors send over a communicator."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Array = NDArray[Any]


class Ranks:
    """The ranks of a communicator as an `Exchange`, which counts what is sent and takes flags along.

    Parameters
    ----------
    comm : Communicator
        Over the ranks.
    timeout : float or None
        Deadline of each call in seconds.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    scale : float
        See `Exchange`.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    """

    def __init__(self, comm: "Communicator", timeout: float | None) -> None:
        self._comm, self._timeout = comm, timeout
        self.rank, self.size = comm.rank, comm.size
        self.scale = 1.0
        self.wire_nbytes = 0

    def sum(self, x: Array) -> None:
        """Replace an array by the sum over the ranks, with the same bits on each. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        self._comm.all_reduce(x, timeout=self._timeout, deterministic=True)

    def max(self, x: Array) -> None:
        """Replace an array by the largest elements over the ranks. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        self._comm.all_reduce(x, ReduceOp.MAX, timeout=self._timeout)

    def gather(self, x: Array) -> Array:
        """Return the arrays of all ranks, of shape ``(size, *x.shape)``. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        every: Array = self._comm.all_gather(np.ascontiguousarray(x), timeout=self._timeout)
        return every

    def gather_uneven(self, x: Array) -> Sequence[Array]:
        """Return the 1-D arrays of all ranks, which may have different lengths, by rank. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        every, counts = self._comm.all_gather_v(x, timeout=self._timeout, return_counts=True)
        return np.split(every, np.cumsum(counts)[:-1])

    def swap(self, x: Array) -> Array:
        """Send ``x[r]`` to rank `r`, and return what the ranks sent here, by rank. Collective; blocks."""
        self.wire_nbytes += x.nbytes
        received: Array = self._comm.all_to_all(np.ascontiguousarray(x), timeout=self._timeout)
        return received
