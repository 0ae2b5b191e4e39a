"""Messages over an MPI communicator. Only messages of the right size reach an array.

A message that is longer than a posted receive may overwrite memory (in Open MPI 5 it does). So no receive is
posted that a message of another size could match. `CheckedTransport` looks at each message first,
`SizedTransport` puts the size into MPI's tag, and `NearbyTransport` sends large arrays within a node
without MPI.

`PersistentMessages` binds the messages of plans to their arrays, by MPI's persistent requests. A receive is posted
before its message has arrived. That is safe: both ends have agreed on the size of each message, and no other message
can match, since the communicator carries only messages of plans, each with its own tag. A request can be freed only by
a call of MPI, and a destructor must not make one, since it runs in any thread, at any time. So the next call of
`PersistentMessages` frees the requests of deleted plans.

`MpiArrivals` finds messages from any sender, of any tag and size. They are matched (``MPI_Improbe``), so that
exactly the probed message is received, whatever other threads receive. MPI finds the first message that
fits one tag or all tags. A set of tags, such as arrays of one tag and any dtype, is searched tag by tag. An
array of any tag behind an object is not found: the object, and all messages that follow its header, would have to be
matched and kept for later receives.

`backend` makes these objects; `window` sends its signals by `CheckedTransport`.
"""

import threading
import weakref
from collections import deque
from collections.abc import Generator, Sequence, Set
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccomm.backends.mpi.types import INT_MAX, block, strided
from hpccomm.contracts.transport import (
    CALLS,
    CHANNELS,
    DTYPES,
    PACKET_BYTES,
    RECORD,
    Arrival,
    BoundMessage,
    BoundSet,
    Packet,
    Persistent,
    Receiving,
    Record,
    Request,
    SharedMemory,
    Steps,
    Wanted,
    begun_anew,
    check_fit,
    mismatch,
)
from hpccomm.errors import BufferMismatch
from hpccomm.memory.views import as_bytes
from hpccomm.runtime.service import keep
from hpccomm.runtime.waiting import completed, polled, received

PATIENT_POLLS = 100
"""Number of times that a receive looks for its message before it looks for a message of another dtype."""

TAGS = CHANNELS * CALLS
"""Number of tags of `SizedTransport`."""

_BYTE = MPI.BYTE


class Matched(NamedTuple):
    """A message that was matched, with its tag and its bytes."""

    message: Any
    tag: int
    nbytes: int


Turns = deque[Any]
"""The MPI statuses of the receives of one sender and tag that have begun and have no message yet, the first in front.
They are changed by single calls, which need no lock."""


