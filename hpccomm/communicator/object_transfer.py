"""Python objects between ranks, by pickle.

An object travels as a frame: the pickle, and apart from it (pickle protocol 5) the memory of large
arrays in the object, which is sent and received in place without being copied into the pickle. A
rank that cannot pickle its object sends a frame that says so, so that nobody waits for it in vain.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import CONTROL_TAG, Control
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.runtime.waiting import completed

Bytes = NDArray[np.uint8]

ALIGNMENT = 64
"""Arrays that are received in one block begin at multiples of this."""

_BYTE = np.dtype(np.uint8)


@dataclass(slots=True)
class Frame:
    """One object on its way.

    Attributes
    ----------
    inline : bytes
        A flag (pickled, or failed), the sizes of the buffers, and the pickle or the reason.
    buffers : list of ndarray of uint8
        Memory that travels beside the pickle.
    """

    inline: bytes = b""
    buffers: list[Bytes] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return len(self.inline) + sum(buffer.nbytes for buffer in self.buffers)

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the buffers in bytes."""
        (number,) = struct.unpack_from("<q", self.inline, 1)
        return struct.unpack_from(f"<{number}q", self.inline, 9)

    def load(self, rank: int) -> Any:
        """Return the object that `rank` sent.

        Raises
        ------
        CommunicationError
            If that rank could not pickle it.
        UsageError
            If it cannot be unpickled here.
        """
        body = self.inline[9 + 8 * len(self.sizes()) :]
        if self.inline[:1] == b"!":
            raise CommunicationError(f"rank {rank} could not pickle its object: {body.decode()}")
        try:
            return pickle.loads(body, buffers=self.buffers)
        except Exception as error:  # unpickling runs the object's own code
            raise UsageError(
                f"the object of rank {rank} cannot be unpickled here ({error!r}); "
                "its class must be importable on every rank"
            ) from error


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
    return Frame(_inline(b"+", raws, body), raws)


def failed(error: UsageError) -> Frame:
    """Return the frame that says that there is no object."""
    return Frame(_inline(b"!", [], str(error).encode()))


def _inline(flag: bytes, buffers: Sequence[Bytes], body: bytes) -> bytes:
    sizes = [buffer.nbytes for buffer in buffers]
    return flag + struct.pack(f"<{len(sizes) + 1}q", len(sizes), *sizes) + body


class ObjectTransfer:
    """The ways of objects between the ranks of one communicator, polled.

    Parameters
    ----------
    control : Control
        Carries the pickles of collective calls.
    dispatch : HostDispatch
        Carries their buffers.
    collectives : Transport
        As the backend's.
    """

    def __init__(self, control: Control, dispatch: HostDispatch, collectives: Transport) -> None:
        self._control = control
        self._dispatch = dispatch
        self._collectives = collectives

    def broadcast(self, frame: Frame, root: int) -> Steps:
        """Make every rank's `frame` the root's."""
        inline = yield from self._control.bcast_steps(frame.inline, root)
        if self._collectives.rank != root:
            frame.inline = inline
            frame.buffers = [np.empty(size, np.uint8) for size in frame.sizes()]
        for buffer in frame.buffers:
            call = Signature("broadcast", _BYTE, (buffer.size,), root=root)
            yield from self._dispatch.decide(call, AUTO, False).start(None, buffer)

    def all_gather(self, frame: Frame, frames: list[Frame]) -> Steps:
        """Fill `frames` with every rank's frame."""
        inlines = yield from self._control.all_gather_steps(frame.inline)
        frames.extend(Frame(inline) for inline in inlines)
        counts = tuple(sum(map(_padded, each.sizes())) for each in frames)
        mine = np.empty(counts[self._collectives.rank], np.uint8)
        everything = np.empty(sum(counts), np.uint8)
        for buffer, place in zip(frame.buffers, _cut(mine, frame.sizes()), strict=True):
            place[:] = buffer
        call = Signature("all_gather", _BYTE, counts, uniform=False)
        if sum(counts):
            yield from self._dispatch.decide(call, AUTO, False).start(mine, everything)
        for each, start, count in zip(frames, (0, *accumulate(counts)), counts, strict=False):
            each.buffers = _cut(everything[start : start + count], each.sizes())

    def gather(self, frame: Frame, frames: list[Frame], root: int) -> Steps:
        """Fill `frames` at the root."""
        inlines = yield from self._control.gather_steps(frame.inline, root)
        if inlines is None:
            yield from _send_buffers(self._collectives, frame, root, CONTROL_TAG)
            return
        for rank, inline in enumerate(inlines):
            each = Frame(inline)
            if rank == root:
                each.buffers = [buffer.copy() for buffer in frame.buffers]
            else:
                yield from _receive_buffers(self._collectives, each, rank, CONTROL_TAG)
            frames.append(each)

    def scatter(self, frames: Sequence[Frame], frame: Frame, root: int) -> Steps:
        """Make every rank's `frame` its own of the root's `frames`."""
        rank = self._collectives.rank
        if rank != root:
            yield from receive(self._collectives, frame, root, CONTROL_TAG)
            return
        for peer, each in enumerate(frames):
            if peer != rank:
                yield from send(self._collectives, each, peer, CONTROL_TAG)
        frame.inline = frames[rank].inline
        frame.buffers = [buffer.copy() for buffer in frames[rank].buffers]


def send(transport: Transport, frame: Frame, dst: int, tag: int) -> Steps:
    """Send a frame to one rank."""
    inline = np.frombuffer(frame.inline, np.uint8)
    header = np.array([inline.size], np.int64)
    yield from completed([transport.isend(header, dst, tag), transport.isend(inline, dst, tag)])
    yield from _send_buffers(transport, frame, dst, tag)


def receive(transport: Transport, frame: Frame, src: int, tag: int) -> Steps:
    """Receive a frame from one rank."""
    header = np.empty(1, np.int64)
    yield from completed([transport.irecv(header, src, tag)])
    inline = np.empty(int(header[0]), np.uint8)
    yield from completed([transport.irecv(inline, src, tag)])
    frame.inline = inline.tobytes()
    yield from _receive_buffers(transport, frame, src, tag)


def _send_buffers(transport: Transport, frame: Frame, dst: int, tag: int) -> Steps:
    return completed([transport.isend(buffer, dst, tag) for buffer in frame.buffers])


def _receive_buffers(transport: Transport, frame: Frame, src: int, tag: int) -> Steps:
    frame.buffers = [np.empty(size, np.uint8) for size in frame.sizes()]
    return completed([transport.irecv(buffer, src, tag) for buffer in frame.buffers])


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _cut(block: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    """Return the places of buffers of `sizes` bytes in a block, each at an aligned offset."""
    starts = accumulate((_padded(size) for size in sizes), initial=0)
    return [block[start : start + size] for start, size in zip(starts, sizes, strict=False)]
