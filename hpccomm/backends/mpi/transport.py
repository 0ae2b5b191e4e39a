"""Messages over an MPI communicator. Only messages of the right size reach an array.

A message that is longer than a posted receive may overwrite memory (Open MPI 5 does). So no receive is
posted that a message of another size could match.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.types import INT_MAX, block
from hpccomm.contracts.transport import (
    CALLS,
    CHANNELS,
    Request,
    SharedMemory,
    mismatch,
    other_dtype,
)
from hpccomm.runtime.lifetime import keep

if TYPE_CHECKING:
    from hpccomm.errors import BufferMismatch

PATIENT_POLLS = 100
"""So often a receive looks for its message before it looks for one of another dtype."""

TAGS = CHANNELS * CALLS
"""`SizedTransport` takes tags below this."""

_BYTE = MPI.BYTE


class CheckedTransport:
    """Matches a message first and receives it when its size is known. Takes any tag.

    Parameters
    ----------
    comm : MPI communicator
        Moves the messages.
    codes : int
        The last digit of tags, to this base, is a dtype's; 1 for none. A receive that waits long looks for
        messages whose tags differ in that alone: these are of another dtype than its array.
    """

    shared: SharedMemory | None = None

    def __init__(self, comm: Any, codes: int = 1) -> None:
        self._codes = codes
        self._comm = comm
        self._isend = comm.Isend
        self._improbe = comm.Improbe
        # For each sender and tag: the receives that have begun, and those that have their message.
        self._receives: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self.rank: int = comm.rank
        self.size: int = comm.size
        # MPI promises at least 32767.
        self._largest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
        self.largest_tag: int = (self._largest + 1) // codes - 1

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        # The request keeps the memory, which must outlive the transfer.
        test: Request = self._isend([data, *block(data.nbytes)], dst, tag).Test
        return test

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive. Receives of one sender and tag match in their order."""
        receives = self._receives[src, tag // self._codes]
        turn = receives[0]
        receives[0] = turn + 1
        improbe = self._improbe
        request: Any = None
        wrong: BufferMismatch | None = None
        status = MPI.Status()
        idle = 0

        def test() -> bool:
            nonlocal request, wrong, idle
            if request is None:
                if receives[1] != turn:
                    return False
                message = improbe(src, tag, status)
                if message is None:
                    idle += 1
                    if idle % PATIENT_POLLS:
                        return False
                    message = self._another(src, tag, status)
                    if message is None:
                        return False
                    wrong = other_dtype(src, status.Get_tag(), tag)
                receives[1] = turn + 1
                arrived = status.Get_elements(MPI.BYTE)
                into = data
                if wrong is not None:
                    into = np.empty(arrived, np.uint8)
                elif arrived != data.nbytes:
                    wrong = mismatch(src, arrived, data.nbytes)
                    into = np.empty(arrived, np.uint8)  # receives the message, which is lost
                request = message.Irecv([into, *block(arrived)])
            if not request.Test():
                return False
            if wrong is not None:
                raise wrong
            return True

        return test

    def _another(self, src: int, tag: int, status: Any) -> Any:
        """Return the message of another dtype that has come with the same tag; None if there is none."""
        first = tag - tag % self._codes
        for each in range(first, first + self._codes):
            if each != tag:
                message = self._improbe(src, each, status)
                if message is not None:
                    return message
        return None

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return False: a receive raises by itself."""
        return False


class SizedTransport:
    """Puts a message's size into its tag, so that a receive can be posted. For hpccomm's own calls.

    This saves a third of the time of small messages. A message whose size does not fit into a tag goes
    through `CheckedTransport`.
    """

    largest_tag = TAGS - 1

    def __init__(self, comm: Any, shared: SharedMemory | None = None) -> None:
        self._comm = comm
        self.shared = shared
        self._isend = comm.Isend
        self._irecv = comm.Irecv
        self._checked = CheckedTransport(comm)
        # The most bytes that a tag can encode, and no more than MPI's plain counts hold.
        self._most = min((self._checked.largest_tag + 1) // TAGS - 2, INT_MAX)
        self.rank: int = comm.rank
        self.size: int = comm.size

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        nbytes = data.nbytes
        if nbytes > self._most:
            return self._checked.isend(data, dst, tag)
        # The request keeps the memory, which must outlive the transfer.
        test: Request = self._isend([data, nbytes, _BYTE], dst, (nbytes + 1) * TAGS + tag).Test
        return test

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive. Receives of one sender and tag match in their order."""
        nbytes = data.nbytes
        if nbytes > self._most:
            return self._checked.irecv(data, src, tag)
        test: Request = self._irecv([data, nbytes, _BYTE], src, (nbytes + 1) * TAGS + tag).Test
        return test

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return whether the first unmatched message from `src` is not the expected one.

        Such a message is of the same channel, but of another size or call, and comes before the
        expected one of `nbytes` bytes. With `take` it is received elsewhere, and an error is raised.
        """
        status = MPI.Status()
        if not self._comm.Iprobe(src, MPI.ANY_TAG, status):
            return False
        came = status.Get_tag() % TAGS
        arrived = status.Get_elements(MPI.BYTE)
        another = came % CHANNELS == tag % CHANNELS and (came != tag or arrived != nbytes)
        if not (another and take):
            return another
        message = self._comm.Mprobe(src, status.Get_tag())  # it is there
        lost = np.empty(arrived, np.uint8)
        keep(message.Irecv([lost, *block(arrived)]), lost)
        raise mismatch(src, arrived, nbytes)
