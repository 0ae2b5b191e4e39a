"""Calls on Python objects: the frame in which a pickled object is sent, and the calls.

A frame is the pickle and, separately (pickle protocol 5), the memory of large arrays in the object, which is sent and
received in place, without a copy into the pickle. A small frame without such arrays is one packet. A rank that cannot
pickle its object sends a frame with the reason, so that no rank waits in vain.

Used by `communicator`, `arrivals` and `messages`.
"""

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import CONTROL_TAG, begin_bytes, whole
from hpccomm.calls.core import Core
from hpccomm.calls.lanes.lane import OBJECTS, REST, behind, in_order, wire_tag
from hpccomm.calls.policy import AUTO
from hpccomm.contracts.signature import CallFingerprint, Signature, compared, of_message
from hpccomm.contracts.transport import (
    DTYPES,
    PACKET_BYTES,
    Anything,
    Packet,
    Request,
    Steps,
    Transport,
)
from hpccomm.errors import CommunicationError, HpccommError, UsageError, untied
from hpccomm.runtime.callpath import PreparedCall, all_in_turn, in_turn
from hpccomm.runtime.recorder import in_words
from hpccomm.runtime.waiting import completed
from hpccomm.runtime.work import Later
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank

Bytes = NDArray[np.uint8]

ALIGNMENT = 64
"""In a block that holds several arrays, each begins at a multiple of this number of bytes."""

_BYTE = np.dtype(np.uint8)

PICKLED = pickle.STOP
"""Flag of a frame without buffers; it is the last byte of every pickle."""
PICKLED_BESIDE = b"="
"""Flag of a frame with buffers."""
UNPICKLABLE = b"!"
"""Flag of a frame that holds the reason for which there is no object."""


@dataclass(slots=True)
class Frame:
    """One object as it is sent.

    Attributes
    ----------
    inline : bytes
        The pickle, or the reason for which it is missing. The last byte is a flag: `PICKLED`, which ends every
        pickle, `PICKLED_BESIDE` or `UNPICKLABLE`. With `PICKLED_BESIDE`, the sizes of the buffers and their
        number stand before the flag, each in 8 bytes.
    buffers : sequence of ndarray of uint8
        Memory that is sent beside the pickle.
    """

    inline: bytes = b""
    buffers: Sequence[Bytes] = ()

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        nbytes = len(self.inline)
        return nbytes + sum([each.nbytes for each in self.buffers]) if self.buffers else nbytes

    def load(self, rank: int) -> Any:
        """Return the object that `rank` sent.

        Raises
        ------
        CommunicationError
            If that rank could not pickle it, or the code that should give it has raised.
        UsageError
            If it cannot be unpickled here.
        """
        inline, buffers = self.inline, self.buffers
        if not buffers and inline[-1:] != PICKLED:
            words = inline[:-1].decode()
            raise CommunicationError(f"rank {rank} could not give its object: {words}")
        try:
            # `loads` stops at the pickle's end, before the sizes.
            return pickle.loads(inline, buffers=buffers) if buffers else pickle.loads(inline)
        except Exception as error:  # unpickling runs the object's own code
            raise UsageError(
                f"the object of rank {rank} cannot be unpickled here ({error!r}); {_cure(error)}"
            ) from error


def _cure(error: Exception) -> str:
    """Return the remedy for an error of unpickling."""
    where = error.__traceback__ and error.__traceback__.tb_next
    # If the unpickler did not find a name, the traceback ends there. An object's own code raises further in.
    if isinstance(error, ImportError) or (isinstance(error, AttributeError) and where is None):
        return "its class must be importable on every rank, under the name that it has on that rank"
    return (
        "the code of its own class failed, which makes it anew: give the class a __reduce__ that returns what its "
        "constructor takes, as one needs that is an exception with arguments of its own"
    )


