"""How the ranks that are left go on when others are lost.

A backend has it where its library survives the end of a process; see `Backend.survival`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hpccomm.contracts.backend import Backend


class Survival(Protocol):
    """What a library that survives lost ranks can do for one communicator.

    Attributes
    ----------
    epoch : int
        How often ranks were left out to come to this communicator.
    """

    epoch: int

    def lost(self, seconds: float = 0.0) -> tuple[int, ...]:
        """Return the ranks that this process knows to be lost. Local; from any thread.

        Blocks at most `seconds`, until one is known.
        """

    def release(self) -> None:
        """End every call of the communicator, on all ranks, those blocked in the library too.

        Local; from any thread; never blocks; idempotent. Nothing but `shrunk` and `agreed` works after it.
        """

    def split(self, ranks: Sequence[int], label: int) -> "Backend | None":
        """Make the communicator of a group, as `Backend.group` does; a lost rank ends it with an error.

        Collective over all ranks, not only over those of the group: the others give no ranks and get
        None. Blocks until all have called.
        """

    def shrunk(self, epoch: int, attempt: int) -> "tuple[Backend, tuple[int, ...]]":
        """Make a communicator of the ranks that are left, also after a failure.

        Collective over them; blocks until all have called or are lost too.

        Parameters
        ----------
        epoch : int
            Of the new communicator.
        attempt : int
            Tells apart what is made for the same epoch; the same on all ranks.

        Returns
        -------
        Backend
            Its ranks are in the same order.
        tuple of int
            The ranks that were left out, the same on all.
        """

    def agreed(self, flags: int) -> int:
        """Return the bits that are set in the `flags` of all ranks that are left: the same on all.

        Collective over them, also after a failure; blocks until all have called or are lost too.
        """
