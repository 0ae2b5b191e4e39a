"""Point-to-point transfer of bytes, as every backend gives it."""

from typing import Any, Protocol

from numpy.typing import NDArray


class Request(Protocol):
    """A transfer under way."""

    def test(self) -> bool:
        """Return whether it is complete; moves it on, never blocks.

        Raises
        ------
        BufferMismatch
            If a message of another size came.
        """
        ...


class Transport(Protocol):
    """Messages between the ranks of one communicator.

    Messages of one sender, receiver and tag arrive in their order. Neither call blocks; the memory
    belongs to the transfer until it is complete.
    """

    rank: int
    size: int
    largest_tag: int

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send a C-contiguous array to rank `dst`."""
        ...

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive exactly ``data.nbytes`` bytes from rank `src`."""
        ...
