"""Calls on Python objects.

Objects are pickled (protocol 5); the memory of large arrays in them is sent apart, without a copy.
Only unpickle what ranks of your own job send. These calls block.
"""

from collections.abc import Sequence
from typing import Any

from hpccomm.communicator import object_transfer as objects
from hpccomm.communicator.core import Core
from hpccomm.communicator.messages import OBJECTS, Messages, wire_tag
from hpccomm.communicator.object_transfer import Frame, ObjectPaths
from hpccomm.errors import UsageError
from hpccomm.runtime.engine import Operation
from hpccomm.topology import check_rank


class Objects(Messages, Core):
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
        with self._one_call():
            origin = check_rank("root", root, self._backend.size)
            at_root = self._backend.rank == origin
            frame, error = _dumped(value) if at_root else (Frame(), None)
            self._object_call(
                "broadcast_object", frame, self._paths().broadcast(frame, origin), timeout
            )
            if error is not None:
                raise error
            return value if at_root else self._loaded("broadcast_object", frame, origin)

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
        with self._one_call():
            frame, error = _dumped(value)
            frames: list[Frame] = []
            self._object_call(
                "all_gather_object", frame, self._paths().all_gather(frame, frames), timeout
            )
            if error is not None:
                raise error
            return [
                self._loaded("all_gather_object", each, rank) for rank, each in enumerate(frames)
            ]

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
        with self._one_call():
            target = check_rank("root", root, self._backend.size)
            frame, error = _dumped(value)
            frames: list[Frame] = []
            self._object_call(
                "gather_object", frame, self._paths().gather(frame, frames, target), timeout
            )
            if error is not None:
                raise error
            if self._backend.rank != target:
                return None
            return [self._loaded("gather_object", each, rank) for rank, each in enumerate(frames)]

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
        with self._one_call():
            origin = check_rank("root", root, self._backend.size)
            size, error, frames = self._backend.size, None, list[Frame]()
            if self._backend.rank == origin:
                frames, error = _dumped_each(values, size)
            frame = Frame()
            self._object_call(
                "scatter_object", frame, self._paths().scatter(frames, frame, origin), timeout
            )
            if error is not None:
                raise error
            return self._loaded("scatter_object", frame, origin)

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
        with self._one_call():
            peer = check_rank("dst", dst, self._backend.size)
            wire = wire_tag(self._checked_tag(tag), OBJECTS)
            frame = objects.dump(value)
            self._object_call(
                "send_object", frame, self._paths().send(frame, peer, wire), timeout, ordered=False
            )

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
        with self._one_call():
            peer = check_rank("src", src, self._backend.size)
            wire = wire_tag(self._checked_tag(tag), OBJECTS)
            frame = Frame()
            self._object_call(
                "recv_object",
                frame,
                self._paths().receive(frame, peer, wire),
                timeout,
                ordered=False,
            )
            return self._loaded("recv_object", frame, peer)

    def _loaded(self, name: str, frame: Frame, rank: int) -> Any:
        """Return the object that `rank` sent; an error has the call's facts."""
        with self._calls.told(name, frame.nbytes):
            return frame.load(rank)

    def _paths(self) -> ObjectPaths:
        backend = self._backend
        return ObjectPaths(self._control, self._path, backend.collectives, backend.messages)

    def _object_call(
        self, name: str, frame: Frame, steps: Any, timeout: float | None, ordered: bool = True
    ) -> None:
        limit = self._timeout(timeout)
        if self._batch is not None:
            raise UsageError(f"{name} does not go into a batch, which takes arrays only")
        operation = Operation(name, frame.nbytes, lambda: steps, (frame,), ordered)
        self._calls.operate(operation, limit)


def _dumped(value: Any) -> tuple[Frame, UsageError | None]:
    try:
        return objects.dump(value), None
    except UsageError as error:
        return objects.failed(error), error


def _dumped_each(values: Any, size: int) -> tuple[list[Frame], UsageError | None]:
    try:
        given = list(values)
    except TypeError:
        wrong = UsageError(f"values is {values!r}; give a sequence of {size} objects")
        return [objects.failed(wrong)] * size, wrong
    if len(given) != size:
        wrong = UsageError(f"values has {len(given)} objects; give {size}, one for each rank")
        return [objects.failed(wrong)] * size, wrong
    pairs = [_dumped(value) for value in given]
    errors = [error for _, error in pairs if error is not None]
    return [frame for frame, _ in pairs], errors[0] if errors else None
