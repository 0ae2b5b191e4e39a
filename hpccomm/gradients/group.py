"""The ranks that train together: their communicator, with the calls that training needs; the interface of compressors."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpccomm.gradients.parameters import Array, Bucket
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class RankGroup:
    """A communicator, with the deadline of all calls. Methods are collective, and block.

    Parameters
    ----------
    comm : Communicator
        Over the ranks.
    timeout : float or None
        Deadline of each call in seconds; None is the communicator's.
    """

    def __init__(self, comm: "Communicator", timeout: float | None) -> None:
        self.comm, self.timeout = comm, timeout
        self.rank, self.size = comm.rank, comm.size

    def exchange(self, own: Any) -> list[Any]:
        """Return the objects of all ranks."""
        return self.comm.all_gather_object(own, timeout=self.timeout)

    def gather(self, x: Array) -> Array:
        """Return the arrays of all ranks."""
        every: Array = self.comm.all_gather(x, timeout=self.timeout)
        return every

    def reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, deterministic: bool = False) -> None:
        """Replace an array by its reduction over the ranks."""
        self.comm.all_reduce(x, op, timeout=self.timeout, deterministic=deterministic)

    def broadcast(self, arrays: Iterable[Array], root: int) -> None:
        """Give all ranks the arrays of `root`, all on the host or all on devices."""
        with self.comm.batch(timeout=self.timeout):
            for each in arrays:
                self.comm.broadcast(each, root)

    def plan(self, collective: str, *arrays: Any, **options: Any) -> Callable[[], Any]:
        """Plan a call."""
        return self.comm.plan(collective, *arrays, timeout=self.timeout, **options)


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
