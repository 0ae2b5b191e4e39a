"""Python objects between ranks, by pickle.

An object travels as a frame: the pickle and, separately (pickle protocol 5), the memory of large
arrays in the object, which is sent and received in place without a copy into the pickle. A rank
that cannot pickle its object sends a frame with the reason, so that no rank waits for it in vain.
The error of a failed fold travels as a frame, too. `objects` and receives from any sender use it.
"""

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import CONTROL_TAG, Result
from hpccomm.communicator.core import Core
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import CommunicationError, HpccommError, UsageError
from hpccomm.reductions import named
from hpccomm.runtime.recorder import in_words
from hpccomm.runtime.waiting import completed

Bytes = NDArray[np.uint8]

ALIGNMENT = 64
"""Arrays that are received in one block begin at multiples of this."""

_BYTE = np.dtype(np.uint8)

PICKLED = b"+"
UNPICKLABLE = b"!"
NOT_FOLDED = b"?"
NOT_FOLDED_FOR_A_PEER = b"-"


@dataclass(frozen=True, slots=True)
class Frame:
    """One object on its way.

    Attributes
    ----------
    inline : bytes
        A flag (`PICKLED`, or what failed), the sizes of the buffers, and the pickle or the reason.
    buffers : sequence of ndarray of uint8
        Memory that travels beside the pickle.
    """

    inline: bytes = b""
    buffers: Sequence[Bytes] = ()

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return len(self.inline) + sum(buffer.nbytes for buffer in self.buffers)

    def load(self, rank: int) -> Any:
        """Return the object that `rank` sent.

        Raises
        ------
        CommunicationError
            If that rank could not pickle it, or what was to give it has raised.
        UsageError
            If it cannot be unpickled here, or if it is a fold that failed.
        """
        flag, body = self.inline[:1], self.inline[9 + 8 * len(_buffer_sizes(self.inline)) :]
        if flag == UNPICKLABLE:
            raise CommunicationError(f"rank {rank} could not give its object: {body.decode()}")
        if flag == NOT_FOLDED_FOR_A_PEER:
            raise CommunicationError(body.decode())
        if flag == NOT_FOLDED:
            raise UsageError(body.decode())
        try:
            return pickle.loads(body, buffers=self.buffers)
        except Exception as error:  # unpickling runs the object's own code
            raise UsageError(
                f"the object of rank {rank} cannot be unpickled here ({error!r}); {_cure(error)}"
            ) from error


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
        raws = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    except Exception as error:  # pickling runs the object's own code
        raise UsageError(
            f"an object of type {type(value).__qualname__} cannot be pickled: {error!r}"
        ) from error
    return Frame(_inline(PICKLED, raws, body), raws)


def failed(error: BaseException, flag: bytes = UNPICKLABLE) -> Frame:
    """Return the frame for a missing object, with the reason."""
    words = str(error) if isinstance(error, HpccommError) else in_words(error)
    return Frame(_inline(flag, [], words.encode(errors="backslashreplace")))


def _inline(flag: bytes, buffers: Sequence[Bytes], body: bytes) -> bytes:
    sizes = [buffer.nbytes for buffer in buffers]
    return flag + struct.pack(f"<{len(sizes) + 1}q", len(sizes), *sizes) + body


Arriving = Result[dict[int, Frame]]
"""Polled steps that return the frames that this rank receives, by the rank that sent each."""


def broadcast(core: Core, frame: Frame, root: int) -> Arriving:
    """Send the root's frame to every other rank."""
    inline = yield from core.control.bcast_steps(frame.inline, root)
    at_root = core.backend.rank == root
    if not at_root:
        frame = _with_room(inline)
    for buffer in frame.buffers:
        call = Signature("broadcast", _BYTE, (buffer.size,), root=root)
        yield from core.lanes.host.dispatch.decide(call, AUTO, False).start(None, buffer)
    return {} if at_root else {root: frame}


def all_gather(core: Core, frame: Frame) -> Arriving:
    """Send every rank's frame to every rank."""
    inlines = yield from core.control.all_gather_steps(frame.inline)
    sizes = [_buffer_sizes(inline) for inline in inlines]
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
    return dict(enumerate(map(Frame, inlines, cuts)))


class Fold:
    """Folds the objects of all ranks in rank order.

    Parameters
    ----------
    op : callable
        ``op(a, b)``, of two objects.

    Attributes
    ----------
    error : Exception or None
        What a fold failed for.
    """

    def __init__(self, op: Callable[[Any, Any], Any]) -> None:
        self.op = op
        self.error: BaseException | None = None

    def __call__(self, frames: dict[int, Frame]) -> Frame:
        """Return the frame of the fold, or of its error."""
        try:
            return dump(self._folded([frame.load(rank) for rank, frame in frames.items()]))
        except CommunicationError as error:
            return failed(error, NOT_FOLDED_FOR_A_PEER)
        except UsageError as error:
            self.error = error.__cause__
            return failed(error, NOT_FOLDED)

    def _folded(self, objects: list[Any]) -> Any:
        total = objects[0]
        for rank, each in enumerate(objects[1:], 1):
            kinds = f"{type(total).__qualname__} and {type(each).__qualname__}"
            try:
                total = self.op(total, each)
            except BaseException as error:  # any exception of the user's function
                raise UsageError(
                    f"op {named(self.op)} failed on the fold of ranks 0 to {rank - 1} and the object of "
                    f"rank {rank}, of types {kinds}: {error!r}; give a function that takes the objects "
                    "of any two ranks"
                ) from error
        return total