def dump(value: object) -> Frame:
    """Return the frame of an object.

    Raises
    ------
    UsageError
        If it cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        if not buffers:
            return Frame(body)
        raws = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    except Exception as error:  # pickling runs the object's own code
        raise UsageError(
            f"an object of type {type(value).__qualname__} cannot be pickled: {error!r}"
        ) from error
    sizes = [raw.nbytes for raw in raws]
    trailer = struct.pack(f"<{len(sizes) + 1}q", *sizes, len(sizes))
    return Frame(body + trailer + PICKLED_BESIDE, raws)


def failed(error: BaseException) -> Frame:
    """Return the frame for a missing object, with the reason."""
    words = str(error) if isinstance(error, HpccommError) else in_words(error)
    return Frame(words.encode(errors="backslashreplace") + UNPICKLABLE)


Frames = dict[int, Frame]
"""The frames that this rank receives, by the rank that sent each. Polled steps add to it."""


def broadcast(core: Core, root: int, frame: Frame, into: Frames) -> Steps:
    """Send the root's frame to every other rank."""
    inline = yield from core.control.bcast_steps(frame.inline, root)
    at_root = core.backend.rank == root
    if not at_root:
        into[root] = frame = _with_room(inline)
    for buffer in frame.buffers:
        call = Signature("broadcast", _BYTE, (buffer.size,), root=root)
        yield from core.lanes.host.dispatch.decide(call, AUTO)[1].start(None, buffer)


def all_gather(core: Core, frame: Frame, into: Frames) -> Steps:
    """Send every rank's frame to every rank."""
    inlines = yield from core.control.all_gather_steps(frame.inline)
    sizes = [_buffer_sizes(inline) for inline in inlines]
    if not any(sizes):
        into.update(enumerate(map(Frame, inlines)))
        return
    counts = tuple(sum(map(_padded, each)) for each in sizes)
    rank = core.backend.rank
    mine, everything = np.empty(counts[rank], np.uint8), np.empty(sum(counts), np.uint8)
    for buffer, place in zip(frame.buffers, _cut(mine, sizes[rank]), strict=True):
        place[:] = buffer
    if sum(counts):
        call = Signature("all_gather", _BYTE, counts, uniform=False)
        yield from core.lanes.host.dispatch.decide(call, AUTO)[1].start(mine, everything)
    starts = accumulate(counts, initial=0)
    cuts = [_cut(everything[start:], each) for start, each in zip(starts, sizes, strict=False)]
    into.update(enumerate(map(Frame, inlines, cuts)))


def gather(core: Core, root: int, frame: Frame, into: Frames) -> Steps:
    """Send every rank's frame to the root."""
    transport = core.backend.collectives
    inlines = yield from core.control.gather_steps(frame.inline, root)
    if inlines is None:
        if frame.buffers:
            yield from completed(
                [transport.isend(each, root, CONTROL_TAG) for each in frame.buffers]
            )
        return
    for rank, inline in enumerate(inlines):
        if rank == root:
            into[rank] = _copied(frame)
        else:
            into[rank] = came = _with_room(inline)
            if came.buffers:
                yield from _receive_buffers(transport, came, rank, CONTROL_TAG)


def scatter(core: Core, root: int, frames: Sequence[Frame], into: Frames) -> Steps:
    """Send each rank its frame of the root's list."""
    transport = core.backend.collectives
    if transport.rank != root:
        yield from receive(
            transport, transport.irecv_packet(root, CONTROL_TAG), root, CONTROL_TAG, into
        )
        return
    sent = list[Request]()
    for peer, each in enumerate(frames):
        if peer == root:
            into[root] = _copied(each)
        else:
            sent += begin_to_send(transport, each, peer, CONTROL_TAG, CONTROL_TAG)
    yield from completed(sent)


def begin_to_send(
    transport: Transport, frame: Frame, dst: int, tag: int, rest: int
) -> list[Request]:
    """Begin to send a frame to one rank. Whatever its packet does not hold is sent with the tag `rest`."""
    begun = begin_bytes(transport, frame.inline, dst, tag, rest)
    return begun + [transport.isend(each, dst, rest) for each in frame.buffers]


def send(transport: Transport, dst: int, tag: int, rest: int, frame: Frame) -> Steps:
    """Send a frame to one rank."""
    inline = frame.inline
    if frame.buffers or len(inline) >= PACKET_BYTES:
        return completed(begin_to_send(transport, frame, dst, tag, rest))
    return iter(transport.isend_packet(inline, dst, tag), True)


def receive(transport: Transport, packet: Packet, src: int, rest: int, into: Frames) -> Steps:
    """Receive a frame from rank `src`. `packet` is the receive of its packet, which has begun."""
    while (inline := packet()) is None:
        yield False
    if len(inline) < PACKET_BYTES and inline[-1:] == PICKLED:
        into[src] = Frame(inline)
    else:
        yield from after_packet(transport, inline, src, rest, into)


