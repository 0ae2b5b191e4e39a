"""Point-to-point transfer of bytes, as every backend gives it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

Request = Callable[[], bool]
"""A transfer under way: tells whether it is complete; moves it on, never blocks.

That of a receive raises `BufferMismatch` if a message of another size came. It is not called again
once it said True or raised.
"""


class SharedMemory(Protocol):
    """Memory that the ranks of a transport reach of each other.

    Attributes
    ----------
    peers : sequence of sequence of ndarray
        For each rank what it published, in its order. Valid from the end of `publish` to `withdraw`.
    """

    peers: Sequence[Sequence[NDArray[Any]]]

    def publish(self, buffers: Sequence[NDArray[Any]]) -> Iterator[bool]:
        """Let all ranks reach `buffers`. Called by all; polled steps, which end when all have."""
        ...

    def meet(self) -> Request:
        """Begin a barrier of all ranks."""
        ...

    def withdraw(self) -> None:
        """Forget what the peers published."""
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
