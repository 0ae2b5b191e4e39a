"""One-sided communication of bytes, as a backend gives it that has any."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import Request, Transport


class OneSided(Protocol):
    """What the ranks of one window do to each other's memory without the other's help.

    Offsets and counts are in bytes. What one rank wrote, another one reads rightly only once the two
    have synchronised: the writer calls `order` (after `flush`, if it wrote by `put`), then sends
    something or releases a lock; the reader receives or acquires that, then calls `order`.

    Attributes
    ----------
    signals : Transport
        Messages between these ranks that meet no others. Its `shared` is the window's own too: calls
        of the communicator that go on by themselves use theirs meanwhile.
    """

    signals: Transport

    def attach(self, memory: NDArray[np.uint8]) -> None:
        """Let all ranks put to this rank's memory, and get from it. Collective; blocks.

        Parameters
        ----------
        memory : ndarray of uint8, 1-D
            It may be empty. It lives as long as the window.
        """

    def put(self, data: NDArray[Any], dst: int, start: int) -> Request:
        """Begin to write a C-contiguous array to rank `dst`'s memory, from byte `start` on.

        Complete once `data` may be changed. Only after `attach`.
        """

    def get(self, into: NDArray[Any], src: int, start: int) -> Request:
        """Begin to read from rank `src`'s memory, from byte `start` on, into a C-contiguous array.

        Only after `attach`.
        """

    def flush(self, dst: int) -> None:
        """Wait until all that this rank put to `dst` is there. It blocks in the library."""

    def acquire(self, dst: int) -> Request:
        """Begin to take the lock of rank `dst`, of which there is one; complete once it is had."""

    def release(self, dst: int) -> Request:
        """Begin to give the lock of rank `dst` back."""

    def order(self) -> None:
        """Order this rank's reads and writes of memory before the call and after it. Local."""

    def free(self) -> None:
        """End it. Collective; it blocks in the library. Not called after a failure."""
