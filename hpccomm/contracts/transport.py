"""Point-to-point transfer of bytes, as every backend gives it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

CHANNELS = 16
"""Channels that tags tell apart, the control plane's among them."""

CALLS = 8
"""After so many calls their number in a tag begins anew."""

Request = Callable[[], bool]
"""A transfer under way: tells whether it is complete; moves it on, never blocks.

That of a receive raises `BufferMismatch` if a message of another size came. It is not called again
once it said True or raised.
"""


class Exposure(Protocol):
    """The buffers of one call that a rank lets its peers reach."""

    def reach(self, peer: int, buffer: int) -> NDArray[Any]:
        """Return the peer's buffer of that number in the same call.

        Only once both ranks have met after they exposed theirs, and until they meet to withdraw.
        """
        ...

    def withdraw(self) -> None:
        """Forget the buffers: no peer reaches them any more.

        After a failure it is not called, and they live on: a late peer may still reach them.
        """
        ...


class SharedMemory(Protocol):
    """Memory that the ranks of a transport reach of each other."""

    def expose(self, buffers: Sequence[NDArray[Any]]) -> Exposure:
        """Let the peers reach this rank's buffers of one call.

        Local, never blocks. All ranks expose in the same order of calls.
        """
        ...


class Transport(Protocol):
    """Messages between the ranks of one communicator.

    Messages of one sender, receiver and tag arrive in their order. Neither call blocks; the memory
    belongs to the transfer until it is complete.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    largest_tag : int
        Tags go from 0 to this.
    shared : SharedMemory or None
        Where ranks reach each other's memory, the way to it.
    """

    rank: int
    size: int
    largest_tag: int
    shared: SharedMemory | None

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send a C-contiguous array to rank `dst`."""
        ...

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive exactly ``data.nbytes`` bytes from rank `src`."""
        ...

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Tell whether a receive of `nbytes` bytes that has waited long seems to wait in vain.

        Asked now and then for the first of those that `irecv` began for `src` and `tag` and that are
        not complete. It may err once, where the message that was awaited has come in the meantime.
        Never blocks.

        Parameters
        ----------
        src, tag : int
            As of the receive.
        nbytes : int
            Bytes that it waits for.
        take : bool
            Take what came instead, so that its sender can go on, and raise.

        Raises
        ------
        BufferMismatch
            With `take`, if another message came.
        """
        ...
