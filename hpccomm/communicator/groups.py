"""Making communicators of other ones, and ending them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpccomm.communicator.face import Face

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator


class Groups(Face):
    """Communicators over some of the ranks. A new one shares nothing with its parent."""

    def split(
        self, color: int | None, key: int = 0, name: str | None = None
    ) -> "Communicator | None":
        """Make a communicator of the ranks that give the same `color`. Collective; blocks.

        Parameters
        ----------
        color : int or None
            Which group; None takes part in none.
        key : int
            Ranks are ordered by key, then by rank.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator or None
            None for the color None.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On every other rank then.
        """
        return self._engine.groups.split(color, key, name)

    def split_ranks(self, ranks: Iterable[int], name: str | None = None) -> "Communicator | None":
        """Make a communicator of `ranks`, in that order. Called by all ranks of this one; blocks.

        Parameters
        ----------
        ranks : sequence of int
            The same on all ranks.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator or None
            None on the ranks that are not in it.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On every other rank then, and on all if their lists differ.
        """
        return self._engine.groups.split_ranks(ranks, name)

    def dup(self, name: str | None = None) -> "Communicator":
        """Make a communicator of the same ranks. Collective; blocks.

        Parameters
        ----------
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator
            Ended by itself.
        """
        return self._engine.groups.dup(name)

    def shrink(self, exclude: Iterable[int], name: str | None = None) -> "Communicator":
        """Make a communicator of all ranks but some. Called by those that stay; blocks.

        The excluded ranks take no part, and need not be there any more. The new communicator's ranks
        are in the order of this one's. Over NCCL, its own shrink makes the device side where the
        library has that (2.27 and later), which is quicker than to begin anew.

        Parameters
        ----------
        exclude : sequence of int
            Ranks to leave out, at least one; the same on all ranks that stay.
        name : str, optional
            Of the new communicator.

        Returns
        -------
        Communicator
            Ended by itself.

        Raises
        ------
        UsageError
            If an argument does not fit, or this rank is excluded.
        """
        return self._engine.groups.shrink(exclude, name)

    @property
    def node_comm(self) -> "Communicator":
        """The communicator of this node's ranks, made together with this one."""
        of_node = self._engine.groups.node_comm
        if of_node is None:  # it is itself that of a node
            return self  # type: ignore[return-value]  # every Groups is a Communicator
        return of_node

    def finalize(self) -> None:
        """End the communicator. Collective; blocks; idempotent. Asynchronous calls are awaited.

        If it has failed, only what needs no peer is done.

        Raises
        ------
        CommunicationError
            If calls on device arrays have failed since the last one was made, which nothing has told so
            far: what they should have filled is undefined.
        """
        self._engine.groups.finalize()

    def abort(self) -> None:
        """End this process's waits and mark the communicator as failed. Local; from any thread.

        Calls that wait, and asynchronous ones under way, end with `CommunicatorAborted`; one that
        is blocked in the MPI library goes on to its deadline. Over NCCL, calls under way are ended on
        the device, so that its streams go on; what they leave in their arrays is undefined. Arrays in
        flight are kept.
        """
        self._engine.groups.abort()
