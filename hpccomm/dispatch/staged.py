"""The dispatch of device arrays through pinned host memory, over the host's dispatch.

Large arrays go in parts: while the host communicates one, the next is copied to the host, and the
last one back to the device. The device lane uses it if `hpccomm.communicator.making` chose it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import NOBODY
from hpccomm.contracts.device import DeviceImplementation, Piece, Pieces, message_name
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dispatch.parts import PART_BYTES, CallPart, Rows, parts
from hpccomm.dispatch.send_order import SendOrder
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch
from hpccomm.memory.cuda.pinned import POOL, PinnedBlock, copied
from hpccomm.memory.cuda.streams import (
    drop_event,
    make_event,
    make_stream,
    on_device,
    order,
    ready,
    record,
)
from hpccomm.runtime.lifetime import keep
from hpccomm.schedules.algorithms import Asked

SLOTS = 3
"""Parts that have memory at once: one on its way to the host, one communicated, one on its way back."""

THROUGH_HOST = "through pinned host memory"


class Stage(NamedTuple):
    """A part of a call, ready to go.

    Attributes
    ----------
    host : Implementation
        The host's.
    send, recv : Rows or None
        Of the device arrays; None without an array. Equal if contribution and result share a block:
        the host's call is in place.
    """

    host: Implementation
    send: Rows | None
    recv: Rows | None


class Flow(NamedTuple):
    """How the parts of one call go through the host on this rank.

    Attributes
    ----------
    dtype : dtype
        Of the elements.
    one_array : bool
        Whether the call has one array for both, as a broadcast.
    fetches : bool
        Whether this rank's contribution is copied to the host.
    returns : bool
        Whether a result is copied back.
    single : bool
        Whether contribution and result have one block: the host's call is in place.
    keeps : bool
        Whether some of the result is not written: it is copied to the host first.
    """

    dtype: DType
    one_array: bool
    fetches: bool
    returns: bool
    single: bool
    keeps: bool


@dataclass(slots=True, eq=False)
class Slot:
    """The memory and events of a part under way."""

    send: PinnedBlock | None
    recv: PinnedBlock | None
    fetched: int = field(default_factory=make_event)
    returned: int = field(default_factory=make_event)
    returning: bool = False

    def free(self) -> bool:
        """Tell whether its last result has left for good."""
        if self.returning and ready(self.returned):
            self.returning = False
        return not self.returning


class StagedDispatch:
    """The way of device arrays through pinned host memory.

    The host takes part, so that calls cannot be captured in a graph. Results have the host path's
    bits where the array is one part, or with ``deterministic=True``. Messages of one sender, receiver
    and tag arrive in their order; but one from a host array may overtake one from a device array
    that was sent before it asynchronously and is not done.

    Parameters
    ----------
    host : HostDispatch
        The way of host arrays, between the same ranks.
    messages : Transport
        For the user's point-to-point calls, as those on host arrays.
    device : int
        CUDA device of this rank.
    wire : callable
        ``wire(tag, dtype)`` gives the transport's tag for a user's, as for host arrays.
    reason : str
        Why device arrays go this way, for `Choice`; empty where each call has its own reason.
    part_bytes : int
        Bytes of a part. Equal on all ranks.
    """

    name = "staged"

    def __init__(
        self,
        host: HostDispatch,
        messages: Transport,
        device: int,
        wire: Callable[[int, DType], int],
        reason: str = "",
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._host = host
        self._messages = messages
        self._device = device
        self._wire = wire
        self._reason = reason
        self._part_bytes = part_bytes
        self._streams: tuple[Any, Any] | None = None
        self._order = SendOrder()

    def applicable(self, call: Signature) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        return self._host.applicable(self._parts(call)[0].call)

    def decide(
        self, call: Signature, algorithm: Asked, reason: str = ""
    ) -> tuple[Choice, DeviceImplementation]:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        `reason` is why this call goes this way; without one it is that of all calls.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """
        what, cut = call.description, self._parts(call)
        # Whether the host's call has one block for contribution and result.
        single = what.sends == what.receives == "whole" and cut[0].recv is not None
        decide = cache(lambda inner: self._host.decide(inner, algorithm))
        made = [
            decide(each.call._replace(in_place=single and what.in_place != "always"))
            for each in cut
        ]
        stages = [
            Stage(host, each.recv if single else each.send, each.recv)
            for each, (_, host) in zip(cut, made, strict=True)
        ]
        flow, (chosen, _) = self._flow(call, stages[0], single=single), made[0]
        choice = replace(
            chosen,
            path=self.name,
            segment=self._part_bytes if len(stages) > 1 else chosen.segment,
            reason=f"{THROUGH_HOST}, since {reason or self._reason}; {chosen.reason}",
        )
        return choice, DeviceImplementation(start=partial(self._steps, flow, stages))

    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the way of a user's point-to-point call; its addresses are in the pieces.

        A message of another size than its array raises `BufferMismatch`, as on the host.
        """
        name = message_name(receives, sends)
        reason = f"{THROUGH_HOST}, since {self._reason}"
        choice = Choice(name, self.name, "messages", "native", None, False, reason)
        return choice, DeviceImplementation(
            start=lambda _send, _recv, stream: self._message(receives, sends, tag, stream)
        )

    def close(self) -> None:
        """Release its streams. Local; idempotent."""
        self._streams = None

    def _parts(self, call: Signature) -> tuple[CallPart, ...]:
        transport = self._messages
        return parts(call, transport.rank, transport.size, self._part_bytes)

    def _flow(self, call: Signature, first: Stage, *, single: bool) -> Flow:
        what = call.description
        one_array = what.in_place == "always"
        at_root = call.root == self._messages.rank
        return Flow(
            call.dtype,
            one_array,
            fetches=at_root if one_array else first.send is not None,
            returns=first.recv is not None and not (one_array and at_root),
            single=single,
            keeps=NOBODY in call.peers,
        )

    # Collectives.

    def _steps(
        self, flow: Flow, stages: Sequence[Stage], send: int, recv: int, stream: int
    ) -> Steps:
        """Fetch a part, communicate it, return it; the next and the last one at the same time."""
        if flow.one_array:
            send = recv
        down, up = (stream, stream) if len(stages) == 1 else self._beside(stream)
        slots = self._slots(flow, stages[0], min(SLOTS, len(stages)))
        try:
            self._fetch(flow, stages[0], slots[0], send, recv, down)
            for number, stage in enumerate(stages):
                slot = slots[number % SLOTS]
                if number + 1 < len(stages):
                    following = slots[(number + 1) % SLOTS]
                    while not following.free():
                        yield False
                    self._fetch(flow, stages[number + 1], following, send, recv, down)
                if flow.fetches:
                    while not ready(slot.fetched):
                        yield False
                yield from stage.host.start(*_arrays(flow, stage, slot))
                self._return(flow, stage, slot, recv, up)
            if up != stream:
                with on_device(self._device):
                    order(slots[(len(stages) - 1) % SLOTS].returned, stream)
        except BaseException:  # the call failed, or was abandoned
            keep(slots, stages)
            raise
        for slot in slots:
            self._give_back(slot)

    def _beside(self, stream: int) -> tuple[int, int]:
        """Return streams for both directions, which begin once all on `stream` so far is done."""
        if self._streams is None:
            self._streams = (
                make_stream(self._device, high_priority=False),
                make_stream(self._device, high_priority=False),
            )
        down, up = (each.ptr for each in self._streams)
        begun = self._recorded(stream)
        for each in (down, up):  # streams with numbers of their own, whichever device is current
            order(begun, each)
        drop_event(begun)  # CUDA ends it once it has come
        return down, up

    def _slots(self, flow: Flow, first: Stage, number: int) -> list[Slot]:
        """Return memory for the parts; no part is larger than the first."""
        device = self._device

        def block(rows: Rows | None) -> PinnedBlock | None:
            return None if rows is None else POOL.take(rows.nbytes, device)

        slots = []
        with on_device(device):
            for _ in range(number):
                recv = block(first.recv)
                send = recv if flow.single else block(first.send)
                slots.append(Slot(send, recv))
        return slots

    def _fetch(
        self, flow: Flow, stage: Stage, slot: Slot, send: int, recv: int, stream: int
    ) -> None:
        if not flow.fetches:
            return
        assert stage.send is not None
        assert slot.send is not None
        with on_device(self._device):
            if stage.send.nbytes:
                copied(send, stage.send, slot.send.pointer, stream, to_host=True)
            if flow.keeps and stage.recv is not None and slot.recv is not None:
                copied(recv, stage.recv, slot.recv.pointer, stream, to_host=True)
            record(slot.fetched, stream)

    def _return(self, flow: Flow, stage: Stage, slot: Slot, recv: int, stream: int) -> None:
        with on_device(self._device):
            if flow.returns:
                assert stage.recv is not None
                assert slot.recv is not None
                if stage.recv.nbytes:
                    copied(recv, stage.recv, slot.recv.pointer, stream, to_host=False)
            record(slot.returned, stream)
        slot.returning = True

    def _give_back(self, slot: Slot) -> None:
        drop_event(slot.fetched)
        if slot.send is not None and slot.send is not slot.recv:
            POOL.give_back(slot.send)
        if slot.recv is not None:
            POOL.give_back(slot.recv, slot.returned)
        else:
            drop_event(slot.returned)

    # Point to point.

    def _message(self, receives: Pieces, sends: Pieces, tag: int, stream: int) -> Steps:
        """Begin the receives at once, and the sends in their turn: order is kept from here on."""
        device = self._device
        landings = [(piece, POOL.take(piece.data.nbytes, device)) for piece in receives]
        leaving = [(piece, POOL.take(piece.data.nbytes, device)) for piece in sends]
        requests: list[Request] = [
            self._messages.irecv(_bytes(block, piece), piece.peer, self._wire_of(piece, tag))
            for piece, block in landings
        ]
        outgoing = [
            (
                piece.peer,
                _bytes(block, piece),
                self._wire_of(piece, tag),
                self._order.take(piece.peer, tag),
            )
            for piece, block in leaving
        ]

        def steps() -> Steps:
            try:
                for event in [self._copied(*each, stream, to_host=True) for each in leaving]:
                    while not ready(event):
                        yield False
                    drop_event(event)
                yield from self._order.sent(self._messages, outgoing, tag, requests)
            except BufferMismatch:  # all are complete, and the mismatched one is lost
                for _, block in (*landings, *leaving):
                    POOL.give_back(block)
                raise
            except BaseException:  # the call failed, or was abandoned
                keep(landings, leaving, requests)
                raise
            for _, block in leaving:
                POOL.give_back(block)
            for piece, block in landings:
                event = self._copied(piece, block, stream, to_host=False)
                POOL.give_back(block, event)

        return steps()

    def _wire_of(self, piece: Piece, tag: int) -> int:
        return self._wire(tag, piece.data.dtype)

    def _copied(self, piece: Piece, block: PinnedBlock, stream: int, *, to_host: bool) -> int:
        """Put a message's copy on a stream, and return an event that comes once it is done."""
        with on_device(self._device):
            if piece.data.nbytes:
                rows = Rows(0, piece.data.nbytes)
                copied(piece.data.pointer, rows, block.pointer, stream, to_host=to_host)
            return self._recorded(stream)

    def _recorded(self, stream: int) -> int:
        """Return a new event that comes once all that is on the stream so far is done."""
        # The default stream is that of the device that is current.
        with on_device(self._device):
            event = make_event()
            record(event, stream)
        return event


Host = NDArray[Any] | None


def _arrays(flow: Flow, stage: Stage, slot: Slot) -> tuple[Host, Host]:
    """Return the host call's arrays to send and to receive into."""
    recv = _array(slot.recv, stage.recv, flow.dtype)
    if flow.one_array:
        return None, recv
    return recv if flow.single else _array(slot.send, stage.send, flow.dtype), recv


def _array(block: PinnedBlock | None, rows: Rows | None, dtype: DType) -> Host:
    if block is None or rows is None:
        return None
    return block.bytes[: rows.nbytes].view(dtype)


def _bytes(block: PinnedBlock, piece: Piece) -> NDArray[np.uint8]:
    return block.bytes[: piece.data.nbytes]
