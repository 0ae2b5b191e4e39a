"""The dispatch of device arrays through pinned host memory, over the host's dispatch.

A collective on a large array is cut into calls on parts. While the host communicates one part, the next part is
copied to the host, and the previous part back to the device. Messages keep the order in which they were begun,
whichever is ready first (`SendOrder`). The device lane uses it if `hpccomm.communicator.creation` has chosen it, and
`on_device` and `cuda_aware` use it for calls that they do not support.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.lanes.lane import ARRAYS, wire_tag
from hpccomm.calls.on_host import HostDispatch
from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.collectives import NOBODY
from hpccomm.contracts.device import DeviceImplementation, Piece, Pieces, message_name
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch
from hpccomm.memory.cuda.memory import POOL, PinnedBlock, copied
from hpccomm.memory.cuda.streams import follow, make_stream, on_device, passed
from hpccomm.runtime.service import keep
from hpccomm.runtime.waiting import completed
from hpccomm.schedules.algorithms import Asked

Messages = Sequence[tuple[Piece, Any]]
"""Messages, each with its host memory, an ndarray of uint8, for the transport."""


class SendOrder:
    """The order of the messages of one communicator. One thread at a time begins messages.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Numbers of sends that have left and that have begun, by receiver and tag. If all have left, there is no entry.
        self._counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._lock = threading.Lock()

    def exchange(
        self, receives: Messages, sends: Messages, tag: int, begin: Callable[[], Callable[[], bool]]
    ) -> Steps:
        """Begin the receives and reserve the places of the sends now; return the steps that do the rest.

        Parameters
        ----------
        receives, sends : sequence of tuple of Piece and ndarray
            The messages. The memory of sends is not read before it is ready.
        tag : int
            The user's tag.
        begin : callable
            Begins to fill the memory of the sends, and returns a test whether it is ready.
        """
        isend = self._transport.isend
        # The receives only take their turn now. Polling them receives the messages.
        requests = [
            self._transport.irecv(memory, piece.peer, wire_tag(tag, ARRAYS, piece.data.dtype))
            for piece, memory in receives
        ]
        places = [self._take(piece.peer, tag) for piece, _ in sends]

        def steps() -> Steps:
            try:
                ready = begin()
                while not ready():
                    yield False
                for (piece, memory), place in zip(sends, places, strict=True):
                    counts = self._counts[piece.peer, tag]
                    while counts[0] != place:
                        yield False
                    requests.append(
                        isend(memory, piece.peer, wire_tag(tag, ARRAYS, piece.data.dtype))
                    )
                    with self._lock:
                        counts[0] += 1
                        if counts[0] == counts[1]:
                            del self._counts[piece.peer, tag]
                yield from completed(requests)
            except BaseException:  # the call failed, or was abandoned
                keep(requests, receives, sends)
                raise

        return steps()

    def _take(self, dst: int, tag: int) -> int:
        """Return the place of a message that begins now, among the messages to that rank with that tag."""
        with self._lock:
            counts = self._counts[dst, tag]
            counts[1] += 1
        return counts[1] - 1


PART_BYTES = 4 << 20
"""Bytes of a part: so many that starting a copy or a call takes little of its time."""

ROW_BYTES = 32 << 10
"""Least bytes of a rank's block in a part: smaller messages cost more than their data."""


class Rows(NamedTuple):
    """Bytes of an array: `height` rows of `width` bytes, `pitch` apart, the first one at `offset`."""

    offset: int
    width: int
    height: int = 1
    pitch: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.width * self.height


Part = tuple[Signature, Rows | None, Rows | None]
"""A part of a call: the same call on some elements alone, and the places of these elements in this rank's sent and in its
received array; None without an array."""


SLOTS = 3
"""Number of parts that have memory at the same time: one is copied to the host, one is communicated, one is copied
back."""

THROUGH_HOST = "through pinned host memory"


class Stage(NamedTuple):
    """A part of a call on this rank, ready to be carried out.

    A part has two device arrays and two blocks of pinned memory: index 0 is the sent one, 1 the received one.

    Attributes
    ----------
    host : Implementation
        The implementation of the call on the host.
    sent : tuple of int and Rows, or None
        The index of the block that the host's call sends from, and its bytes. The index is 1 if that call is in place.
    received : Rows or None
        The bytes of the block that the host's call receives into.
    fetches : tuple of (int, Rows, int)
        The copies to the host that come first: index of the array, bytes, index of the block.
    returns : Rows or None
        The bytes of the received block that are copied back to the device.
    """

    host: Implementation
    sent: tuple[int, Rows] | None
    received: Rows | None
    fetches: tuple[tuple[int, Rows, int], ...]
    returns: Rows | None


def _at_once() -> bool:
    return True


@dataclass(slots=True, eq=False)
class Slot:
    """The pinned memory of a part under way.

    `fetched` tests whether the part was copied to the host, `returned` whether the previous result was copied back.
    """

    blocks: tuple[PinnedBlock | None, PinnedBlock | None]
    fetched: Callable[[], bool] = _at_once
    returned: Callable[[], bool] = _at_once


