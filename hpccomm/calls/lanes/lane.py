"""The common part of both lanes: calls, and their preparation.

The module also has the messages between two ranks: their arguments, their tags and the order of receives. The lanes,
`hpccomm.calls.core` and `hpccomm.communicator` use it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.calls.arguments import CallKind
from hpccomm.calls.lanes.check import Check
from hpccomm.calls.on_host import HostDispatch
from hpccomm.contracts.backend import Buffer, Start
from hpccomm.contracts.device import DeviceDispatch
from hpccomm.contracts.signature import CallFingerprint, Choice, Signature, of_kind, of_sizes
from hpccomm.contracts.transport import DTYPES, Request, Steps, Transport, Wanted, dtype_code
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View, view
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.progress import Operation, as_one
from hpccomm.runtime.traffic import Traffic
from hpccomm.runtime.waiting import no_steps
from hpccomm.runtime.work import Work

# Arrays and objects share the transport; one bit of the tag distinguishes them.
ARRAYS, OBJECTS = 0, 1

REST = 1
"""Takes the place of the dtype's code in the tags of the messages that follow an object's packet. So no receive takes
them for the packet of another object."""

BLOCKS = -1
"""The tag of blocks for neighbors in a plan. The ranks compare these blocks by their lists, and not by tags."""


HALO = "halo"
"""Name of the exchange of a halo."""

Pairs = Sequence[tuple[Any, Any]]
"""Pairs of arrays that are copied: target, source."""


class HaloPart(NamedTuple):
    """A part of the messages of a halo, which begins when the previous part is complete.

    Attributes
    ----------
    messages : int
        Number of messages.
    before, after : sequence of (array, array)
        The copies before the part begins, and after it is complete.
    """

    messages: int
    before: Pairs
    after: Pairs


Parts = Sequence[HaloPart] | None


def wire_tag(tag: int, kind: int, dtype: DType | None = None) -> int:
    """Return the transport's tag for the user's `tag`, the kind of message, and the dtype, if there is one."""
    return (2 * tag + kind) * DTYPES + (0 if dtype is None else dtype_code(dtype))


class MessageRequest(NamedTuple):
    """The checked arguments of a point-to-point call.

    Attributes
    ----------
    name : str
        Name of the call.
    source, target : View or None
        The sent array, and the one to receive into, as views.
    to, origin : int or None
        The receiver and the sender; None for an end without a message.
    tag : int
        The user's tag.
    replaced : bool
        Whether the received message replaces the sent one.
    result : object
        The call's result.
    keep : tuple
        The user's arrays.
    queue : tuple of int and object, or None
        As in `Call`.
    synchronous : bool
        Whether the send is complete only once its receive has begun.
    """

    name: str
    source: View | None = None
    to: int | None = None
    target: View | None = None
    origin: int | None = None
    tag: int = 0
    replaced: bool = False
    result: Any = None
    keep: tuple[Any, ...] = ()
    queue: Queue | None = None
    synchronous: bool = False


def beginning(
    traffic: Traffic,
    transport: Transport,
    receives: dict[object, Any],
    ends: tuple[Any, Any],
    wires: tuple[int, int],
    replaced: bool,
    isend: Any,
) -> Start:
    """Return the function that begins a message to a rank, from a rank, or both, on arrays in host memory.

    Parameters
    ----------
    traffic : Traffic
        Counts the messages.
    transport : Transport
        Moves the messages.
    receives : dict
        The open receives; see `OpenReceives`.
    ends : tuple of int or None
        The receiver and the sender; None for an end without a message.
    wires : tuple of int
        The transport's tags of the sent and of the received message.
    replaced : bool
        Whether the received message replaces the sent one.
    isend : callable
        The transport's function that sends.
    """
    (to, origin), (outward, inward) = ends, wires
    out: Any = None if to is None else traffic.cell(to, outward // DTYPES)
    into: Any = None if origin is None else traffic.cell(origin, inward // DTYPES)
    begin: Any = None if origin is None else transport.receiving(origin, inward)

    def send(data: Any, _: Buffer) -> Steps:
        out[0] += 1  # before the library's call, which may take long: a peer may ask meanwhile
        return iter(isend(data, to, outward), True)

    def receive(_: Buffer, data: Any, beside: Request | None = None) -> Steps:
        into[1] += 1
        if receives:
            return behind(receives, origin, inward, lambda: begin(data, beside))
        steps: Steps = begin(data, beside)
        return steps

    def both(data: Any, arriving: Any) -> Steps:
        out[0] += 1
        return receive(data, arriving, isend(data.copy() if replaced else data, to, outward))

    if to is None:
        return no_steps if origin is None else receive
    return send if origin is None else both


# The order of receives while a receive of any sender, any tag or any size has no message yet: later receives that
# could take its message wait behind it.

Rests = dict[tuple[int, int], list[Steps]]
"""The receives of objects whose packets are awaited or have arrived, in their order, by sender and tag."""

OpenReceives = dict[object, Wanted]
"""The open receives, in the order in which they were begun. Each stays until no later receive can take its message."""

_SAMPLES = 0, DTYPES  # an array's and an object's tag


def ahead_of(wanted: Wanted, receives: OpenReceives) -> list[object]:
    """Return the open receives to which a message that is wanted now may belong."""
    return [one for one, other in list(receives.items()) if other.meets(wanted, _SAMPLES)]


def behind(receives: OpenReceives, src: int, tag: int, begin: Callable[[], Steps]) -> Steps:
    """Begin a receive from a known sender with a known tag, behind the open receives that may take its message."""
    channel = tag // DTYPES
    wanted = Wanted(src, lambda wire: wire // DTYPES == channel, (tag,))
    ahead, place = ahead_of(wanted, receives), object()
    if not ahead:
        return begin()
    receives[place] = wanted

    def steps() -> Steps:
        try:
            while not receives.keys().isdisjoint(ahead):
                yield False
            begun = begin()
        finally:
            del receives[place]
        yield from begun

    return steps()


def in_order(rests: Rests, src: int, tag: int, steps: Steps) -> Steps:
    """Receive an object after the earlier objects of its sender and tag, since all their messages have the same tag."""
    queue = rests.setdefault((src, tag), [])
    queue.append(steps)
    try:
        while queue[0] is not steps:
            yield False
        yield from steps
    finally:
        queue.remove(steps)


logger = logging.getLogger("hpccomm")

SELF_CHECK = Signature("all_reduce", np.dtype(np.float64), (4,), op=ReduceOp.SUM, in_place=True)
"""The call of the self-check, which runs on each path of a new communicator."""


@dataclass(slots=True)
class Call:
    """A call that is ready to be carried out: checked, decided, with its memory.

    Attributes
    ----------
    prepared : PreparedCall
        The decision how it is carried out.
    send, recv : View or None
        The arrays, flat on the host, unchanged on a device. None without an array.
    result : object
        The call's result: an array, None, or a pair of that and the counts.
    keep : tuple
        Objects that must live until the call is done. The first is an array.
    queue : tuple of int and object, or None
        For device arrays, the stream that the user gave, on which the arrays are ready and the result will be. None
        for the current stream of the arrays' framework at the time of the issue.
    tags : tuple of int or None
        For a planned message on host arrays, the transport's tags of the sent and the received message.
    packing : Packing or None
        The copies before and after the call.
    """

    prepared: PreparedCall
    send: View | None
    recv: View | None
    result: Any
    keep: tuple[Any, ...]
    queue: Queue | None = None
    tags: tuple[int | None, int | None] = (None, None)
    packing: Any = None

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """Receiver of the sent message, and sender of the received one; None for a collective."""
        values = self.prepared.label.values
        to: Any = values.get("dst")
        origin: Any = values.get("src")
        return to, origin


class Lane(ABC):
    """Carries out the calls of one communicator on arrays in one kind of memory.

    Attributes
    ----------
    name : str
        Name of the path of the data, as in ``comm.backends``.
    memory : str
        The kind of memory, for messages.
    dispatch : HostDispatch or DeviceDispatch
        Decides how calls are carried out.
    """

    name: str
    memory: str
    dispatch: HostDispatch | DeviceDispatch

    def __init__(self, calls: CallEngine, check: Check) -> None:
        self._calls = calls
        self._check = check
        self._logged_ordinary = False

    # The parts of a call.

    def prepared(self, kind: CallKind, call: Signature, shape: tuple[int, ...]) -> PreparedCall:
        """Decide how a call is carried out. Local; the same on all ranks.

        Raises
        ------
        UsageError
            If the algorithm does not apply, or the reduction takes arrays in host memory only.
        """
        choice, found = self.decide(kind, call)
        label = self._label(kind, call, choice, shape)
        return self._prepared(label, choice, found, kind=kind, call=call, shape=shape)

    @abstractmethod
    def decide(self, kind: CallKind, call: Signature) -> tuple[Choice, Any]:
        """Return the choice of the algorithm of a call, and its implementation. Local; the same on all ranks."""

    @abstractmethod
    def _prepared(
        self, label: CallFingerprint, choice: Choice, found: Any, **more: Any
    ) -> PreparedCall:
        """Return the prepared call of an implementation."""

    def _label(
        self,
        kind: CallKind,
        call: Signature,
        choice: Choice,
        shape: tuple[int, ...],
        async_op: bool = False,
    ) -> CallFingerprint:
        """Return the identity of a call. The asynchronous form of a call has another identity."""
        which = choice.algorithm, call.registered, async_op
        alike = kind.labels.get(which)
        if alike is None:
            more = {"path": choice.path, "async_op": async_op}
            more |= {"axis": kind.axis} if kind.axis else {}
            alike = kind.labels[which] = of_kind(call, choice.algorithm, **more)
        sizes = kind.shape_in_common(call, shape)
        if choice.schedule:
            sizes["schedule"] = choice.schedule
        values, code = alike
        return of_sizes(call, values, code, sizes)

    def async_label(self, prepared: PreparedCall) -> CallFingerprint:
        """Return the identity of the asynchronous form of a call."""
        if prepared.kind is None or prepared.call is None or prepared.choice is None:
            return prepared.label
        named = prepared.apart
        if named is None:
            made = prepared.kind, prepared.call, prepared.choice, prepared.shape
            named = prepared.apart = self._label(*made, async_op=True)
        return named

    def carried_by(self, of: PreparedCall, choice: Choice, found: Any) -> PreparedCall:
        """Return a copy of a prepared call with another implementation."""
        more = {"ordered": of.ordered, "kind": of.kind, "call": of.call, "shape": of.shape}
        own = self._prepared(of.label, choice, found, **more)
        own.agreed, own.apart = of.agreed, of.apart
        return own

    def willing(self, call: Call) -> object:
        """Return a true value if this rank can use an implementation that only plans have, when all ranks can. Local.

        A true value must be equal on all ranks, and plain data for JSON. A false value is not compared.
        """
        return False

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return an agreed call of a plan, and note the agreement.

        `willing` is the value that all ranks gave, or False if one gave a false value. Collective; it may block.
        """
        prepared = call.prepared
        self._check.learn(prepared, self.async_label(prepared) if async_op else prepared.label)
        return call

    def bind(self, prepared: PreparedCall, arrays: tuple[Any, ...], stream: object) -> Call:
        """Return a call on arrays.

        Raises
        ------
        UsageError
            If an array's layout or stream does not fit.
        """
        queue = None if stream is None else self.queue_of(stream)
        send, recv, result = self._memory(prepared, arrays, queue)
        return Call(prepared, send, recv, result, (arrays[0], result), queue)

    def _memory(
        self, prepared: PreparedCall, arrays: tuple[Any, ...], queue: Queue | None
    ) -> tuple[Any, Any, Any]:
        """Return the array to send, the array to receive into, and the call's result."""
        x, out, send, b = arrays
        kind = prepared.kind
        if send is not None and (kind.send == "x" or kind.recv == "x"):
            send = self.checked_array(send, "x", kind.written)
        recv: View | None
        if kind.recv == "x":
            result, recv = x, send
        elif kind.recv is None:
            result = recv = None
        else:
            if kind.recv == "new":
                result = self.new_like(x, prepared.shape, kind.call.dtype, queue)
                b = result if result.__class__ is np.ndarray else view(result, "out")
                if kind.zeroed:
                    self.clear(b, x, queue)
            else:
                result = out
            assert b is not None
            recv = self.checked_array(b, "out", True)
        if kind.send != "x":
            send = None
        return send, recv, result

    @abstractmethod
    def message(self, message: MessageRequest) -> Call:
        """Return a point-to-point call.

        Raises
        ------
        UsageError
            If the tag does not apply.
        """

    @abstractmethod
    def checked_array(self, array: Any, name: str, written: bool) -> Any:
        """Return an array in the form that calls take.

        Raises
        ------
        UsageError
            If its layout does not fit.
        """

    @abstractmethod
    def queue_of(self, stream: object) -> Queue:
        """Return the user's `stream` as a queue.

        Raises
        ------
        UsageError
            If it is not a stream, or calls on these arrays take no stream.
        """

    @abstractmethod
    def new_like(self, x: Any, shape: tuple[int, ...], dtype: DType, queue: Queue | None) -> Any:
        """Return a new array of the kind of `x`, for a result that is filled on a stream."""

    @abstractmethod
    def clear(self, new: Any, x: Any, queue: Queue | None) -> None:
        """Fill a new array that `new_like` made with zeros, on the same stream."""

    # Carrying calls out.

    @abstractmethod
    def run(self, call: Call, limit: float) -> Any:
        """Carry a call out, with a deadline of `limit` seconds, and return its result."""

    @abstractmethod
    def start(self, call: Call, limit: float) -> Work:
        """Start a call that goes on by itself."""

    @abstractmethod
    def issuing(self, call: Call) -> Callable[[float], None]:
        """Return the function that carries out a planned call, repeatedly, with a deadline in seconds."""

    def prepare_plan(self, call: Call) -> None:  # noqa: B027 (most calls need nothing more)
        """Make the resources that a planned call needs. Collective; blocks."""

    def check_plan(self, call: Call) -> None:  # noqa: B027 (likewise)
        """Raise unless a call can be planned. Local.

        Raises
        ------
        UsageError
            If this rank sends to itself without a receive: a stream would wait for ever.
        """

    def messages(self, call: Call) -> Sequence[Call]:
        """Return the messages of a planned call: the call itself if it is a message, else none."""
        return () if call.prepared.ordered else (call,)

    @abstractmethod
    def planned(
        self, call: Call, messages: Sequence[Call], transport: Transport | None, parts: Parts
    ) -> Call:
        """Return a call that can be carried out repeatedly by its messages, if it has any. Local.

        `transport` moves the messages of host arrays; None without any. The messages of a halo have `parts`, and form
        one call.
        """

    def admitted(self, call: Call) -> Call:
        """Return a call in the form for a batch, which carries it out later."""
        return call

    @abstractmethod
    def batch(self, calls: tuple[Call, ...], async_op: bool, limit: float) -> Work | None:
        """Carry calls out together."""

    # Memory, and the end.

    @abstractmethod
    def registered(self, call: Call) -> bool:
        """Return whether all of a call's arrays on this rank that have elements are registered. Local."""

    def registered_names(self, _x: View | None, _out: View | None) -> tuple[str, ...]:
        """Return the names of the arrays whose memory counts as registered in every call."""
        return ()

    @abstractmethod
    def tried(self, given: NDArray[Any], control: Control) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Carry `SELF_CHECK` out on copies of `given`, on each path that there is. Collective; blocks.

        Yields
        ------
        Choice and ndarray
            The choice of that path, and the result.
        """

    def _together(
        self, operations: Iterable[Operation], async_op: bool, limit: float
    ) -> Work | None:
        """Carry out polled operations, at the same time."""
        whole = self._check.operation(as_one(tuple(operations), async_op))
        if async_op:
            return self._calls.start(whole, limit, None)
        self._calls.run_operation(whole, limit)
        return None

    def _log_ordinary(self, why: str) -> None:
        """Log, once, why `empty` returns ordinary arrays."""
        if not self._logged_ordinary:
            self._logged_ordinary = True
            logger.info("communicator %r: %s", self._calls.name, why)
