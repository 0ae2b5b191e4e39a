"""Python objects between ranks, by pickle.

An object travels as a frame: the pickle and, separately (pickle protocol 5), the memory of large
arrays in the object, which is sent and received in place without a copy into the pickle. A small
frame without such arrays is one packet. A rank
that cannot pickle its object sends a frame with the reason, so that no rank waits for it in vain.
The error of a failed fold travels as a frame, too. `objects` and receives from any sender use it.
"""

import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import CONTROL_TAG, begin_bytes, binomial, whole
from hpccomm.communicator.core import Core
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import PACKET_BYTES, Packet, Request, Steps, Transport
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import CommunicationError, HpccommError, UsageError
from hpccomm.reductions import named
from hpccomm.runtime.recorder import in_words
from hpccomm.runtime.waiting import completed
from hpccomm.units import ranks_named

Bytes = NDArray[np.uint8]

ALIGNMENT = 64
"""Arrays that are received in one block begin at multiples of this."""

_BYTE = np.dtype(np.uint8)

PICKLED = pickle.STOP
PICKLED_BESIDE = b"="
UNPICKLABLE = b"!"
NOT_FOLDED = b"?"
NOT_FOLDED_FOR_A_PEER = b"-"


@dataclass(slots=True)
class Frame:
    """One object on its way.

    Attributes
    ----------
    inline : bytes
        The pickle, or why it is missing, and a flag. That is the end of each pickle,
        `PICKLED`, or what failed. With `PICKLED_BESIDE`, the sizes of the buffers and their number are
        before the flag.
    buffers : sequence of ndarray of uint8
        Memory that travels beside the pickle.
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
            If that rank could not pickle it, or what was to give it has raised.
        UsageError
            If it cannot be unpickled here, or if it is a fold that failed.
        """
        inline, buffers = self.inline, self.buffers
        if not buffers and inline[-1:] != PICKLED:
            raise self._failure(rank)
        try:
            # Which stops at the pickle's end.
            return pickle.loads(inline, buffers=buffers) if buffers else pickle.loads(inline)
        except Exception as error:  # unpickling runs the object's own code
            raise UsageError(
                f"the object of rank {rank} cannot be unpickled here ({error!r}); {_cure(error)}"
            ) from error

    def _failure(self, rank: int) -> HpccommError:
        words, flag = self.inline[:-1].decode(), self.inline[-1:]
        if flag == UNPICKLABLE:
            return CommunicationError(f"rank {rank} could not give its object: {words}")
        return UsageError(words) if flag == NOT_FOLDED else CommunicationError(words)


def _cure(error: Exception) -> str:
    """Return the remedy for an error of unpickling."""
    where = error.__traceback__ and error.__traceback__.tb_next
    # The unpickler itself looks names up. What an object's own code lacks was raised further in.
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


def failed(error: BaseException, flag: bytes = UNPICKLABLE) -> Frame:
    """Return the frame for a missing object, with the reason."""
    words = str(error) if isinstance(error, HpccommError) else in_words(error)
    return Frame(words.encode(errors="backslashreplace") + flag)


Frames = dict[int, Frame]
"""What polled steps add the frames to that this rank receives, by the rank that sent each."""


def broadcast(core: Core, root: int, frame: Frame, into: Frames) -> Steps:
    """Send the root's frame to every other rank."""
    inline = yield from core.control.bcast_steps(frame.inline, root)
    at_root = core.backend.rank == root
    if not at_root:
        into[root] = frame = _with_room(inline)
    for buffer in frame.buffers:
        call = Signature("broadcast", _BYTE, (buffer.size,), root=root)
        yield from core.lanes.host.dispatch.decide(call, AUTO, False).start(None, buffer)


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
        yield from core.lanes.host.dispatch.decide(call, AUTO, False).start(mine, everything)
    starts = accumulate(counts, initial=0)
    cuts = [_cut(everything[start:], each) for start, each in zip(starts, sizes, strict=False)]
    into.update(enumerate(map(Frame, inlines, cuts)))