class CheckedTransport:
    """Matches a message first, and receives it once its size is known. Takes any tag.

    Parameters
    ----------
    comm : MPI communicator
        Moves the messages.
    codes : int
        A tag modulo this number is the code of a dtype; 1 for none. A receive that waits long looks for
        messages whose tags differ only in that code: their dtype differs from the array's.
    """

    shared: SharedMemory | None = None
    _apart = -1  # size of messages that are notes, in a subclass
    persistent: Persistent | None = None

    def __init__(self, comm: Any, codes: int = 1) -> None:
        self._codes = codes
        self._comm = comm
        self._isend = comm.Isend
        self._irecv = comm.Irecv
        self._improbe = comm.Improbe
        # Entries live as long as something may receive by them: a program may have a new tag for each message.
        self._turns: WeakValueDictionary[tuple[int, int], Turns] = WeakValueDictionary()
        self._lock = threading.Lock()
        self.waiting = set[int]()  # the statuses of receives whose messages have not arrived
        self.rank: int = comm.rank
        self.size: int = comm.size
        # MPI promises at least 32767.
        self._largest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
        self.largest_tag: int = (self._largest + 1) // codes - 1

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        nbytes = data.nbytes
        whole = [data, nbytes, _BYTE] if nbytes <= INT_MAX else [data, *block(nbytes)]
        # The request keeps the memory, which must outlive the transfer.
        test: Request = self._isend(whole, dst, tag).Test
        return test

    def issend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send; complete once the message was matched."""
        test: Request = self._comm.Issend([data, *block(data.nbytes)], dst, tag).Test
        return test

    def isend_packet(self, data: bytes, dst: int, tag: int) -> Request:
        """Begin to send."""
        test: Request = self._isend(data, dst, tag).Test
        return test

    def irecv_packet(self, src: int, tag: int) -> Packet:
        """Begin to receive, into memory for the largest packet: that takes half the time of probing first."""
        room = bytearray(PACKET_BYTES)
        status = MPI.Status()
        test = self._irecv(room, src, tag).Test

        def arrived() -> bytes | None:
            return bytes(room[: status.Get_count(_BYTE)]) if test(status) else None

        return arrived

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive. Receives of one sender and tag match in their order."""
        return polled(self.receiving(src, tag)(data))

    def receiving(self, src: int, tag: int) -> Receiving:
        """Return the function that begins to receive messages of this sender and tag, as steps."""
        with self._lock:
            turns = self._turns.setdefault((src, tag // self._codes), deque())
        wait, begin = self._receive, turns.append

        def receive(data: NDArray[Any], beside: Request | None = None, /) -> Steps:
            status = MPI.Status()
            begin(status)
            return wait(data, src, tag, turns, status, beside)

        return receive

    def _receive(
        self,
        data: NDArray[Any],
        src: int,
        tag: int,
        turns: Turns,
        status: Any,
        beside: Request | None,
    ) -> Steps:
        """Receive a message, once `status` is the first of `turns`."""
        improbe, came, idle = self._improbe, tag, 0
        while turns[0] is not status:
            # It waits also before its turn: a probe must not take its message.
            self.waiting.add(id(status))
            idle = 1
            yield False
        while (message := improbe(src, tag, status)) is None:
            self.waiting.add(id(status))
            idle += 1
            if idle % PATIENT_POLLS == 0:
                message = self._another(src, tag, status)
                if message is not None:
                    came = status.Get_tag()
                    break
            yield False
        if idle:
            self.waiting.discard(id(status))
        arrived, nbytes = status.Get_elements(_BYTE), data.nbytes
        if arrived == nbytes <= PACKET_BYTES and came == tag and nbytes != self._apart:
            message.Recv([data, nbytes, _BYTE])
            turns.popleft()
        else:
            try:
                matched = Matched(message, came, arrived)
                yield from self._taken(matched, data, src, tag, turns)
            except BufferMismatch:
                if beside is not None:
                    yield from iter(beside, True)
                raise
        if beside is not None and not beside():
            yield from iter(beside, True)

    def _taken(self, came: Matched, data: NDArray[Any], src: int, tag: int, turns: Turns) -> Steps:
        """Receive a matched message, and raise if it does not fit `data` or `tag`."""
        fits = came.tag == tag and came.nbytes == data.nbytes
        # Other memory receives a message that does not fit.
        into = data if fits else np.empty(came.nbytes, np.uint8)
        request = came.message.Irecv([into, *block(came.nbytes)])
        turns.popleft()
        yield from iter(request.Test, True)
        check_fit(src, came.tag, tag, came.nbytes, data.nbytes)

    def isend_again(self, data: NDArray[Any], dst: int, tag: int) -> BoundSet:
        """Return the messages that send this array at each start."""
        return begun_anew(partial(self.isend, data, dst, tag))

    def irecv_again(self, data: NDArray[Any], src: int, tag: int) -> BoundSet:
        """Return the messages that receive into this array at each start."""
        return begun_anew(partial(self.irecv, data, src, tag))

    def awaited(self, src: int, tag: int) -> bool:
        """Return whether a receive of this sender and tag has begun and has no message yet."""
        return bool(self.waiting and self._turns.get((src, tag // self._codes)))

    def _another(self, src: int, tag: int, status: Any) -> Any:
        """Return the matched message of the same user's tag and another dtype, or None."""
        first = tag - tag % self._codes
        for each in range(first, first + self._codes):
            if each != tag and self._comm.Iprobe(src, each):
                # Both messages may have arrived since the last look. Then the one that was sent first counts.
                message = self._improbe(src, tag, status)
                return self._improbe(src, each, status) if message is None else message
        return None

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return False: a receive finds a message of another size itself."""
        return False


class SizedTransport:
    """Puts a message's size into its tag, so that a receive can be posted. Only hpccomm's collectives use it.

    This saves a third of the time of small messages. `CheckedTransport` moves a message whose size does not fit into
    a tag.
    """

    largest_tag = TAGS - 1
    persistent: Persistent | None = None

    def __init__(self, comm: Any, shared: SharedMemory | None = None) -> None:
        self._comm = comm
        self.shared = shared
        self._isend = comm.Isend
        self._irecv = comm.Irecv
        self._checked = checked = CheckedTransport(comm)
        self.isend_packet, self.irecv_packet = checked.isend_packet, checked.irecv_packet
        self._persistent: list[Any] = []
        # Most bytes that a tag can encode and MPI's plain counts can hold.
        self.most = min((self._checked.largest_tag + 1) // TAGS - 2, INT_MAX)
        self.rank: int = comm.rank
        self.size: int = comm.size

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        nbytes = data.nbytes
        if nbytes > self.most:
            return self._checked.isend(data, dst, tag)
        # The request keeps the memory, which must outlive the transfer.
        test: Request = self._isend([data, nbytes, _BYTE], dst, (nbytes + 1) * TAGS + tag).Test
        return test

    def irecv(self, data: NDArray[Any], src: int, tag: int) -> Request:
        """Begin to receive. Receives of one sender and tag match in their order."""
        nbytes = data.nbytes
        if nbytes > self.most:
            return self._checked.irecv(data, src, tag)
        test: Request = self._irecv([data, nbytes, _BYTE], src, (nbytes + 1) * TAGS + tag).Test
        return test

    def receiving(self, src: int, tag: int) -> Receiving:
        """Return the function that begins to receive such messages, as steps."""
        return received(self.irecv, src, tag)

    def isend_again(self, data: NDArray[Any], dst: int, tag: int) -> BoundSet:
        """Return the messages that send this array at each start."""
        if data.nbytes > self.most:
            return self._checked.isend_again(data, dst, tag)
        return self._again(self._comm.Send_init, data, dst, tag)

    def irecv_again(self, data: NDArray[Any], src: int, tag: int) -> BoundSet:
        """Return the messages that receive into this array at each start."""
        if data.nbytes > self.most:
            return self._checked.irecv_again(data, src, tag)
        return self._again(self._comm.Recv_init, data, src, tag)

    def _again(self, init: Any, data: NDArray[Any], peer: int, tag: int) -> BoundSet:
        nbytes = data.nbytes
        request = init([data, nbytes, _BYTE], peer, (nbytes + 1) * TAGS + tag)
        self._persistent.append(request)
        return BoundSet(request.Start, request.Test)

    def free(self) -> None:
        """Free the persistent requests. None may be under way."""
        for request in self._persistent:
            request.Free()
        self._persistent.clear()

    def look(self, src: int, tag: int, nbytes: int, *, take: bool = False) -> bool:
        """Return whether the first unmatched message from `src` is another one than the receive expects.

        Such a message has the same channel, but another size or call, and arrived before the
        expected message of `nbytes` bytes. With `take`, it is received into other memory, and an error is raised.
        """
        status = MPI.Status()
        if not self._comm.Iprobe(src, MPI.ANY_TAG, status):
            return False
        came = status.Get_tag() % TAGS
        arrived = status.Get_elements(MPI.BYTE)
        another = came % CHANNELS == tag % CHANNELS and (came != tag or arrived != nbytes)
        if not (another and take):
            return another
        message = self._comm.Mprobe(src, status.Get_tag())  # does not block: it has arrived
        lost = np.empty(arrived, np.uint8)
        keep(message.Irecv([lost, *block(arrived)]), lost)
        raise mismatch(src, arrived, nbytes)


DIRECT_BYTES = 256 << 10
"""Bytes from which a note and its answer cost less than MPI's copy of a registered array."""

COPIED = MPI.get_vendor()[0] in ("Open MPI", "MPICH")
"""Whether that is so for this MPI library."""

POSTED_BYTES = INT_MAX if COPIED else 1 << 20
"""Bytes from which a note precedes a plain array. Open MPI and MPICH receive a matched message as fast without a
note."""

NUMBERS = 2 + RECORD
"""Number of integers in a note: its number, the bytes of the array, and the record of the array's place."""

NOTE_BYTES = 8 * NUMBERS + 1
"""Bytes of a note. A note precedes each other message of this size. The size is odd, which is rare for arrays."""

FOLLOWS = -1
"""The number of a note whose array is the next message."""

_NO_RECORD: Record = np.zeros(RECORD, np.int64)


class NearbyTransport(CheckedTransport):
    """Sends the place of a registered array, and waits until the receiver has copied the array.

    A note precedes a large message between ranks of a node. It travels like any message, so that small
    and large messages stay in order.

    The receiver copies an array in registered memory from the place that the note names. MPI copies
    once too, but Open MPI and MPICH copy through the kernel, page by page. Copying from mapped memory takes
    at most half of the time from 512 KiB to 2 MiB, and again at 64 MiB. Intel MPI is as fast without it.

    MPI moves plain arrays, because ``process_vm_readv`` takes as long. For libraries other than Open MPI and MPICH,
    a note has the size of a plain array, so that a receive can be posted: Intel MPI needs nine times as long (34 ms
    instead of 3.8 ms for 64 MiB) to receive a message that a probe has matched.

    Parameters
    ----------
    comm : MPI communicator
        Moves the messages.
    shared : SharedMemory
        Reaches the memory of the node's ranks. Only messages use it, since collectives may be under way.
    near : set of int
        The other ranks of the node.
    """

    _apart = NOTE_BYTES

    def __init__(self, comm: Any, shared: SharedMemory, near: Set[int]) -> None:
        super().__init__(comm, DTYPES)
        self.shared = shared
        self.near = near
        self._answers = self._largest
        self.largest_tag -= 1
        self._numbers = count()
        # The receive after a note takes the next message, whatever it is. So no other thread, such as
        # that of asynchronous calls, may send between a note and its array.
        self._lock = threading.Lock()
        # Keyed by receiver: the numbers of notes whose answers have arrived and are not yet used.
        self._copied: dict[int, set[int]] = {rank: set() for rank in near}

    def isend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send."""
        nbytes = data.nbytes
        if nbytes < DIRECT_BYTES and nbytes != NOTE_BYTES:
            with self._lock:
                test: Request = self._isend([data, nbytes, _BYTE], dst, tag).Test
            return test
        if dst not in self.near:
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

    def issend(self, data: NDArray[Any], dst: int, tag: int) -> Request:
        """Begin to send; complete once the message was matched. A note precedes a large message."""
        nbytes = data.nbytes
        with self._lock:
            if dst not in self.near or (nbytes < DIRECT_BYTES and nbytes != NOTE_BYTES):
                return super().issend(data, dst, tag)
            noted = super().isend(_note(FOLLOWS, nbytes, _NO_RECORD), dst, tag)
            return polled(completed([noted, super().issend(data, dst, tag)]))

    def _offered(self, shared: SharedMemory, data: NDArray[Any], dst: int, tag: int) -> Steps:
        """Send the place of the array, and return the steps that wait for the answer."""
        number = next(self._numbers)
        exposure = shared.expose([data], 0, 0, plain=False, room=0)
        sent = super().isend(_note(number, data.nbytes, exposure.record), dst, tag)
        copied = self._copied[dst]

        def steps() -> Steps:
            while number not in copied:
                yield from self._hear(dst)
            copied.discard(number)
            yield from iter(sent, True)
            exposure.release()

        return steps()

    def _hear(self, dst: int) -> Steps:
        """Receive an answer of `dst` if one has arrived."""
        message = self._improbe(dst, self._answers)
        if message is None:
            yield False
            return
        number = np.empty(1, np.int64)
        yield from iter(message.Irecv([number, 1, MPI.INT64_T]).Test, True)
        self._copied[dst].add(int(number[0]))

    def _taken(self, came: Matched, data: NDArray[Any], src: int, tag: int, turns: Turns) -> Steps:
        """Receive the matched message: an array, or a note and then its array."""
        if src not in self.near or came.nbytes != NOTE_BYTES:
            yield from super()._taken(came, data, src, tag, turns)
            return
        number, nbytes, record = yield from _read(came.message)
        fits = nbytes == data.nbytes and came.tag == tag
        if number == FOLLOWS:
            into = data if fits else np.empty(nbytes, np.uint8)  # other memory receives a misfit
            # The array is the next message and has this size, so the receive can be posted.
            request = self._comm.Irecv([into, *block(nbytes)], source=src, tag=came.tag)
            turns.popleft()
            yield from iter(request.Test, True)
        else:
            turns.popleft()
            yield from self.copied(src, number, record, data if fits else None)
        check_fit(src, came.tag, tag, nbytes, data.nbytes)

    def copied(self, src: int, number: int, record: Record, data: NDArray[Any] | None) -> Steps:
        """Copy the array that a note offers, if it is wanted, and answer the note."""
        try:
            if data is not None:
                self._copy(src, record, data)
        finally:  # the sender waits for the answer even if the copy failed
            answer = np.array([number])
            sent = self._comm.Isend([answer, 1, MPI.INT64_T], src, self._answers)
            yield from iter(sent.Test, True)

    def _copy(self, src: int, record: Record, into: NDArray[Any]) -> None:
        """Copy the registered array of rank `src` that the record describes."""
        assert self.shared is not None  # if it is None, no rank offers an array
        exposure = self.shared.expose((), 0, 0, plain=True, room=0)
        exposure.take_records({src: record})
        source = exposure.peer_buffer(src, 0, np.dtype(np.uint8))
        if isinstance(source, np.ndarray):
            as_bytes(into)[:] = source
        else:  # the array is not mapped here, and its pages are read through the kernel
            with self._lock:  # one thread at a time may read pages
                source.read(as_bytes(into))


def _note(number: int, nbytes: int, record: Record) -> NDArray[np.uint8]:
    note = np.zeros(NOTE_BYTES, np.uint8)
    numbers = note[:-1].view(np.int64)
    numbers[:2] = number, nbytes
    numbers[2:] = record
    return note


def _read(message: Any) -> Generator[bool, None, tuple[int, int, Record]]:
    """Receive a matched note, as polled steps, and return its integers: number, bytes of the array, and record."""
    note = np.empty(NOTE_BYTES, np.uint8)
    yield from iter(message.Irecv([note, *block(NOTE_BYTES)]).Test, True)
    numbers = note[:-1].view(np.int64)
    return int(numbers[0]), int(numbers[1]), numbers[2:].copy()


_start_all = MPI.Prequest.Startall
_test_all = MPI.Request.Testall


class PersistentMessages:
    """Binds messages of one communicator to their arrays.

    Parameters
    ----------
    comm : MPI communicator
        Moves the messages. No other messages on it have the tags of bound messages.
    near : set of int
        The other ranks of the node. Large messages to them may be copied without MPI, and so are not bound.
    """

    # MPICH 5.0 takes twice the time of NumPy's copies for faces of 256 KiB, and fifty times for single elements.
    strides = MPI.get_vendor()[0] == "Open MPI"

    def __init__(self, comm: Any, near: Set[int]) -> None:
        self._comm = comm
        self._near = near
        self._bound: set[tuple[int, ...]] = set()  # handles of the requests of each exchange
        self._left: deque[tuple[int, ...]] = deque()  # handles of deleted plans

    def pays(self, peer: int, nbytes: int) -> bool:
        """Return whether a message is bound: not if it is a large message within the node (see `NearbyTransport`)."""
        return peer not in self._near or nbytes < DIRECT_BYTES

    def bind(self, receives: Sequence[BoundMessage], sends: Sequence[BoundMessage]) -> BoundSet:
        """Make the requests of an exchange; receives come first, so that they are posted first."""
        self._free_left()
        receive, send = self._comm.Recv_init, self._comm.Send_init
        requests = [receive(_part(data), source=peer, tag=tag) for data, peer, tag in receives]
        requests += [send(_part(data), dest=peer, tag=tag) for data, peer, tag in sends]
        exchange = BoundSet(partial(_start_all, requests), partial(_test_all, requests))
        handles = tuple(request.handle for request in requests)
        self._bound.add(handles)
        # Lists and tuples allow no weak references, so the finalizer is attached to `start`.
        weakref.finalize(exchange.start, self._left.append, handles).atexit = False
        return exchange

    def close(self) -> None:
        """Free all requests. None may be active, so this is not called after a failure."""
        self._left = deque(self._bound)
        self._free_left()

    def _free_left(self) -> None:
        while self._left:
            handles = self._left.popleft()
            self._bound.discard(handles)
            for handle in handles:
                MPI.Prequest.fromhandle(handle).Free()


def _part(data: NDArray[Any]) -> list[Any]:
    if data.flags.c_contiguous:
        return [data, *block(data.nbytes)]
    # The library packs the elements itself, which takes half of the time of NumPy's copies.
    where = MPI.buffer.fromaddress(data.__array_interface__["data"][0], 0)
    return [where, 1, strided(data.shape, data.strides, data.itemsize)]


class MpiArrivals:
    """Looks for messages on a transport.

    Parameters
    ----------
    comm : MPI communicator
        The communicator of the transport.
    transport : CheckedTransport
        The transport of the users' messages.
    """

    def __init__(self, comm: Any, transport: CheckedTransport) -> None:
        self._size = comm.size
        self._iprobe = comm.Iprobe
        self._improbe = comm.Improbe
        self._transport = transport

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Match a message that has arrived, as polled steps, and return it; return None at once without one."""
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
        """Return a wanted message that no receive waits for, or None.

        Each sender's first message is tried, and its first message of each of a few wanted tags.
        """
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
        """Return a matched message of a note's size; if it is a note, the message of the note's array."""
        if src not in transport.near:
            return Arrival(src, tag, NOTE_BYTES, partial(_received, message, NOTE_BYTES))
        number, nbytes, record = yield from _read(message)
        if number != FOLLOWS:
            receive = partial(transport.copied, src, number, record)
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
