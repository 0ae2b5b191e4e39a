"""Calls on Python objects.

Objects are pickled (protocol 5); the memory of large arrays in them is sent separately, without a copy.
Only unpickle what ranks of your own job send. These calls block.
"""

from collections.abc import Sequence
from typing import Any

from hpccomm.communicator.face import Face


class Objects(Face):
    """These calls take any object that can be pickled."""

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's object on every rank. Collective; blocks.

        Parameters
        ----------
        value : object
            On the root. Other ranks do not use it.
        root : int
            The rank that has it.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline.

        Returns
        -------
        object
            On the root `value` itself.

        Raises
        ------
        UsageError
            On the root, if its object cannot be pickled; the other ranks raise `CommunicationError`.
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
            Deadline in seconds. None is the communicator's deadline.

        Returns
        -------
        list of object
            By rank.

        Raises
        ------
        UsageError
            If this rank's object cannot be pickled; the other ranks raise `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.all_gather(value, timeout)

    def gather_object(
        self, value: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """Return every rank's object, by rank, on the root; None on other ranks. Collective; blocks.

        Parameters
        ----------
        value : object
            This rank's.
        root : int
            The rank that gets them.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline.

        Returns
        -------
        list of object, or None
            By rank on the root; None on other ranks.

        Raises
        ------
        UsageError
            If this rank's object cannot be pickled; the root raises `CommunicationError`.
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
        """Return the object that the root has for this rank. Collective; blocks.

        Parameters
        ----------
        values : sequence of object
            On the root, one for each rank. Other ranks do not use it.
        root : int
            The rank that has them.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline.

        Returns
        -------
        object
            On the root its own element of `values`, pickled and unpickled.

        Raises
        ------
        UsageError
            On the root, if there are more or fewer objects than ranks, or if one cannot be pickled; the
            other ranks raise `CommunicationError`.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return self._engine.objects.scatter(values, root, timeout)

    def send_object(
        self, value: Any, dst: int, tag: int = 0, *, timeout: float | None = None
    ) -> None:
        """Send an object to rank `dst`. Blocks until the object may be changed again.

        Parameters
        ----------
        value : object
            Anything that can be pickled.
        dst : int
            The receiver.
        tag : int
            Distinguishes messages. Messages of arrays have separate tags.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline.

        Raises
        ------
        UsageError
            If the object cannot be pickled. Nothing has been sent then.
        CommunicationError
            If the call fails or its deadline passes.
        """
        self._engine.objects.send(value, dst, tag, timeout)

    def recv_object(self, src: int, tag: int = 0, *, timeout: float | None = None) -> Any:
        """Return an object that rank `src` sends. Blocks until it has arrived.

        Parameters
        ----------
        src : int
            The sender.
        tag : int
            The message's.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline.

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