class Fold:
    """Folds the objects of all ranks in rank order.

    Parameters
    ----------
    op : callable
        ``op(a, b)``, of two objects.
    frame : Frame
        This rank's object.

    Attributes
    ----------
    error : Exception or None
        What a fold failed for.
    """

    def __init__(self, op: Callable[[Any, Any], Any], frame: Frame) -> None:
        self.op = op
        self.frame = frame
        self.error: BaseException | None = None

    def __call__(self, frames: Mapping[int, Frame], end: int) -> Frame:
        """Return the frame of the fold, or of its error.

        All ranks before `end` have given to the frames. The key of a frame is its first rank.
        """
        try:
            objects = [frame.load(rank) for rank, frame in frames.items()]
            return dump(self._folded(objects, [*frames, end]))
        except CommunicationError as error:
            return failed(error, NOT_FOLDED_FOR_A_PEER)
        except UsageError as error:
            self.error = error.__cause__
            return failed(error, NOT_FOLDED)

    def _folded(self, objects: list[Any], starts: list[int]) -> Any:
        total = objects[0]
        for part, each in enumerate(objects[1:], 1):
            kinds = f"{type(total).__qualname__} and {type(each).__qualname__}"
            before, after = range(starts[0], starts[part]), range(starts[part], starts[part + 1])
            try:
                total = self.op(total, each)
            except BaseException as error:  # any exception of the user's function
                raise UsageError(
                    f"op {named(self.op)} failed on what comes of {ranks_named(before)} and of "
                    f"{ranks_named(after)}, of types {kinds}: {error!r}; give a function that takes the "
                    "objects of any two ranks"
                ) from error
        return total


def all_reduce(core: Core, fold: Fold, into: Frames) -> Steps:
    """Fold all ranks' frames in a binomial tree, in the order of ranks, and send the result to every rank.

    Each fold is made by one rank, so that all ranks get the same, also of a function that gives another
    result each time.
    """
    transport = core.backend.collectives
    rank, size = transport.rank, transport.size
    parent, children = binomial(rank, size, 0)
    frame = fold.frame
    parts = {rank: frame}
    for child in children:
        yield from receive(
            transport, transport.irecv_packet(child, CONTROL_TAG), child, CONTROL_TAG, parts
        )
    if children:
        frame = fold(parts, min(size, 2 * children[-1] - rank))
    if parent is not None:
        yield from send(transport, parent, CONTROL_TAG, CONTROL_TAG, frame)
    yield from broadcast(core, 0, frame, into)
    if not into:
        into[0] = _copied(frame)


def all_to_all(core: Core, frames: Sequence[Frame], into: Frames) -> Steps:
    """Send each rank's frame for each rank to that rank, in one block: the pickle, then the buffers."""
    size = core.backend.size
    blocks = [(np.frombuffer(frame.inline, np.uint8), *frame.buffers) for frame in frames]
    counts = tuple(sum(_padded(part.size) for part in block) for block in blocks)
    inlines = np.array([len(frame.inline) for frame in frames], np.int64)
    theirs = np.empty((2, size), np.int64)
    mine = np.stack([inlines, np.array(counts, np.int64)])
    for sent, come in zip(mine, theirs, strict=True):
        call = Signature("all_to_all", sent.dtype, (1,) * size, (1,) * size)
        yield from core.lanes.host.dispatch.decide(call, AUTO, False).start(sent, come)
    outgoing = np.empty(sum(counts), np.uint8)
    places = _cut(outgoing, [part.size for block in blocks for part in block])
    for part, place in zip([part for block in blocks for part in block], places, strict=True):
        place[:] = part
    comes = tuple(theirs[1].tolist())
    incoming = np.empty(sum(comes), np.uint8)
    call = Signature("all_to_all", _BYTE, counts, comes, uniform=False)
    yield from core.lanes.host.dispatch.decide(call, AUTO, False).start(outgoing, incoming)
    starts = accumulate(comes, initial=0)
    for rank, (start, length) in enumerate(zip(starts, theirs[0], strict=False)):
        into[rank] = _unpacked(incoming[start:], int(length))


def _unpacked(block: Bytes, length: int) -> Frame:
    """Return the frame that begins a block, and whose pickle has `length` bytes."""
    inline = block[:length].tobytes()
    return Frame(inline, _cut(block[_padded(length) :], _buffer_sizes(inline)))


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
    """Send each rank its own of the root's frames."""
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
    """Begin to send a frame to one rank; what is not in its packet has the tag `rest`."""
    begun = begin_bytes(transport, frame.inline, dst, tag, rest)
    return begun + [transport.isend(each, dst, rest) for each in frame.buffers]


def send(transport: Transport, dst: int, tag: int, rest: int, frame: Frame) -> Steps:
    """Send a frame to one rank."""
    inline = frame.inline
    if frame.buffers or len(inline) >= PACKET_BYTES:
        return completed(begin_to_send(transport, frame, dst, tag, rest))
    return iter(transport.isend_packet(inline, dst, tag), True)


def receive(transport: Transport, packet: Packet, src: int, rest: int, into: Frames) -> Steps:
    """Receive a frame from one rank, whose packet is under way."""
    while (inline := packet()) is None:
        yield False
    if len(inline) < PACKET_BYTES and inline[-1:] == PICKLED:
        into[src] = Frame(inline)
    else:
        yield from after_packet(transport, inline, src, rest, into)


def after_packet(transport: Transport, inline: bytes, src: int, rest: int, into: Frames) -> Steps:
    """Receive the rest of a frame, once its packet is there."""
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
    """Return the frame of `inline`, with memory for its buffers, which are still to come."""
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
