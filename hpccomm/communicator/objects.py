"""Calls on Python objects: `broadcast_object` and its like, methods of `Communicator`.

Objects are pickled (protocol 5); the memory of large arrays in them is sent separately, without a copy.
Only unpickle what ranks of your own job send. Collectives block.
"""

from collections.abc import Sequence
from typing import Any

from hpccomm.communicator.arrivals import received_object
from hpccomm.communicator.core import HasCore
from hpccomm.communicator.object_calls import collective, for_each_rank, receive, send
from hpccomm.contracts.arrivals import ANY, Anything


def broadcast_object(
    self: HasCore, value: Any, root: int = 0, *, timeout: float | None = None
) -> Any:
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
    at_root = root == self._core.backend.rank
    objects = collective(self._core, "broadcast_object", value, at_root, root, timeout)
    return value if at_root else objects[0]


def all_gather_object(self: HasCore, value: Any, *, timeout: float | None = None) -> list[Any]:
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
    return collective(self._core, "all_gather_object", value, True, 0, timeout)


def gather_object(
    self: HasCore, value: Any, root: int = 0, *, timeout: float | None = None
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
    objects = collective(self._core, "gather_object", value, True, root, timeout)
    return objects if root == self._core.backend.rank else None


def scatter_object(
    self: HasCore, values: Sequence[Any] | None, root: int = 0, *, timeout: float | None = None
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
    at_root = root == self._core.backend.rank
    return for_each_rank(self._core, "scatter_object", values, at_root, root, timeout)[0]


def send_object(
    self: HasCore,
    value: Any,
    dst: int,
    tag: int = 0,
    *,
    async_op: bool = False,
    timeout: float | None = None,
) -> Any:
    """Send an object to rank `dst`. Blocks until the object may be changed again.

    Parameters
    ----------
    value : object
        Anything that can be pickled.
    dst : int
        The receiver.
    tag : int
        Distinguishes messages. Messages of arrays have separate tags.
    async_op : bool
        Return a `Work` at once. The object is pickled by then; large arrays in it must stay as they are.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    None
        Or a `Work`.

    Raises
    ------
    UsageError
        If the object cannot be pickled. The receiver raises `CommunicationError` then, in the place of the object.
    CommunicationError
        If the call fails or its deadline passes.
    """
    return send(self._core, value, dst, tag, async_op, timeout)


def recv_object(
    self: HasCore,
    src: int | Anything,
    tag: int | Anything = 0,
    *,
    async_op: bool = False,
    timeout: float | None = None,
) -> Any:
    """Return an object that rank `src` sends. Blocks until it has arrived.

    Parameters
    ----------
    src : int or ANY
        The sender; `ANY` is any.
    tag : int or ANY
        The message's; `ANY` is any. Over MPI, an object then is not seen behind an array of the same
        sender until that was received; `probe` takes either.
    async_op : bool
        Return a `Work` at once, whose ``wait()`` gives the object.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    object
        A copy of the sent object; or a `Work`.

    Raises
    ------
    CommunicationError
        If the call fails or its deadline passes.
    """
    if src is ANY or tag is ANY:
        with self._core.outside_batch("recv_object"):
            return received_object(self._core, src, tag, async_op, timeout)
    return receive(self._core, src, tag, async_op, timeout)
