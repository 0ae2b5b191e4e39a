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
from hpccomm.contracts.arrivals import Arrival, Wanted
from hpccomm.contracts.transport import PACKET_BYTES, Record, Steps
from hpccomm.runtime.waiting import completed


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
        self._comm = comm
        self._improbe = comm.Improbe
        self._transport = transport

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Take a message that has arrived, polled; return None at once without one."""
        status = MPI.Status()
        src = MPI.ANY_SOURCE if wanted.src is None else wanted.src
        if wanted.exact is not None and not self._transport.waiting:
            message = self._improbe(src, wanted.exact, status)
            if message is None:
                return None
            return (yield from self._arrived(message, status.Get_source(), status))
        if not self._comm.Iprobe(src, MPI.ANY_TAG, status):
            return None
        first, size = status.Get_source(), self._comm.size
        sources = range(first, first + (size if wanted.src is None else 1))
        for src in sources:
            message = self._matched(src % size, wanted, status)
            if message is not None:
                return (yield from self._arrived(message, src % size, status))
        return None

    def _matched(self, src: int, wanted: Wanted, status: Any) -> Any:
        """Return the first message of one sender that is wanted and that no receive waits for."""
        if not self._comm.Iprobe(src, MPI.ANY_TAG, status):
            return None
        head = status.Get_tag()
        for tag in (head, *wanted.tags):
            if wanted.fits(tag) and not self._transport.awaited(src, tag):
                message = self._comm.Improbe(src, tag, status)
                if message is not None:
                    return message
        return None

    def _arrived(self, message: Any, src: int, status: Any) -> Generator[bool, None, Arrival]:
        """Return the arrived message; for a note, its array's message."""
        tag, nbytes = status.Get_tag(), status.Get_elements(MPI.BYTE)
        transport = self._transport
        if (
            nbytes != NOTE_BYTES
            or not isinstance(transport, NearbyTransport)
            or not transport.precedes(src)
        ):
            return Arrival(src, tag, nbytes, partial(_received, message, nbytes))
        note = np.empty(NOTE_BYTES, np.uint8)
        yield from completed([message.Irecv([note, *block(NOTE_BYTES)]).Test])
        numbers = note[:-1].view(np.int64)
        number, nbytes = int(numbers[0]), int(numbers[1])
        if number != FOLLOWS:
            return Arrival(
                src, tag, nbytes, partial(self._offered, transport, src, number, numbers[2:])
            )
        # The array is the next message. It is matched now, so that no later receive gets it.
        while (message := self._comm.Improbe(src, tag)) is None:
            yield False
        return Arrival(src, tag, nbytes, partial(_received, message, nbytes))

    @staticmethod
    def _offered(
        transport: NearbyTransport,
        src: int,
        number: int,
        record: Record,
        data: NDArray[Any] | None,
    ) -> Steps:
        return transport.copied(src, number, record.copy(), data)


def _received(message: Any, nbytes: int, data: NDArray[Any] | None) -> Steps:
    into = np.empty(nbytes, np.uint8) if data is None else data
    if nbytes <= PACKET_BYTES:
        message.Recv([into, nbytes, MPI.BYTE])
        return iter(())
    return completed([message.Irecv([into, *block(nbytes)]).Test])
