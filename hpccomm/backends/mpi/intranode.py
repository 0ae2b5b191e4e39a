"""Messages between ranks of a node. A note precedes each large one.

The receiver itself copies an array in registered memory, from the place that the note names. MPI copies
once too, but Open MPI and MPICH copy through the kernel, page by page. Copying from mapped memory takes at
most half of the time from 512 KiB to 2 MiB, and again at 64 MiB. Intel MPI is as fast by itself.

MPI moves plain arrays, because ``process_vm_readv`` takes as long. The note contains their size, so that a
receive can be posted: Intel MPI needs nine times as long (34 ms instead of 3.8 ms for 64 MiB) to receive a
message that was matched by a probe.

`backend` sends large messages between ranks of a node by it.
"""

from collections.abc import Set
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.transport import CheckedTransport, Turns
from hpccomm.backends.mpi.types import block
from hpccomm.contracts.transport import (
    DTYPES,
    RECORD,
    Record,
    Request,
    SharedMemory,
    Steps,
    check_fit,
)
from hpccomm.memory.views import as_bytes
from hpccomm.runtime.waiting import completed, polled

DIRECT_BYTES = 256 << 10
"""From this size on, the note and the answer cost less than MPI's copy of a registered array."""

COPIED = MPI.get_vendor()[0] in ("Open MPI", "MPICH")
"""Whether that holds for this library."""

POSTED_BYTES = 1 << 20
"""From this size on, a note precedes a plain array; it costs 1 % or less of the time."""

NUMBERS = 2 + RECORD
"""A note has its number, the bytes of the array and the record of where the array lies."""

NOTE_BYTES = 8 * NUMBERS + 1
"""Every message of this size is a note. The size is odd, which is rare for arrays."""

FOLLOWS = -1
"""Number of a note whose array is the next message."""

_NO_RECORD: Record = np.zeros(RECORD, np.int64)


class NearbyTransport(CheckedTransport):
    """Sends the place of a registered array, and waits until its receiver has copied it.

    A note travels like any message, so that small and large messages stay in order.

    Parameters
    ----------
    comm : MPI communicator
        Moves the messages.
    shared : SharedMemory
        Reaches the memory of the node's ranks. For messages alone, since collectives may be under way.
    near : set of int
        The other ranks of the node.
    """

    _apart = NOTE_BYTES

    def __init__(self, comm: Any, shared: SharedMemory, near: Set[int]) -> None:
        super().__init__(comm, DTYPES)
        self.shared = shared
        self._near = near
        self._answers = self._largest
        self.largest_tag -= 1
        self._numbers = count()
        # The receive after a note takes the next message, whichever it is. So no other thread
        # (asynchronous calls have one) may send between a note and its array.
        self._lock = Lock()
        # By receiver, the numbers of notes whose answers have arrived and are not yet used.
        self._copied: dict[int, set[int]] = {rank: set() for rank in near}

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        if dst not in self._near:
            return super().isend(data, dst, tag)
        nbytes = data.nbytes
        if nbytes < DIRECT_BYTES and nbytes != NOTE_BYTES:
            with self._lock:
                return super().isend(data, dst, tag)
        shared = self.shared
        large = COPIED and nbytes >= DIRECT_BYTES
        with self._lock:
            if large and shared is not None and shared.holds(data):
                return polled(self._offered(shared, data, dst, tag))
            if nbytes >= POSTED_BYTES or nbytes == NOTE_BYTES:
                noted = super().isend(_note(FOLLOWS, nbytes, _NO_RECORD), dst, tag)
                sent = super().isend(data, dst, tag)
                return polled(completed([noted, sent]))
            return super().isend(data, dst, tag)

    def _offered(self, shared: SharedMemory, data: NDArray[Any], dst: int, tag: int) -> Steps:
        """Send the place of the array, and wait for the answer."""
        number = next(self._numbers)
        exposure = shared.expose([data], 0, 0, plain=False, room=0)
        sent = super().isend(_note(number, data.nbytes, exposure.record), dst, tag)
        copied = self._copied[dst]

        def steps() -> Steps:
            while number not in copied:
                yield from self._hear(dst)
            copied.discard(number)
            yield from completed([sent])
            exposure.withdraw()

        return steps()

    def _hear(self, dst: int) -> Steps:
        """Receive an answer of `dst` if one has arrived."""
        message = self._improbe(dst, self._answers)
        if message is None:
            yield False
            return
        number = np.empty(1, np.int64)
        yield from completed([message.Irecv([number, 1, MPI.INT64_T]).Test])
        self._copied[dst].add(int(number[0]))

    def _taken(
        self,
        message: Any,
        came: int,
        arrived: int,
        data: NDArray[Any],
        src: int,
        tag: int,
        turns: Turns,
    ) -> Steps:
        """Receive what was matched: an array, or a note and its array."""
        if src not in self._near or arrived != NOTE_BYTES:
            yield from super()._taken(message, came, arrived, data, src, tag, turns)
            return
        note = np.empty(NOTE_BYTES, np.uint8)
        yield from completed([message.Irecv([note, *block(NOTE_BYTES)]).Test])
        numbers = note[:-1].view(np.int64)
        number, nbytes, record = int(numbers[0]), int(numbers[1]), numbers[2:].copy()
        fits = nbytes == data.nbytes and came == tag
        if number == FOLLOWS:
            into = data if fits else np.empty(nbytes, np.uint8)  # takes a lost message
            # The array is the next message and has this size, so the receive can be posted.
            request = self._comm.Irecv([into, *block(nbytes)], source=src, tag=came)
            turns.popleft()
            yield from completed([request.Test])
        else:
            turns.popleft()
            yield from self.copied(src, number, record, data if fits else None)
        check_fit(src, came, tag, nbytes, data.nbytes)

    def precedes(self, src: int) -> bool:
        """Return whether a note may precede the messages of a rank."""
        return src in self._near

    def copied(self, src: int, number: int, record: Record, data: NDArray[Any] | None) -> Steps:
        """Copy the array that a note offers, if it is wanted, and answer the note."""
        try:
            if data is not None:
                self._copy(src, record, data)
        finally:  # the sender waits for the answer even if the copy failed
            answer = np.array([number])
            yield from completed(
                [self._comm.Isend([answer, 1, MPI.INT64_T], src, self._answers).Test]
            )

    def _copy(self, src: int, record: Record, into: NDArray[Any]) -> None:
        """Copy the registered array of rank `src` that the record describes."""
        assert self.shared is not None  # if it is None, no rank offers any
        exposure = self.shared.expose((), 0, 0, plain=True, room=0)
        exposure.learn({src: record})
        there = exposure.reach(src, 0, np.dtype(np.uint8))
        if isinstance(there, np.ndarray):
            as_bytes(into)[:] = there
        else:  # it cannot be mapped here, and pages may be read
            with self._lock:  # by one thread at a time
                there.read(as_bytes(into))


def _note(number: int, nbytes: int, record: Record) -> NDArray[np.uint8]:
    note = np.zeros(NOTE_BYTES, np.uint8)
    numbers = note[:-1].view(np.int64)
    numbers[:2] = number, nbytes
    numbers[2:] = record
    return note