def after_packet(transport: Transport, inline: bytes, src: int, rest: int, into: Frames) -> Steps:
    """Receive the rest of a frame whose packet, `inline`, has arrived."""
    if len(inline) == PACKET_BYTES:
        inline = yield from whole(transport, inline, src, rest)
    into[src] = frame = _with_room(inline)
    if frame.buffers:
        yield from _receive_buffers(transport, frame, src, rest)


def _receive_buffers(transport: Transport, frame: Frame, src: int, tag: int) -> Steps:
    return completed([transport.irecv(buffer, src, tag) for buffer in frame.buffers])


def _buffer_sizes(inline: bytes) -> tuple[int, ...]:
    """Return the sizes in bytes of the buffers that travel beside `inline`."""
    if inline[-1:] != PICKLED_BESIDE:
        return ()
    end = len(inline) - 9
    (number,) = struct.unpack_from("<q", inline, end)
    return struct.unpack_from(f"<{number}q", inline, end - 8 * number)


def _with_room(inline: bytes) -> Frame:
    """Return the frame of `inline`, with memory for its buffers, which have not been received yet."""
    if inline[-1:] != PICKLED_BESIDE:
        return Frame(inline)
    return Frame(inline, [np.empty(size, np.uint8) for size in _buffer_sizes(inline)])