class StagedDispatch:
    """The dispatch of device arrays through pinned host memory.

    The host takes part, so that calls cannot be captured in a graph. Results have the same bits as on host arrays
    if the array is one part, or with ``deterministic=True``. Messages of one sender, receiver
    and tag arrive in their order. But a message from a host array may overtake a message from a device array
    that was sent before it asynchronously and is not done.

    Parameters
    ----------
    host : HostDispatch
        The dispatch of host arrays, between the same ranks.
    messages : Transport
        The transport of the user's point-to-point calls, which calls on host arrays use too.
    device : int
        CUDA device of this rank.
    reason : str
        Why device arrays are staged, for `Choice`; empty if each call has its own reason.

    Attributes
    ----------
    order : SendOrder
        The order of the messages.
    part_bytes : int
        Bytes of a part. Equal on all ranks.
    """

    name = "staged"

    def __init__(
        self,
        host: HostDispatch,
        messages: Transport,
        device: int,
        reason: str = "",
    ) -> None:
        self._host = host
        self._messages = messages
        self._device = device
        self.order = SendOrder(messages)
        self._reason = reason
        self.part_bytes = PART_BYTES
        self._streams: tuple[Any, Any] | None = None

    def applicable(self, call: Signature) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        return self._host.applicable(self._parts(call)[0][0])

    def decide(
        self, call: Signature, algorithm: Asked, reason: str = ""
    ) -> tuple[Choice, DeviceImplementation]:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        `reason` is why this call is staged; by default it is the reason for all calls.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """
        what, cut = call.description, self._parts(call)
        # Whether the host's call uses one block for contribution and result.
        single = what.sends == what.receives == "whole" and cut[0][2] is not None
        decide = cache(lambda inner: self._host.decide(inner, algorithm))
        in_place, stages = single and what.in_place != "always", list[Stage]()
        for inner, send, recv in cut:
            _, host = decide(inner._replace(in_place=in_place))
            stages.append(self._stage(call, send, recv, host, single=single))
        chosen, _ = decide(cut[0][0]._replace(in_place=in_place))
        choice = replace(
            chosen,
            path=self.name,
            segment=self.part_bytes if len(stages) > 1 else chosen.segment,
            reason=f"{THROUGH_HOST}, since {reason or self._reason}; {chosen.reason}",
        )
        return choice, DeviceImplementation(start=partial(self._steps, stages, call.dtype))

    def message(
        self, receives: Pieces, sends: Pieces, tag: int, reason: str = ""
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the choice and the implementation of a user's point-to-point call; its addresses are in the pieces.

        A message of another size than its array raises `BufferMismatch`, as on the host.
        """
        name, why = message_name(receives, sends), f"{THROUGH_HOST}, since {reason or self._reason}"
        choice = Choice(name, self.name, "messages", "native", None, False, why)
        return choice, DeviceImplementation(
            start=lambda _send, _recv, stream: self._message(receives, sends, tag, stream)
        )

    def close(self) -> None:
        """Release the streams. Local; idempotent."""
        self._streams = None

    def _parts(self, call: Signature) -> list[Part]:
        """Return the parts of a call, at least one, in their order. All ranks have the same number of parts.

        Blocks of one size are cut across: a part has some elements of each rank's block. Uneven calls
        stay whole, since ranks would have different numbers of parts.
        """
        what, rank, size = call.description, self._messages.rank, self._messages.size
        send, recv = what.uses(rank, call.root)
        itemsize, nbytes = call.dtype.itemsize, self.part_bytes
        whole = call.counts[0] if call.uniform else 0
        blocks = size if what.blockwise else 1
        row = nbytes if blocks == 1 else max(nbytes // blocks, ROW_BYTES)
        step = max(1, row // itemsize)
        if not call.uniform or whole <= step:
            sent, received = (Rows(0, count * itemsize) for count in call.lengths_of(rank))
            return [(call, sent if send else None, received if recv else None)]
        cut = list[Part]()
        for start in range(0, whole, step):
            count = min(step, whole - start)
            one = Rows(start * itemsize, count * itemsize)
            many = one._replace(height=size, pitch=whole * itemsize)
            counts = (count,) * len(call.counts)
            inner = call._replace(counts=counts, recv_counts=counts if call.recv_counts else ())
            sent = many if what.sends == "blocks" else one
            received = many if what.receives == "blocks" else one
            cut.append((inner, sent if send else None, received if recv else None))
        return cut

    def _stage(
        self,
        call: Signature,
        send: Rows | None,
        recv: Rows | None,
        host: Implementation,
        *,
        single: bool,
    ) -> Stage:
        if call.description.in_place == "always":
            assert recv is not None
            if call.root == self._messages.rank:
                return Stage(host, None, recv, ((1, recv, 1),), None)
            return Stage(host, None, recv, (), recv)
        if single:
            assert recv is not None
            return Stage(host, (1, recv), recv, ((0, recv, 1),), recv)
        fetches = [] if send is None else [(0, send, 0)]
        if NOBODY in call.peers and recv is not None:  # the call does not write all of the result
            fetches.append((1, recv, 1))
        return Stage(host, None if send is None else (0, send), recv, tuple(fetches), recv)

    # Collectives.

    def _steps(
        self, stages: Sequence[Stage], dtype: DType, send: int, recv: int, stream: int
    ) -> Steps:
        """Fetch each part, communicate it and return it. Meanwhile the next part is fetched and the last returned."""
        arrays = send, recv
        down, up = (stream, stream) if len(stages) == 1 else self._beside(stream)
        slots = [self._slot(stages[0]) for _ in range(min(SLOTS, len(stages)))]
        try:
            self._fetch(stages[0], slots[0], arrays, down)
            for number, stage in enumerate(stages):
                slot = slots[number % SLOTS]
                if number + 1 < len(stages):
                    following = slots[(number + 1) % SLOTS]
                    while not following.returned():
                        yield False
                    self._fetch(stages[number + 1], following, arrays, down)
                while not slot.fetched():
                    yield False
                block, rows = stage.sent or (0, None)
                given = _array(slot.blocks[block], rows, dtype)
                yield from stage.host.start(given, _array(slot.blocks[1], stage.received, dtype))
                if stage.returns is not None:
                    self._copy(recv, stage.returns, slot.blocks[1], up, to_host=False)
                    slot.returned = passed(up, self._device)
            if up != stream:
                follow(stream, up, self._device)
        except BaseException:  # the call failed, or was abandoned
            keep(slots, stages)
            raise
        for slot in slots:
            for each in slot.blocks:
                if each is not None:
                    POOL.give_back(each, slot.returned)

    def _beside(self, stream: int) -> tuple[int, int]:
        """Return a stream for each direction. Both go on once all work on `stream` so far is done."""
        if self._streams is None:
            self._streams = (
                make_stream(self._device, high_priority=False),
                make_stream(self._device, high_priority=False),
            )
        down, up = (each.ptr for each in self._streams)
        for each in (down, up):
            follow(each, stream, self._device)
        return down, up

    def _slot(self, first: Stage) -> Slot:
        """Return memory for any part, as large as the first part needs, which is the largest."""
        sizes = [0, 0 if first.received is None else first.received.nbytes]
        for _, rows, block in first.fetches:
            sizes[block] = max(sizes[block], rows.nbytes)
        sent, received = (POOL.take(size, self._device) if size else None for size in sizes)
        return Slot((sent, received))

    def _fetch(self, stage: Stage, slot: Slot, arrays: tuple[int, int], stream: int) -> None:
        for array, rows, block in stage.fetches:
            self._copy(arrays[array], rows, slot.blocks[block], stream, to_host=True)
        slot.fetched = passed(stream, self._device) if stage.fetches else _at_once

    def _copy(
        self, array: int, rows: Rows, block: PinnedBlock | None, stream: int, *, to_host: bool
    ) -> None:
        if rows.nbytes:
            assert block is not None
            with on_device(self._device):  # `stream` may be this device's default stream
                copied(array, rows, block.pointer, stream, to_host=to_host)

    # Point to point.

    def _message(self, receives: Pieces, sends: Pieces, tag: int, stream: int) -> Steps:
        """Begin the receives at once, reserve the places of the sends, and return the steps that do the rest."""
        device = self._device
        landings = [(piece, POOL.take(piece.data.nbytes, device)) for piece in receives]
        leaving = [(piece, POOL.take(piece.data.nbytes, device)) for piece in sends]

        def copies(
            messages: list[tuple[Piece, PinnedBlock]], *, to_host: bool
        ) -> Callable[[], bool]:
            for (_, data), block in messages:
                self._copy(data.pointer, Rows(0, data.nbytes), block, stream, to_host=to_host)
            return passed(stream, device)

        begin = partial(copies, leaving, to_host=True)
        exchange = self.order.exchange(_in_memory(landings), _in_memory(leaving), tag, begin)

        def steps() -> Steps:
            try:
                yield from exchange
            except BufferMismatch:  # all messages are complete, and the misfit is lost
                for _, block in (*landings, *leaving):
                    POOL.give_back(block)
                raise
            returned = copies(landings, to_host=False)
            for _, block in (*landings, *leaving):
                POOL.give_back(block, returned)

        return steps()


def _array(block: PinnedBlock | None, rows: Rows | None, dtype: DType) -> NDArray[Any] | None:
    """Return an array for the host's call; None if the call has no such array."""
    if rows is None:
        return None
    return np.empty(0, dtype) if block is None else block.bytes[: rows.nbytes].view(dtype)


def _in_memory(messages: Sequence[tuple[Piece, PinnedBlock]]) -> Messages:
    return [(piece, block.bytes[: piece.data.nbytes]) for piece, block in messages]
