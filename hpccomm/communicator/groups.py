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
        """Make a communicator of the ranks that pass the same `color`. Collective; blocks.

        Parameters
        ----------
        color : int or None
            The group of this rank; None joins no group.
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
            On the other ranks in that case.
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
            On the other ranks in that case, and on all ranks if their lists differ.
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
        """Make a communicator without some of the ranks. Called by the ranks that stay; blocks.

        The excluded ranks take no part, and may be dead. The ranks of the new communicator are in the same
        order. Over NCCL 2.27 and later, NCCL's own shrink makes the device side, which is faster than
        making a new communicator.

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

        If the communicator has failed, only local work is done.

        Raises
        ------
        CommunicationError
            If calls on device arrays have failed and no call has raised that failure yet. The contents of
            their arrays are undefined.
        """
        self._engine.groups.finalize()

    def abort(self) -> None:
        """End the waits of this process and mark the communicator as failed.

        Local; may be called from any thread.

        Calls that wait, and asynchronous calls under way, end with `CommunicatorAborted`. A call that is
        blocked in the MPI library continues until its deadline. Over NCCL, calls under way are ended on
        the device, so that its streams continue; the contents of their arrays are undefined. The arrays
        of unfinished calls are kept alive.
        """
        self._engine.groups.abort()