def _copied(frame: Frame) -> Frame:
    """Return a frame that shares no memory with this rank's object."""
    buffers = frame.buffers
    return Frame(frame.inline, [each.copy() for each in buffers]) if buffers else frame


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _cut(block: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Return the places of buffers of `sizes` bytes in a block, each at an aligned offset."""
    starts = accumulate(map(_padded, sizes), initial=0)
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=False)]


# The calls. Each holds the communicator's turn. Calls like an earlier one, which was checked and compared over the
# ranks, are looked up by their arguments.

Rank = int | Anything
Tag = int | Anything

Given = Frame | Sequence[Frame]
"""This rank's contribution to a call: a frame, or one for each rank."""

Key = tuple[Any, ...]

_NOTHING = Frame()


@all_in_turn
def exchange_pickled(
    core: Core, name: str, value: Any, brings: bool, root: int, timeout: float | None
) -> list[Any]:
    """Carry out a collective call on objects, and return the objects that arrive.

    With `brings`, this rank contributes `value`; to `scatter_object` the root contributes one object for each rank. If
    this rank's object is refused, the error is raised after the call, in which all ranks hear of it.
    """
    given: Given = _NOTHING
    nbytes, error = 0, None
    if brings and name == "scatter_object":
        given, error = _dumped_each(value, core.backend.size)
    elif brings:
        given, error = _dumped(value)
        nbytes = given.nbytes
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    arrived: Frames = {}
    # The arguments that are equal on all ranks. `root` stands with its class, since True is equal to 1.
    key = name, nbytes, root, root.__class__
    _carrier(core, key)((given, arrived), given, limit)
    if error is not None:
        raise untied(error)
    return [loaded(core, name, each, rank) for rank, each in arrived.items()] if arrived else []


@in_turn
def send_pickled(
    core: Core, value: Any, dst: int, tag: int, async_op: bool, timeout: float | None
) -> Any:
    """Carry out `send_object`, or begin it."""
    frame, error = _dumped(value)
    if error is not None and dst == core.backend.rank:
        raise untied(error)  # no other rank waits for it
    key = "send_object", frame.nbytes, dst, dst.__class__, tag, tag.__class__, async_op
    return _message_run(core, key, frame, timeout, error)


@in_turn
def receive_pickled(core: Core, src: Rank, tag: Tag, async_op: bool, timeout: float | None) -> Any:
    """Carry out `recv_object` of a given rank and tag, or begin it."""
    key = "recv_object", 0, src, src.__class__, tag, tag.__class__, async_op
    return _message_run(core, key, _NOTHING, timeout, None)


def _message_run(
    core: Core, key: Key, given: Frame, timeout: float | None, error: BaseException | None
) -> Any:
    """Run a message and return its object or None. If the key's last entry is true, begin it and return its `Work`."""
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    arrived: Frames = {}

    carry = _carrier(core, key)
    if key[-1]:
        later = Later(lambda: _result(core, key, arrived, error))
        return carry((given, arrived), given, limit, later)
    carry((given, arrived), given, limit)
    return _result(core, key, arrived, error)


def _result(core: Core, key: Key, arrived: Frames, error: BaseException | None) -> Any:
    if error is not None:
        raise untied(error)
    return loaded(core, key[0], arrived[key[2]], key[2]) if arrived else None


def _carrier(core: Core, key: Key) -> Any:
    """Return the function that carries out, or begins, the calls of a key. The arguments of a new key are checked."""
    carrier = known(core, key)
    if carrier is not None and not core.sink.diverted:
        return carrier
    of_message = len(key) > 4
    prepared = _message(core, *key[:-1]) if of_message else _collective(core, *key)
    begins = of_message and check_bool("async_op", key[-1])
    core.sink.refuse_batch(key[0], ", which takes arrays only")
    carrier = prepared.begin if begins else prepared.issue
    core.known.keep(key, carrier)
    return carrier


def _collective(core: Core, name: str, nbytes: int, root: Any, _kind: Any) -> PreparedCall:
    """Return the prepared call of a collective.

    Its start takes this rank's contribution, and the mapping to which arriving frames are added.
    """
    start: Any = partial(_COLLECTIVES[name], core)
    if name != "all_gather_object":
        rank = check_rank("root", root, core.backend.size)
        label, start = _compared(name, root=rank), partial(start, rank)
    else:
        label = _compared(name)
    return PreparedCall(core.calls, label._replace(nbytes=nbytes), start)


_COLLECTIVES: dict[str, Callable[..., Steps]] = {
    "broadcast_object": broadcast,
    "all_gather_object": all_gather,
    "gather_object": gather,
    "scatter_object": scatter,
}


@lru_cache
def _compared(name: str, **values: object) -> CallFingerprint:
    return compared(name, {"operation": name, **values})


def _message(
    core: Core, name: str, nbytes: int, rank: Any, _kind: Any, tag: Any, _tag_kind: Any
) -> PreparedCall:
    """Return the prepared call of one end of a message, whose start takes the same as that of `_collective`."""
    sends = name == "send_object"
    peer = check_rank("dst" if sends else "src", rank, core.backend.size)
    number, transport = core.tag(tag), core.backend.messages
    wire = wire_tag(number, OBJECTS)
    channel, lane = wire // DTYPES, core.lanes.host
    cell = core.calls.traffic.cell(peer, channel)

    def start(given: Any, arrived: Any) -> Steps:
        cell[not sends] += 1
        if sends:
            return send(transport, peer, wire, wire + REST, given)
        receives = lane.open_receives
        return behind(receives, peer, wire, lambda: begun(arrived)) if receives else begun(arrived)

    def begun(arrived: Any) -> Steps:
        packet = transport.irecv_packet(peer, wire)
        steps = receive(transport, packet, peer, wire + REST, arrived)
        return in_order(lane.rests, peer, wire, steps)

    pair = (peer, None) if sends else (None, peer)
    return lane.message_of(of_message(name, nbytes, pair, number, channel), start)


def loaded(core: Core, name: str, frame: Frame, rank: int) -> Any:
    """Return the object that `rank` has sent in a call. If there is none, the error tells the facts of the call."""
    try:
        return frame.load(rank)
    except CommunicationError:
        with core.calls.part_of(name, frame.nbytes, ordered=False):
            raise


def known(core: Core, key: object) -> Any:
    """Return the prepared call of a key, or None. An argument that cannot be hashed gives None; it is refused later."""
    try:
        return core.known.get(key)
    except TypeError:
        return None


def _dumped(value: Any) -> tuple[Frame, BaseException | None]:
    try:
        return dump(value), None
    except BaseException as error:  # noqa: BLE001 (other ranks must hear of it; then it is raised)
        return failed(error), error


def _dumped_each(values: Any, size: int) -> tuple[list[Frame], BaseException | None]:
    try:
        objects = _listed(values, size)
    except BaseException as wrong:  # noqa: BLE001 (a generator may raise anything; likewise)
        return [failed(wrong)] * size, wrong
    frames, errors = list[Frame](), list[BaseException]()
    for value in objects:
        frame, error = _dumped(value)
        frames.append(frame)
        if error is not None and not errors:
            errors.append(error)
        del error
    # The error refers to this stack frame, so that the frame must not refer to the error.
    return frames, errors.pop() if errors else None


def _listed(values: Any, size: int) -> list[Any]:
    """Return `values` as a list of `size` objects.

    Raises
    ------
    UsageError
        If `values` is not a sequence, or has another length.
    """
    try:
        each = iter(values)
    except TypeError:
        raise UsageError(f"values is {values!r}; give a sequence of {size} objects") from None
    objects = list(each)
    if len(objects) != size:
        raise UsageError(f"values has {len(objects)} objects; give {size}, one for each rank")
    return objects
