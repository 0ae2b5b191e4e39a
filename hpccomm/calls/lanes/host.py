"""The lane of arrays in host memory. `hpccomm.communicator.creation` makes it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.calls.arguments import CallKind
from hpccomm.calls.lanes.check import Check
from hpccomm.calls.lanes.lane import (
    ARRAYS,
    BLOCKS,
    HALO,
    SELF_CHECK,
    Call,
    HaloPart,
    Lane,
    MessageRequest,
    Pairs,
    Parts,
    beginning,
    wire_tag,
)
from hpccomm.calls.on_host import HostDispatch
from hpccomm.calls.policy import AUTO, NATIVE
from hpccomm.contracts.backend import Backend, Buffer, Implementation, Start
from hpccomm.contracts.signature import CallFingerprint, Choice, Signature, of_message
from hpccomm.contracts.transport import DTYPES, BoundMessage, BoundSet, MemoryUse, Steps, Transport
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.memory import views
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.runtime.callpath import Kept, PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.progress import Operation, as_one
from hpccomm.runtime.traffic import PLANNED
from hpccomm.runtime.waiting import at_once
from hpccomm.runtime.work import Work
from hpccomm.schedules.algorithms.partition import offsets


def exchange_of(
    calls: Sequence[Call], transport: Transport | None, parts: Parts
) -> tuple[Sequence[BoundSet], Counter[tuple[int, int]]]:
    """Return the messages of one plan, bound to their arrays if that pays, and the number of messages of each end.

    The messages are a sequence of `BoundSet`, which run one after the other. An end is a rank, with 0 for messages to
    it and 1 for messages from it.

    Parameters
    ----------
    calls : sequence of Call
        The messages. Their arrays need not be C-contiguous.
    transport : Transport or None
        The plans' transport; None without one.
    parts : sequence of HaloPart, optional
        The parts of the messages, which run one after the other. None is a single part.
    """
    persistent = None if transport is None else transport.persistent
    strides = persistent is not None and persistent.strides
    left, phases, ends = iter(calls), list[BoundSet](), Counter[tuple[int, int]]()

    def pays(one: BoundMessage) -> bool:
        if persistent is None:
            return False
        return not one.data.flags.c_contiguous or persistent.pays(one.peer, one.data.nbytes)

    for count, first, last in parts or [HaloPart(len(calls), (), ())]:
        before, after = [*first], list[tuple[Any, Any]]()
        receives: list[BoundMessage] = []
        sends: list[BoundMessage] = []
        for call in islice(left, count):
            if call.packing is not None:
                call = call.packing.as_it_lies(call)
            (to, origin), (outward, inward) = call.ends, call.tags
            send: Any = call.send
            recv: Any = call.recv
            if inward is not None and origin is not None:
                if not (strides or recv.flags.c_contiguous):
                    recv = np.empty_like(recv, order="C")
                    after.append((call.recv, recv))
                receives.append(BoundMessage(recv, origin, inward * DTYPES))
            if outward is not None and to is not None:
                strided = not (strides or send.flags.c_contiguous)
                of = call.prepared.call
                # If the received message replaces the sent one, that is sent from a copy.
                replaced = inward is not None and views.overlap(send, recv)
                if strided or replaced or (of is not None and of.in_place):
                    send = np.empty_like(send, order="C")
                    before.append((send, call.send))
                sends.append(BoundMessage(send, to, outward * DTYPES))
        exchanges = []
        bound = [one for one in receives if pays(one)], [one for one in sends if pays(one)]
        if persistent is not None and any(bound):
            exchanges.append(persistent.bind(*bound))
        if transport is not None:
            exchanges += [transport.irecv_again(*one) for one in receives if not pays(one)]
            exchanges += [transport.isend_again(*one) for one in sends if not pays(one)]
        phases.append(_phase(before, exchanges, [*after, *last]))
        ends.update((one.peer, 1) for one in receives)
        ends.update((one.peer, 0) for one in sends)
    return phases, ends


def _phase(before: Pairs, exchanges: Sequence[BoundSet], after: Pairs) -> BoundSet:
    """Return messages that are exchanged together, with the copies before and after them."""
    if len(exchanges) == 1 and not (before or after):
        return exchanges[0]
    # A face has an axis of length 1, which makes a copy take four times as long: so it is removed.
    first, last = ([(a.squeeze(), b.squeeze()) for a, b in pairs] for pairs in (before, after))
    under_way: list[BoundSet] = []

    def start() -> None:
        for into, what in first:
            into[...] = what
        under_way[:] = exchanges
        for each in exchanges:
            each.start()

    def test() -> bool:
        under_way[:] = [each for each in under_way if not each.test()]
        if under_way:
            return False
        for into, what in last:
            into[...] = what
        return True

    return BoundSet(start, exchanges[0].test if len(exchanges) == 1 and not after else test)


def blocks(call: Call) -> Iterator[Call]:
    """Yield the blocks that an exchange with neighbors sends to each of them and receives, as messages."""
    what, send, recv = call.prepared.call, cast("Any", call.send), cast("Any", call.recv)
    assert what is not None
    sends, receives = what.counts, what.recv_counts
    each = zip(what.peers, offsets(sends), sends, offsets(receives), receives, strict=True)
    for peer, start, sent, into, taken in each:
        if peer >= 0:  # else the block is not exchanged
            label = of_message(what.name, what.nbytes, (peer, peer), BLOCKS, None)
            one = replace(call, prepared=replace(call.prepared, label=label))
            yield replace(one, send=send[start : start + sent], recv=recv[into : into + taken])


def start_of(
    calls: CallEngine, phases: Sequence[BoundSet], ends: Mapping[tuple[int, int], int]
) -> Start:
    """Return the function that starts an exchange."""
    counts = [(calls.traffic.cell(peer, PLANNED), way, n) for (peer, way), n in ends.items()]

    def start(_send: Buffer, _recv: Buffer) -> Steps:
        for cell, way, number in counts:
            cell[way] += number
        for each in phases:
            each.start()
            # This yields False until all requests are complete, without Python code.
            yield from iter(each.test, True)

    return start


class HostLane(Lane):
    """Carries out calls on arrays in host memory.

    Parameters
    ----------
    calls : CallEngine
        The communicator's engine.
    check : Check
        The agreements of the communicator's ranks.
    dispatch : HostDispatch
        Decides how calls are carried out.
    backend : Backend
        Moves messages, and has the memory that the ranks of a node share.
    """

    memory = "host"
    dispatch: HostDispatch

    def __init__(
        self, calls: CallEngine, check: Check, dispatch: HostDispatch, backend: Backend
    ) -> None:
        super().__init__(calls, check)
        self.name = backend.name
        self.dispatch = dispatch
        self._backend = backend
        self._messages = Kept()
        self.open_receives: dict[object, Any] = {}  # see `lane.OpenReceives`
        self.rests: dict[tuple[int, int], list[Steps]] = {}  # see `lane.Rests`
        self.use = MemoryUse() if dispatch.memory is None else dispatch.memory.use

    def decide(self, kind: CallKind, call: Signature) -> tuple[Choice, Implementation]:
        """Return the choice of the algorithm, made once for a class of sizes, and its implementation."""
        dispatch, size = self.dispatch, (self.dispatch.size_class(call), call.registered)
        choice, found = kind.choices.get(size) or (dispatch.choose(call, kind.algorithm), None)
        if found is not None:
            return choice, found
        made, found = dispatch.implement(call, choice, kind.algorithm)
        kind.choices[size] = choice, found if found.any_size else None
        return made, found

    def _prepared(
        self, label: CallFingerprint, choice: Choice, found: Implementation, **more: Any
    ) -> PreparedCall:
        how = found.start, found.run, found.arguments
        return PreparedCall(self._calls, label, *how, choice=choice, lane=self, more=found, **more)

    def message(self, message: MessageRequest) -> Call:
        """Return a point-to-point call."""
        name, send, to, recv, origin, tag, replaced, result, keep, _, synchronous = message
        nbytes = 0
        if to is not None or origin is not None or name == "send_recv":
            nbytes = max(0 if send is None else send.nbytes, 0 if recv is None else recv.nbytes)
        sent, taken = None if send is None else send.dtype, None if recv is None else recv.dtype
        key = (name, to, origin, tag, nbytes, replaced, sent, taken, synchronous)
        prepared = self._messages.get(key)
        if prepared is None:
            wires = wire_tag(tag, ARRAYS, sent), wire_tag(tag, ARRAYS, taken)
            transport = self._backend.messages
            isend = getattr(transport, "issend", None) if synchronous else transport.isend
            if isend is None:
                raise UsageError(
                    f"synchronous is True; {self.name!r} sends no such; wait for an answer"
                )
            whose = self._calls.traffic, transport, self.open_receives
            start = beginning(*whose, (to, origin), wires, replaced, isend)
            label = of_message(name, nbytes, (to, origin), tag, wires[0] // DTYPES)
            if send is not None and recv is not None and send.nbytes != recv.nbytes:
                sizes = {"sent": send.nbytes, "received": recv.nbytes}
                label = label._replace(values={**label.values, **sizes})
            prepared = self._remember(key, label, start)
        return Call(prepared, send, recv, result, keep)

    def _remember(self, key: object, label: CallFingerprint, start: Start) -> PreparedCall:
        prepared = self.message_of(label, start)
        self._messages.keep(key, prepared)
        return prepared

    def message_of(self, label: CallFingerprint, start: Start) -> PreparedCall:
        """Return the prepared call of messages that are begun by a function."""
        reason = "the backend has messages of its own"
        choice = Choice(label.name, "host", self.name, NATIVE, None, False, reason)
        return self._prepared(label, choice, Implementation(start), ordered=False)

    def checked_array(self, array: views.Array, name: str, written: bool) -> views.Array:
        """Return an array as 1-D, over the same memory."""
        if not array.flags.carray:  # contiguous and writable arrays fit any use
            views.check_layout(array, name, written=written)
        return array if array.ndim == 1 else array.reshape(-1)

    def queue_of(self, stream: object) -> NoReturn:
        """Raise: host arrays have no stream."""
        raise UsageError(f"stream is {stream!r}; it is for device arrays, and this call has none")

    def new_like(self, x: Any, shape: tuple[int, ...], dtype: DType, queue: Queue | None) -> Any:
        """Return a new array of the kind of `x`, for a result. It is registered if `x` is."""
        if not self.use.registered or not self._holds(views.host_view(x, "x")):
            return views.empty_like_kind(x, shape, dtype)
        return views.like_kind(x, self.empty(shape, dtype))

    def clear(self, new: Any, x: Any, queue: Queue | None) -> None:
        """Fill a new array with zeros."""
        views.as_bytes(new).fill(0)

    def run(self, call: Call, limit: float) -> Any:
        """Carry a call out and return its result."""
        prepared = call.prepared
        prepared.issue(prepared.arguments(call.send, call.recv), call.keep, limit)
        return call.result

    def start(self, call: Call, limit: float) -> Work:
        """Start a call that goes on by itself."""
        prepared = call.prepared
        if prepared.ordered and self._check.due(label := self.async_label(prepared)):
            operation = self._check.operation(_operation(call, label))
            return self._calls.start(operation, limit, call.result)
        return prepared.begin((call.send, call.recv), call.keep, limit, call.result)

    def willing(self, call: Call) -> bool:
        """Return whether the call has another implementation for plans."""
        planned = call.prepared.more.planned
        return planned is not None and planned() is not None

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return an agreed call of a plan, and note the agreement."""
        call = super().agreed(call, async_op, willing=willing)
        prepared = call.prepared
        if async_op or not willing or prepared.more.planned is None:
            return call
        return replace(call, prepared=self.carried_by(prepared, *prepared.more.planned()))

    def issuing(self, call: Call) -> Callable[[float], None]:
        """Return the function that carries out a planned call repeatedly."""
        prepared = call.prepared
        return partial(prepared.issue, prepared.arguments(call.send, call.recv), call.keep)

    def messages(self, call: Call) -> Sequence[Call]:
        """Return a message alone, or the blocks for neighbors as messages."""
        of = call.prepared.call
        if of is not None and of.peers:
            return [*blocks(call)]
        return super().messages(call)

    def planned(
        self, call: Call, messages: Sequence[Call], transport: Transport | None, parts: Parts
    ) -> Call:
        """Return a call that is carried out by its messages, if it has any."""
        of = call.prepared.call
        if of is not None and not of.peers:
            return call
        choice = call.prepared.choice
        exchange = exchange_of(messages, transport, parts)
        found = Implementation(start_of(self._calls, *exchange))
        assert choice is not None
        if of is not None:
            choice = replace(choice, reason="its blocks are messages of a plan")
            return replace(call, prepared=self.carried_by(call.prepared, choice, found))
        operations = tuple(_operation(one, one.prepared.label) for one in messages)
        whole = operations[0] if parts is None else as_one(operations)
        name = whole.label.name if parts is None else HALO
        # The messages of plans have separate tags.
        ends = tuple([(way, peer, PLANNED) for way, peer, _ in whole.label.ends])
        label = whole.label._replace(ends=ends, name=name)
        prepared = self._prepared(label, choice, found, ordered=False)
        return Call(prepared, None, None, call.result if parts is None else None, whole.keep)

    def batch(self, calls: tuple[Call, ...], async_op: bool, limit: float) -> Work | None:
        """Carry calls out together: messages at the same time, collectives in their order."""
        key = tuple([call.prepared for call in calls])
        prepared = self._messages.get(key)
        if prepared is None:
            operations = tuple([_operation(call, call.prepared.label) for call in calls])
            if not calls or any(each.ordered for each in operations):
                return self._together(operations, async_op, limit)
            prepared = self._remember(key, as_one(operations).label, _begun)
        if async_op:
            return prepared.begin((calls, None), calls, limit, None)
        prepared.issue((calls, None), calls, limit)
        return None

    def registered(self, call: Call) -> bool:
        """Return whether a call's arrays on this rank are in memory that its peers map. Local."""
        arrays: tuple[Any, Any] = (call.send, call.recv)
        there = [each for each in arrays if each is not None and each.size]
        return bool(there) and all(map(self._holds, there))

    def registered_names(self, x: Any, out: Any) -> tuple[str, ...]:
        """Return the names of the arrays that are registered: some of ``"x"`` and ``"out"``. Local."""
        if not self.use.registered:
            return ()
        x_is = x is not None and self._holds(x)
        out_is = x_is if out is x else out is not None and self._holds(out)
        return ("x",) * x_is + ("out",) * out_is

    def _holds(self, array: views.Array) -> bool:
        memory = self.dispatch.memory
        return memory is not None and memory.holds(array)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return an array in memory that the ranks of the node map."""
        shared = self._backend.collectives.shared
        if shared is not None:
            return shared.empty(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        self._log_ordinary("the ranks of a node share no memory; empty() gives ordinary arrays")
        return np.empty(shape, dtype)

    def tried(self, given: NDArray[Any], control: Control) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Carry `SELF_CHECK` out by the library, by messages, and by memory that ranks of a node share."""
        shared = "shm" if self._backend.topology.num_nodes == 1 else "hierarchical"
        there = {AUTO, *self.dispatch.applicable(SELF_CHECK)}
        for algorithm in sorted({AUTO, "recursive_doubling", shared} & there):
            x = given.copy()
            choice, found = self.dispatch.decide(SELF_CHECK, algorithm)
            if found.run is None:
                self._calls.run_steps("self-check", found.start(x, x))
            else:
                with self._calls.beside_watchdog("self-check", ordered=True):
                    found.run(*found.arguments(x, x))
            yield choice, x


def _operation(call: Call, label: CallFingerprint) -> Operation:
    """Return a call as a polled operation."""
    prepared, send, recv = call.prepared, call.send, call.recv
    start = prepared.start
    return Operation(label, lambda: start(send, recv), call.keep, prepared.ordered)


def _begun(calls: Any, _recv: Buffer) -> Steps:
    """Begin the messages of a batch."""
    return at_once([call.prepared.start(call.send, call.recv) for call in calls])
