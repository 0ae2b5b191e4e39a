"""Probes, and receives of messages whose sender, tag or size is not given.

Used by `Communicator.probe` and `recv_object`, and by `messages` for `recv`.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.core import Core
from hpccomm.calls.lanes.lane import ARRAYS, OBJECTS, REST, ahead_of, in_order, wire_tag
from hpccomm.communicator.objects import Frame, Frames, Rank, Tag, after_packet, known, loaded
from hpccomm.contracts.signature import CallFingerprint, of_message, with_peers
from hpccomm.contracts.transport import (
    ANY,
    DTYPES,
    Arrival,
    Steps,
    Wanted,
    dtype_code,
    dtype_of,
    mismatch,
    other_dtype,
)
from hpccomm.errors import BufferMismatch, UsageError, untied
from hpccomm.memory.views import check_dtype
from hpccomm.runtime.callpath import PreparedCall, in_turn
from hpccomm.runtime.traffic import ANY_TAG
from hpccomm.runtime.work import Later
from hpccomm.settings import check_bool
from hpccomm.spelling import Hinting
from hpccomm.topology import check_rank

AROUND = "; call it before or after"
"""The advice to a caller whose call cannot be part of a batch."""


class Message(Hinting):
    """A message that has arrived, and that no other call can receive. Made by `Communicator.probe`.

    Receive it by `recv` or `recv_object`. Until then a large message keeps its sender waiting.

    Attributes
    ----------
    src : int
        The rank that sent it.
    tag : int
        Its tag.
    nbytes : int
        Its size in bytes; for an object, the size of its pickle and buffers.
    dtype : dtype or None
        The array's dtype. None for an object, and if the message does not tell the dtype, such as a structured one.
    is_object : bool
        Whether it is an object, sent by `Communicator.send_object`.
    """

    _mpi4py = "Status."

    def __init__(self, core: Core, arrival: Arrival, frame: Frame | None) -> None:
        self.src = arrival.src
        self.tag = arrival.tag // DTYPES // 2
        self.is_object = frame is not None
        self.nbytes = arrival.nbytes if frame is None else frame.nbytes
        self.dtype = dtype_of(arrival.tag)
        self._core = core
        self._arrival = arrival
        self._frame = frame
        self._received = False

    def recv(self, out: Any = None, *, timeout: float | None = None) -> Any:
        """Receive the array. Blocks until it has arrived.

        Parameters
        ----------
        out : array, optional
            A host array of exactly this size and dtype. None makes a new 1-D array: of the
            message's dtype, or of bytes (uint8) if the message does not tell its dtype.
        timeout : float, optional
            Deadline in seconds. None is the communicator's deadline, ``math.inf`` sets none.

        Returns
        -------
        array
            `out`, or the new array.

        Raises
        ------
        UsageError
            If the message was received before, or is an object; `BufferMismatch` if `out` has another size or
            dtype. Then the message can still be received.
        CommunicationError
            If the call fails or its deadline passes.
        """
        return _taken(self._core, self, out, timeout)

    def recv_object(self) -> Any:
        """Return the object. Local, since the whole object has arrived.

        Raises
        ------
        UsageError
            If the message was received before, or is an array, or cannot be unpickled here.
        """
        return _loaded(self._core, self)

    def _check(self, *, objects: bool) -> None:
        if self._received:
            raise UsageError(f"{self!r} was received before; probe for the next one")
        if objects != self.is_object:
            what = "an object; use recv_object" if self.is_object else "an array; use recv"
            raise UsageError(f"{self!r} is {what}")

    def __repr__(self) -> str:
        dtype = self.dtype or "a dtype that it does not tell"
        kind = "object" if self.is_object else f"array of {dtype}"
        return (
            f"<hpccomm.Message: {kind}, {self.nbytes} bytes from rank {self.src}, tag {self.tag}>"
        )


class Received(NamedTuple):
    """An array that was received, with its sender and tag. Returned by `Communicator.recv`.

    Attributes
    ----------
    array : array
        `out`, or the new array.
    src : int
        The rank that sent it.
    tag : int
        Its tag.
    """

    array: Any
    src: int
    tag: int


# The calls. Each holds the communicator's turn. Calls like an earlier one are looked up by their arguments, which stand
# with their classes, since True is equal to 1.


@in_turn
def probed(core: Core, src: Rank, tag: Tag, block: bool, timeout: float | None) -> Message | None:
    """Take the next message; see `Communicator.probe`."""
    core.sink.refuse_batch("probe", AROUND)
    if block is not True:
        check_bool("block", block)
    messages = list[Message]()
    prepared = _taking(core, "probe", None, src, tag, block)
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    prepared.issue((messages, None), (), limit)
    return messages[0] if messages else None


@in_turn
def _taken(core: Core, message: Message, out: Any, timeout: float | None) -> Any:
    core.sink.refuse_batch("recv", AROUND)
    message._check(objects=False)  # noqa: SLF001 (of this module)
    arrival, target = message._arrival, _target(core, out)  # noqa: SLF001
    if target is not None and (error := _misfit(arrival, target)) is not None:
        raise untied(error)
    limit = core.limit(timeout)
    data = _new(arrival) if target is None else target
    message._received = True  # noqa: SLF001
    key = "recv of a probe", arrival.src, arrival.nbytes
    prepared = core.known.get(key)
    if prepared is None:
        label = with_peers("recv", arrival.nbytes, (arrival.src,))
        prepared = PreparedCall(core.calls, label, _begun, ordered=False)
        core.known.keep(key, prepared)
    prepared.issue((arrival.receive(data), None), (data, out), limit)
    return data if out is None else out


def _begun(steps: Any, _: Any) -> Steps:
    return steps  # type: ignore[no-any-return]  # the receive has begun


@in_turn
def _loaded(core: Core, message: Message) -> Any:
    core.sink.refuse_batch("recv_object", AROUND)
    message._check(objects=True)  # noqa: SLF001 (of this module)
    assert message._frame is not None  # noqa: SLF001
    message._received = True  # noqa: SLF001
    return message._frame.load(message.src)  # noqa: SLF001


def received(
    core: Core,
    out: Any,
    src: Rank,
    tag: Tag,
    async_op: bool,
    timeout: float | None,
    return_src: bool,
) -> Any:
    """Receive an array from any rank, of any tag or of any size; see `Communicator.recv`. The caller holds the turn."""
    check_bool("async_op", async_op)
    if core.sink.diverted:
        what = "recv from any sender, of any tag or of any size"
        core.sink.refuse_capture(what, "give out, src and tag")
        core.sink.refuse_batch("recv", AROUND)
    key: tuple[Any, ...] | None = None
    prepared, target = None, out
    if out is None or (out.__class__ is np.ndarray and out.flags.carray):
        key = "from any", src, src.__class__, tag, tag.__class__
        if out is not None:
            key = (*key, out.dtype, out.nbytes)
        prepared = known(core, key)
    if prepared is None:
        target = _target(core, out)
        prepared = core.lanes.host.message_of(*_receiving(core, target, src, tag))
        if key is not None:
            core.known.keep(key, prepared)
    elif out is not None and out.ndim != 1:
        target = out.reshape(-1)
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    came: list[Any] = [out, None, None]

    def result() -> Any:
        array, sender, wire = came
        return Received(array, sender, wire // DTYPES // 2) if return_src else array

    if async_op:
        return prepared.begin((came, target), (out,), limit, Later(result))
    prepared.issue((came, target), (out,), limit)
    return result() if return_src else came[0]


@in_turn
def received_object(core: Core, src: Rank, tag: Tag, async_op: bool, timeout: float | None) -> Any:
    """Receive an object from any rank, or of any tag; see `Communicator.recv_object`."""
    core.sink.refuse_batch("recv_object", AROUND)
    messages = list[Message]()
    prepared = _taking(core, "recv_object", OBJECTS, src, tag, True)

    def result() -> Any:
        frame = messages[0]._frame  # noqa: SLF001 (of this module)
        assert frame is not None
        return loaded(core, "recv_object", frame, messages[0].src)

    if check_bool("async_op", async_op):
        return prepared.begin((messages, None), (), core.limit(timeout), Later(result))
    prepared.issue((messages, None), (), core.limit(timeout))
    return result()


def _receiving(
    core: Core, target: Any, src: Rank, tag: Tag
) -> tuple[CallFingerprint, Callable[[Any, Any], Steps]]:
    """Return the fingerprint of a receive, and the function of its steps.

    The steps put the array, if it is new, the sender and the tag into a list of three.
    """
    wanted = _wanted(core, src, tag, ARRAYS)
    if target is not None and wanted.tags:
        wanted = wanted._replace(exact=wanted.tags[dtype_code(target.dtype)])

    def steps(came: list[Any], target: Any) -> Steps:
        arrival = yield from _next(core, wanted, True)
        assert arrival is not None
        if target is None:
            came[0] = target = _new(arrival)
        elif (error := _misfit(arrival, target)) is not None:
            yield from arrival.receive(None)
            raise untied(error)
        yield from arrival.receive(target)
        came[1:] = arrival.src, arrival.tag

    return _label("recv", 0 if target is None else target.nbytes, wanted), steps


def _taking(
    core: Core, name: str, kind: int | None, src: Rank, tag: Tag, block: bool
) -> PreparedCall:
    """Return the prepared call that takes a message, of an object the whole object, and adds it to a list."""
    key = name, src, src.__class__, tag, tag.__class__, block
    prepared: PreparedCall | None = known(core, key)
    if prepared is not None:
        return prepared
    wanted = _wanted(core, src, tag, kind)

    def steps(messages: Any, _: Any) -> Steps:
        arrival = yield from _next(core, wanted, block)
        if arrival is None:
            return
        sender, wire, frames = arrival.src, arrival.tag, dict[int, Frame]()
        if wire // DTYPES % 2 == OBJECTS:
            yield from in_order(core.lanes.host.rests, sender, wire, whole(arrival, frames))
        messages.append(Message(core, arrival, frames.get(sender)))

    def whole(arrival: Arrival, frames: Frames) -> Steps:
        packet = np.empty(arrival.nbytes, np.uint8)
        yield from arrival.receive(packet)
        last = arrival.src, arrival.tag + REST, frames
        yield from after_packet(core.backend.messages, packet.tobytes(), *last)

    prepared = core.lanes.host.message_of(_label(name, 0, wanted), steps)
    core.known.keep(key, prepared)
    return prepared


def _next(core: Core, wanted: Wanted, block: bool) -> Generator[bool, None, Arrival | None]:
    """Take the next wanted message that belongs to no earlier receive. None if there is none, unless it may block."""
    take, receives = core.backend.arrivals.take, core.lanes.host.open_receives  # type: ignore[attr-defined]
    ahead = ahead_of(wanted, receives) if receives else []
    arrival: Arrival | None = None if ahead else (yield from take(wanted))
    if arrival is None:
        if not block:
            return None
        place = object()
        receives[place] = wanted
        try:
            while arrival is None:
                yield False
                if not ahead or receives.keys().isdisjoint(ahead):
                    arrival = yield from take(wanted)
        finally:
            del receives[place]
    core.calls.traffic.cell(arrival.src, arrival.tag // DTYPES)[1] += 1
    return arrival


def _label(name: str, nbytes: int, wanted: Wanted) -> CallFingerprint:
    """Return the fingerprint of a receive, with the senders that it waits for. Its message is counted on arrival."""
    channels = sorted({tag // DTYPES for tag in wanted.tags})
    if wanted.src is not None and len(channels) == 1:
        return of_message(name, nbytes, (None, wanted.src), channels[0] // 2, channels[0], ahead=1)
    if not channels:
        channels = [ANY_TAG[each] for each in (ARRAYS, OBJECTS) if wanted.fits(wire_tag(0, each))]
    ends = tuple([("src", wanted.src, each) for each in channels])
    return with_peers(name, nbytes, () if wanted.src is None else (wanted.src,), ends, ahead=1)


def _wanted(core: Core, src: Rank, tag: Tag, kind: int | None) -> Wanted:
    """Return the description of the wanted messages: arrays or objects by `kind`, or both with None."""
    if getattr(core.backend, "arrivals", None) is None:
        raise UsageError(
            f"backend {core.backend.name!r} cannot look for messages; give recv the sender, the tag and an "
            "array of the message's size, or use a communicator of backend 'mpi' or 'loopback'"
        )
    origin = None if src is ANY else check_rank("src", src, core.backend.size)
    kinds = (ARRAYS, OBJECTS) if kind is None else (kind,)
    largest = core.backend.messages.largest_tag
    if tag is ANY:

        def fits(wire: int) -> bool:
            channel, code = divmod(wire, DTYPES)
            kind = channel % 2
            return kind in kinds and channel <= largest and (kind == ARRAYS or code == 0)

        return Wanted(origin, fits, ())
    number = core.tag(tag)
    tags = [
        wire_tag(number, each) + code
        for each in kinds
        for code in range(1 if each == OBJECTS else DTYPES)  # objects have no dtype
    ]
    return Wanted(origin, frozenset(tags).__contains__, tags)


def _target(core: Core, out: Any) -> Any:
    """Return the user's array, checked, in the form that calls take; None without one."""
    if out is None:
        return None
    target = core.lanes.views(None, out)[2]
    if not isinstance(target, np.ndarray):
        raise UsageError(
            "out is a device array, and only host arrays are received from any sender, of any tag or of "
            "any size; give src and tag, or receive into a host array"
        )
    check_dtype("out", target.dtype)
    return core.lanes.host.checked_array(target, "out", True)


def _misfit(arrival: Arrival, target: Any) -> BufferMismatch | None:
    """Return the error of a message that does not fit an array; None if it fits."""
    code = dtype_code(target.dtype)
    if arrival.tag % DTYPES != code:
        return other_dtype(arrival.src, arrival.tag, code)
    if arrival.nbytes != target.nbytes:
        return mismatch(arrival.src, arrival.nbytes, target.nbytes)
    return None


def _new(arrival: Arrival) -> NDArray[Any]:
    """Return a new 1-D array for a message."""
    memory = np.empty(arrival.nbytes, np.uint8)
    dtype = dtype_of(arrival.tag)
    return memory if dtype is None else memory.view(dtype)
