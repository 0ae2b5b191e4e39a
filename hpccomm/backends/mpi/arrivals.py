"""Messages from any sender, of any tag and size, over MPI.

They are matched (``MPI_Improbe``), so that exactly the probed message is received, whatever other
threads receive. MPI finds the first message that fits one tag or all tags. A set of tags, such as
arrays of one tag and any dtype, is searched tag by tag. An array of any tag behind an object is not
found: the object would have to be matched and kept for later receives, and with it all that follows
its header.

The communicator's ``probe`` and receives from any sender use it.
"""

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.transport import FOLLOWS, NOTE_BYTES, CheckedTransport, NearbyTransport
from hpccomm.backends.mpi.types import block
from hpccomm.contracts.transport import PACKET_BYTES, Arrival, Steps, Wanted

_BYTE = MPI.BYTE


class MpiArrivals:
    """Looks for messages on a transport.

    Parameters
    ----------
    comm : MPI communicator
        That of the transport.
    transport : CheckedTransport
        Of the users' messages.
    """

    def __init__(self, comm: Any, transport: CheckedTransport) -> None:
        self._size = comm.size
        self._iprobe = comm.Iprobe
        self._improbe = comm.Improbe
        self._transport = transport

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Take a message that has arrived, polled; return None at once without one."""
        status, transport = MPI.Status(), self._transport
        src = MPI.ANY_SOURCE if wanted.src is None else wanted.src
        message = None
        if wanted.exact is not None and not transport.waiting:
            message = self._improbe(src, wanted.exact, status)
        if message is None:
            message = self._first(src, wanted, status)
            if message is None:
                return None
        src, tag, nbytes = status.Get_source(), status.Get_tag(), status.Get_elements(_BYTE)
        if nbytes == NOTE_BYTES and isinstance(transport, NearbyTransport):
            return (yield from self._noted(transport, message, src, tag))
        return Arrival(src, tag, nbytes, partial(_received, message, nbytes))

    def _first(self, src: int, wanted: Wanted, status: Any) -> Any:
        """Return a wanted message that no receive waits for: of a sender, its first one of all, or of a few tags."""
        if not self._iprobe(src, MPI.ANY_TAG, status):
            return None
        first, transport = status.Get_source(), self._transport
        for each in range(first, first + self._size) if src == MPI.ANY_SOURCE else (src,):
            sender = each % self._size
            if sender == first or self._iprobe(sender, MPI.ANY_TAG, status):
                for tag in (status.Get_tag(), *wanted.tags):
                    if wanted.fits(tag) and not transport.awaited(sender, tag):
                        message = self._improbe(sender, tag, status)
                        if message is not None:
                            return message
        return None

    def _noted(
        self, transport: NearbyTransport, message: Any, src: int, tag: int
    ) -> Generator[bool, None, Arrival]:
        """Return what was matched; of a rank of the node, the array's message that it tells of."""
        if src not in transport.near:
            return Arrival(src, tag, NOTE_BYTES, partial(_received, message, NOTE_BYTES))
        note = np.empty(NOTE_BYTES, np.uint8)
        yield from iter(message.Irecv([note, *block(NOTE_BYTES)]).Test, True)
        numbers = note[:-1].view(np.int64)
        number, nbytes = int(numbers[0]), int(numbers[1])
        if number != FOLLOWS:
            receive = partial(transport.copied, src, number, numbers[2:].copy())
            return Arrival(src, tag, nbytes, receive)
        # The array is the next message. It is matched now, so that no later receive gets it.
        while (message := self._improbe(src, tag)) is None:
            yield False
        return Arrival(src, tag, nbytes, partial(_received, message, nbytes))


def _received(message: Any, nbytes: int, data: NDArray[Any] | None) -> Steps:
    into = np.empty(nbytes, np.uint8) if data is None else data
    if nbytes <= PACKET_BYTES:
        message.Recv([into, nbytes, _BYTE])
        return iter(())
    return iter(message.Irecv([into, *block(nbytes)]).Test, True)
