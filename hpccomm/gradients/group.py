"""The ranks that train together: their communicator, with the calls that training needs."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hpccomm.gradients.arrays import Array
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