def all_reduce(core: Core, frame: Frame, fold: Fold) -> Arriving:
    """Fold all ranks' frames on rank 0, and send the result to every rank.

    On one rank, so that all ranks get the same, also of a function that gives another result each time.
    """
    gathered = yield from gather(core, frame, 0)
    result = fold(gathered) if gathered else Frame()
    arrived = yield from broadcast(core, result, 0)
    return arrived or {0: _copied(result)}


def all_to_all(core: Core, frames: Sequence[Frame]) -> Arriving:
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
    return {
        rank: _unpacked(incoming[start:], int(length))
        for rank, (start, length) in enumerate(zip(starts, theirs[0], strict=False))
    }


def _unpacked(block: Bytes, length: int) -> Frame:
    """Return the frame that begins a block, and whose pickle has `length` bytes."""
    inline = block[:length].tobytes()
    return Frame(inline, _cut(block[_padded(length) :], _buffer_sizes(inline)))


def gather(core: Core, frame: Frame, root: int) -> Arriving:
    """Send every rank's frame to the root."""
    transport, arrived = core.backend.collectives, dict[int, Frame]()
    inlines = yield from core.control.gather_steps(frame.inline, root)
    if inlines is None:
        yield from _send_buffers(transport, frame, root, CONTROL_TAG)
        return {}
    for rank, inline in enumerate(inlines):
        if rank == root:
            arrived[rank] = _copied(frame)
        else:
            arrived[rank] = _with_room(inline)
            yield from _receive_buffers(transport, arrived[rank], rank, CONTROL_TAG)
    return arrived


def scatter(core: Core, frames: Sequence[Frame], root: int) -> Arriving:
    """Send each rank its own of the root's frames."""
    transport = core.backend.collectives
    if transport.rank != root:
        return (yield from receive(transport, root, CONTROL_TAG))
    for peer, each in enumerate(frames):
        if peer != root:
            yield from send(transport, each, peer, CONTROL_TAG)
    return {root: _copied(frames[root])}


def send(transport: Transport, frame: Frame, dst: int, tag: int) -> Arriving:
    """Send a frame to one rank."""
    inline = np.frombuffer(frame.inline, np.uint8)
    header = np.array([inline.size], np.int64)
    yield from completed([transport.isend(header, dst, tag), transport.isend(inline, dst, tag)])
    yield from _send_buffers(transport, frame, dst, tag)
    return {}


def receive(transport: Transport, src: int, tag: int) -> Arriving:
    """Receive a frame from one rank."""
    header = np.empty(1, np.int64)
    yield from completed([transport.irecv(header, src, tag)])
    return (yield from receive_after(transport, header, src, tag))


def receive_after(transport: Transport, header: NDArray[np.int64], src: int, tag: int) -> Arriving:
    """Receive the rest of a frame from one rank, once its header is there."""
    inline = np.empty(int(header[0]), np.uint8)
    yield from completed([transport.irecv(inline, src, tag)])
    frame = _with_room(inline.tobytes())
    yield from _receive_buffers(transport, frame, src, tag)
    return {src: frame}


def _send_buffers(transport: Transport, frame: Frame, dst: int, tag: int) -> Steps:
    return completed([transport.isend(buffer, dst, tag) for buffer in frame.buffers])


def _receive_buffers(transport: Transport, frame: Frame, src: int, tag: int) -> Steps:
    return completed([transport.irecv(buffer, src, tag) for buffer in frame.buffers])


def _buffer_sizes(inline: bytes) -> tuple[int, ...]:
    """Return the sizes in bytes of the buffers that travel beside `inline`."""
    (number,) = struct.unpack_from("<q", inline, 1)
    return struct.unpack_from(f"<{number}q", inline, 9)


def _with_room(inline: bytes) -> Frame:
    """Return the frame of `inline`, with memory for its buffers, which are still to come."""
    return Frame(inline, [np.empty(size, np.uint8) for size in _buffer_sizes(inline)])


def _copied(frame: Frame) -> Frame:
    """Return a frame that shares no memory with this rank's object."""
    return Frame(frame.inline, [buffer.copy() for buffer in frame.buffers])


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _cut(block: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Return the places of buffers of `sizes` bytes in a block, each at an aligned offset."""
    starts = accumulate(map(_padded, sizes), initial=0)
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=False)]
