"""Calls on Python objects.

Objects are pickled (protocol 5); the memory of large arrays in them is sent apart, without a copy.
Only unpickle what ranks of your own job send. These calls block.
"""

from collections.abc import Sequence
from typing import Any

from hpccomm.communicator.face import Face


class Objects(Face):
    """Any object that can be pickled takes the place of an array."""

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's object on every rank. Collective; blocks.

        Parameters
        ----------
        value : object
            At the root. Not used elsewhere.
        root : int
            The rank that has it.
        timeout : float, optional
            Seconds; None is the communicator's.

        Returns
        -------
        object
            At the root `value` itself.

        Raises
        ------
        UsageError
            If the root's object cannot be pickled, there; elsewhere `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.broadcast(value, root, timeout)

    def all_gather_object(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return every rank's object, by rank, on every rank. Collective; blocks.

        Parameters
        ----------
        value : object
            This rank's.
        timeout : float, optional
            Seconds; None is the communicator's.

        Returns
        -------
        list of object
            By rank.

        Raises
        ------
        UsageError
            If this rank's object cannot be pickled; on the others `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.all_gather(value, timeout)

    def gather_object(
        self, value: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """Return every rank's object, by rank, at the root; None elsewhere. Collective; blocks.

        Parameters
        ----------
        value : object
            This rank's.
        root : int
            The rank that gets them.
        timeout : float, optional
            Seconds; None is the communicator's.

        Returns
        -------
        list of object, or None
            At the root by rank, elsewhere None.

        Raises
        ------
        UsageError
            If this rank's object cannot be pickled; at the root `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.gather(value, root, timeout)

    def scatter_object(
        self,
        values: Sequence[Any] | None,
        root: int = 0,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return this rank's one of the root's objects. Collective; blocks.

        Parameters
        ----------
        values : sequence of object
            At the root, one for each rank. Not used elsewhere.
        root : int
            The rank that has them.
        timeout : float, optional
            Seconds; None is the communicator's.

        Returns
        -------
        object
            At the root its own of `values`, pickled and unpickled.

        Raises
        ------
        UsageError
            If there are more or fewer objects than ranks, or one cannot be pickled, at the root;
            elsewhere `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.scatter(values, root, timeout)

    def send_object(
        self, value: Any, dst: int, tag: int = 0, *, timeout: float | None = None
    ) -> None:
        """Send an object to rank `dst`. Blocks until it may be changed again.

        Parameters
        ----------
        value : object
            Anything that can be pickled.
        dst : int
            The receiver.
        tag : int
            Tells messages apart; those of arrays are others.
        timeout : float, optional
            Seconds; None is the communicator's.

        Raises
        ------
        UsageError
            If it cannot be pickled; nothing is sent then.
        CommunicationError
            If the call fails or its deadline passes.
        """
        self._engine.objects.send(value, dst, tag, timeout)

    def recv_object(self, src: int, tag: int = 0, *, timeout: float | None = None) -> Any:
        """Return an object that rank `src` sends. Blocks until it is there.

        Parameters
        ----------
        src : int
            The sender.
        tag : int
            The message's.
        timeout : float, optional
            Seconds; None is the communicator's.

        Returns
        -------
        object
            A copy of what was sent.

        Raises
        ------
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.recv(src, tag, timeout)
