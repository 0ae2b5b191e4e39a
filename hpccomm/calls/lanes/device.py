"""The lane of arrays in the memory of one rank's device: calls on streams.

`hpccomm.communicator.creation` makes it with one of the three device dispatches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.backends.nccl import NcclBackend
from hpccomm.calls.arguments import CallKind
from hpccomm.calls.lanes.check import Check
from hpccomm.calls.lanes.lane import SELF_CHECK, Call, Lane, MessageRequest, Parts
from hpccomm.calls.lanes.streams import (
    StreamedCall,
    StreamIssuer,
    array_of,
    as_one,
    check_batch,
    check_own,
    halo_as_one,
    pointers,
    whole,
)
from hpccomm.calls.policy import AUTO
from hpccomm.contracts.device import (
    DeviceDispatch,
    DeviceImplementation,
    Piece,
    Span,
)
from hpccomm.contracts.signature import CallFingerprint, Choice, Signature, compared, of_message
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda import arrays, streams
from hpccomm.memory.cuda.arrays import DeviceArray, Queue
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.memory import clear
from hpccomm.memory.views import View, check_layout, overlap
from hpccomm.reductions import identity
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.pending import StreamCall
from hpccomm.runtime.progress import Operation
from hpccomm.runtime.recorder import DEVICE, CallRecord
from hpccomm.runtime.service import devices, service
from hpccomm.runtime.waiting import no_steps
from hpccomm.runtime.work import Work


class DeviceLane(Lane):
    """Carries out calls on arrays in the memory of one rank's device.

    Parameters
    ----------
    calls : CallEngine
        The communicator's engine.
    check : Check
        The agreements of the communicator's ranks.
    dispatch : DeviceDispatch
        Decides how calls are carried out.
    backend : NcclBackend or None
        Puts calls on streams; None if the host takes part in all calls.
    device : int
        CUDA device of this rank.
    high_priority : bool
        Whether the stream of asynchronous calls has a higher priority than others.
    """

    memory = "device"
    dispatch: DeviceDispatch

    def __init__(
        self,
        calls: CallEngine,
        check: Check,
        dispatch: DeviceDispatch,
        backend: NcclBackend | None,
        device: int,
        *,
        high_priority: bool,
    ) -> None:
        super().__init__(calls, check)
        self.name = dispatch.name
        self.dispatch = dispatch
        self.backend = backend
        self.device = device
        self.issuer = StreamIssuer(calls, backend, device, high_priority=high_priority)
        if backend is not None:
            devices.watch(self.issuer.pending.look)
            service.watch(self.issuer.pending.beat)

    # The parts of a call.

    def fitting(self, x: View | None, out: View | None) -> Lane:
        """Return this lane, if a call's arrays lie on this rank's device.

        Raises
        ------
        UsageError
            If they do not.
        """
        for array in (x, out):
            # The shortest path: two arrays that fit.
            if array is not None and (
                array.__class__ is not DeviceArray or array.device != self.device
            ):
                self._refuse(x, out)
        return self

    def _refuse(self, x: View | None, out: View | None) -> None:
        for which, array in (("x", x), ("out", out)):
            if array is None:
                continue
            if not isinstance(array, DeviceArray):
                other = "out" if which == "x" else "x"
                raise UsageError(
                    f"{which} is in host memory and {other} on a device; give both of one kind"
                )
            if array.device != self.device and array.nbytes:
                raise UsageError(
                    f"{which} lies on device {array.device} and communicator {self._calls.name!r} "
                    f"uses device {self.device}; make arrays there, for example after "
                    "cupy.cuda.Device(comm.device).use(), or give new_comm another device"
                )

    def decide(self, kind: CallKind, call: Signature) -> tuple[Choice, DeviceImplementation]:
        """Return the choice of the algorithm of a call, and its implementation."""
        if call.exclusive and call.op is not None:
            # Raises if the reduction has no identity: rank 0's result would be undefined.
            identity(call.op, call.dtype)
        return self.dispatch.decide(call, kind.algorithm)

    def _prepared(
        self, label: CallFingerprint, choice: Choice, found: DeviceImplementation, **more: Any
    ) -> PreparedCall:
        own = {"choice": choice, "lane": self, "more": found, **more}
        if found.launch is None:
            start = partial(self._polled, found)
            return PreparedCall(self._calls, label, lambda *given: start(*given)(), **own)
        # Hosts that wait for each other would cost more than time.
        label = label._replace(agreed_bytes=0)
        return StreamedCall(
            self._calls, label, no_steps, issuer=self.issuer, launch=found.alone(), **own
        )

    def message(self, message: MessageRequest) -> Call:
        """Return a point-to-point call."""
        if message.synchronous:
            raise UsageError(
                "synchronous is True for a device array; let the receiver send an answer"
            )
        source: Any = None if message.to is None else message.source
        target: Any = None if message.origin is None else message.target
        sends = () if source is None else (Piece(message.to or 0, _span(source)),)
        receives = () if target is None else (Piece(message.origin or 0, _span(target)),)
        choice, found = self.dispatch.message(receives, sends, message.tag)
        nbytes = max((piece.data.nbytes for piece in (*sends, *receives)), default=0)
        pair = message.to, message.origin
        label = of_message(message.name, nbytes, pair, message.tag, None)
        prepared = self._prepared(label, choice, found, ordered=False)
        return self._behind_dlpack(
            Call(prepared, source, target, message.result, message.keep, message.queue)
        )

    def bind(self, prepared: PreparedCall, given: tuple[Any, ...], stream: object) -> Call:
        """Return a call on arrays."""
        return self._behind_dlpack(super().bind(prepared, given, stream))

    def _behind_dlpack(self, call: Call) -> Call:
        """Order the user's stream behind CuPy's current one, for which DLPack made the arrays ready."""
        views: tuple[Any, Any] = (call.send, call.recv)
        if call.queue is not None and any(each and each.kind == arrays.DLPACK for each in views):
            stream, leader = call.queue[0], cupy().cuda.get_current_stream(self.device).ptr
            if stream != leader and not self.issuer.pending.capturing(stream):
                streams.follow(stream, leader, self.device)
        return call

    def checked_array(self, array: DeviceArray, name: str, written: bool) -> DeviceArray:
        """Return an array as it is."""
        if not (array.contiguous and array.writable):
            check_layout(array, name, written=written)
        return array

    def queue_of(self, stream: object) -> Queue:
        """Return the user's `stream`."""
        return streams.user_stream(stream)

    def new_like(self, x: Any, shape: tuple[int, ...], dtype: DType, queue: Queue | None) -> Any:
        """Return a new array of the kind of `x`, ready on the stream on which it will be filled.

        Raises
        ------
        UsageError
            While a graph is captured from that stream: each replay would write to memory that its
            caller does not hold.
        """
        pointer, _ = streams.current(x, self.device) if queue is None else queue
        if self.issuer.pending.capturing(pointer):
            raise UsageError(
                "out is None while a CUDA graph is captured, which replays with the same memory; "
                "give an array that was made before"
            )
        with streams.used_for(x, pointer, self.device):
            return arrays.empty_like_kind(x, shape, dtype)

    def clear(self, new: Any, x: Any, queue: Queue | None) -> None:
        """Fill a new array that `new_like` made with zeros, on the same stream."""
        stream, _ = streams.current(x, self.device) if queue is None else queue
        with streams.on_device(self.device):  # the stream may be this device's default stream
            clear(new.pointer, new.nbytes, stream)

    def _queue(self, call: Call) -> Queue:
        """Return the stream on which a call's arrays are ready, and its result will be."""
        if call.queue is not None:
            return call.queue
        result = call.result
        if result.__class__ is tuple:  # with the counts
            result = result[0]
        if result is None:
            return streams.current(call.keep[0], self.device)
        seen: Any = call.recv
        return streams.current(result, self.device, None if seen is None else seen.kind)

    # Carrying calls out.

    def run(self, call: Call, limit: float) -> Any:
        """Issue a call. Does not block the host, unless the host takes part in it."""
        prepared = call.prepared
        self._make_ready(call)
        if not prepared.ordered and prepared.more.launch is not None:
            check_own((call,), self._calls.backend.rank)  # a stream would hang
        prepared.issue((*pointers(call), self._free(prepared, self._queue(call))), call.keep, limit)
        return call.result

    def _free(self, prepared: PreparedCall, queue: Queue) -> Queue:
        """Return the stream of a call.

        Raise, before any part of the call has begun, if the host takes part in it and a graph is captured.
        """
        if prepared.more.launch is None and self.issuer.pending.capturing(queue[0]):
            raise UsageError(
                f"{prepared.label.name} on device arrays cannot be captured in a CUDA graph: the host takes part in "
                "it, as comm.explain says; call it outside of the capture, or make a call that NCCL has"
            )
        return queue

    def start(self, call: Call, limit: float) -> Work:
        """Issue a call that goes on by itself, on the communicator's own stream."""
        prepared, label = call.prepared, self.async_label(call.prepared)
        if prepared.more.launch is None:
            operation = self._check.operation(self._operation(call, label, True))
            return self._calls.start(operation, limit, call.result)
        self._make_ready(call)
        check_own((call,), self._calls.backend.rank)
        current = streams.finder(array_of(call), self.device)
        label = label._replace(agreed_bytes=0)
        agrees = prepared.ordered and self._check.due(label)
        under_way = self.issuer.issue_apart(call, label, self._queue(call), limit)
        if agrees:  # beside it: such a call does not wait for other ranks
            self.issuer.agree(under_way, self._check.steps(label))
        work = Work(self._calls, under_way.entry, prepared.tally, None, call.result)
        return work.on_stream(StreamCall(self.issuer.pending, under_way, current))

    def _operation(self, call: Call, label: CallFingerprint, apart: bool) -> Operation:
        """Return a call with the host's participation as a polled operation."""
        prepared, queue = call.prepared, self._free(call.prepared, self._queue(call))
        polled = self._polled(prepared.more, *pointers(call), queue, apart=apart)
        return Operation(label, polled, (call.keep, queue), prepared.ordered)

    def _polled(
        self,
        found: DeviceImplementation,
        send: int,
        recv: int,
        queue: Queue,
        *,
        apart: bool = False,
    ) -> Callable[[], Steps]:
        """Return the start of a call with the host's participation; with `apart`, on the communicator's own stream.

        It is done once the device has done it. So its arrays can be dropped then, even if a memory pool
        gives their memory to work on another stream. With `apart`, nothing more is asked of the arrays' stream, which
        may be gone by then.
        """
        device, stream, start = self.device, queue[0], found.start
        assert start is not None
        if apart:
            # Another thread may be capturing a graph in the mode "global".
            with streams.on_device(device), streams.relaxed():
                ready = streams.marked(stream)
                stream = self.issuer.own_stream()
                streams.order(ready, stream)

        def begin() -> Steps:
            steps = start(send, recv, stream)

            def to_the_end() -> Steps:
                yield from steps
                yield from iter(streams.passed(stream, device), True)

            return to_the_end()

        return partial(streams.polled, device, begin)

    def prepare_plan(self, call: Call) -> None:
        """Make the resources of a planned call, and wait until its new result may be used on any stream.

        Memory of a pool belongs to the stream of its allocation, here the current one: its last
        user's work may still be under way. Collective; blocks.
        """
        self._make_ready(call)
        kind = call.prepared.kind
        new = call.packing or (kind is not None and kind.recv == "new")
        if not new or call.queue is not None:
            return
        done = streams.passed(self._queue(call)[0], self.device)
        with self._calls.part_of("plan", ordered=False):  # some ranks get no result
            self._calls.run_steps("plan", iter(done, True))

    def _make_ready(self, call: Call) -> None:
        """Make the resources that the call lacks. If it lacks some, the call is collective, and blocks.

        Raises
        ------
        UsageError
            During the capture of a CUDA graph, which allows no setup.
        """
        needs, choice = call.prepared.more.needs, call.prepared.choice
        if needs is None or needs.done():
            return
        assert choice is not None
        if self.issuer.pending.capturing(self._queue(call)[0]):
            raise UsageError(
                f"algorithm {choice.algorithm!r} has no communicator yet, and none can be made "
                "while a CUDA graph is captured; call or plan it once before"
            )
        what = "making a communicator"
        self._check.agree(compared(what, {"for": choice.algorithm}), None)
        with self._calls.part_of(what):
            needs.make()

    def issuing(self, call: Call) -> Callable[[float], None]:
        """Return the function that carries out a planned call repeatedly.

        It is put on the stream that is current each time, unless the user gave one.
        """
        prepared, keep, queue = call.prepared, call.keep, call.queue
        send, recv = pointers(call)
        current = streams.finder(array_of(call), self.device) if queue is None else lambda: queue

        def carry(limit: float) -> None:
            prepared.issue((send, recv, self._free(prepared, current())), keep, limit)

        return carry

    def check_plan(self, call: Call) -> None:
        """Raise if this rank sends to itself without a receive, on a stream."""
        if self.backend is not None:
            check_own((call,), self._calls.backend.rank)

    def planned(
        self, call: Call, messages: Sequence[Call], transport: Transport | None, parts: Parts
    ) -> Call:
        """Return a planned call as it is, or the messages of a halo as one."""
        if parts is None:
            return call
        label, found = halo_as_one(messages, parts, self.backend, self.device)
        choice = messages[0].prepared.choice
        assert choice is not None
        return whole(self._prepared(label, choice, found, ordered=False), messages)

    def admitted(self, call: Call) -> Call:
        """Return a call on the stream that is current now."""
        return replace(call, queue=self._queue(call))

    def batch(self, calls: tuple[Call, ...], async_op: bool, limit: float) -> Work | None:
        """Issue calls together: groupable ones in one group, then the others, in order, last those of the host.

        Raises
        ------
        UsageError
            Before anything is issued, if they do not fit together.
        """
        on_stream = tuple([call for call in calls if call.prepared.more.launch is not None])
        by_host = [call for call in calls if call.prepared.more.launch is None]
        if self.backend is not None:
            check_batch(calls, self._calls.backend.rank)
        for call in calls:
            self._free(call.prepared, self._queue(call))
            self._make_ready(call)
        if on_stream:
            assert self.backend is not None
            label, async_label, found, ordered = as_one(on_stream, self.backend)
            choice = calls[0].prepared.choice
            assert choice is not None
            one = whole(self._prepared(label, choice, found, ordered=ordered), on_stream)
            one.prepared.apart = async_label
            if async_op and not by_host:
                return self.start(one, limit)
            self.run(one, limit)
            if not by_host:
                return None
        # Behind the group on its stream: once these are done, the group is.
        operations = (self._operation(call, call.prepared.label, async_op) for call in by_host)
        return self._together(operations, async_op, limit)

    # Memory.

    def registered(self, call: Call) -> bool:
        """Return whether a call's arrays on this rank can be registered with the library. Local."""
        return bool(_places(call, self.backend))

    def willing(self, call: Call) -> object:
        """Return where this rank's arrays lie, if they can be registered: ranks must find the same."""
        return call.prepared.more.registered is not None and _places(call, self.backend)

    def agreed(self, call: Call, async_op: bool, *, willing: object) -> Call:
        """Return an agreed call of a plan, on registered arrays if possible."""
        call = super().agreed(call, async_op, willing=willing)
        if not willing:
            return call
        assert self.backend is not None
        with self._calls.part_of("registering arrays"):
            if not self.backend.register([pointer for pointer in pointers(call) if pointer]):
                self._log_ordinary(f"{self.name} registers no memory here; plans take it as it is")
                return call
        prepared = call.prepared
        assert prepared.choice is not None
        choice = replace(prepared.choice, registered=True)
        found = DeviceImplementation(prepared.more.registered())
        return replace(call, prepared=self.carried_by(prepared, choice, found))

    def empty_on(self, device: int, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a CuPy array of this rank's device, in memory that the library can register, if it has such memory.

        Raises
        ------
        UsageError
            If `device` is another one.
        """
        if device != self.device:
            raise UsageError(f"device is {device}; give {self.device}, this rank's, or None")
        count = int(np.prod(shape, dtype=np.int64))
        with self._calls.one_call(), streams.on_device(self.device):
            memory = None
            if self.backend is not None and count:
                memory = self.backend.empty(count * dtype.itemsize)
            if memory is not None:
                flat = arrays.wrapped(memory.pointer, count, dtype, self.device, memory)
                return flat.reshape(shape)
            if count:
                self._log_ordinary(
                    f"{self.name} registers no memory here; empty() gives ordinary device arrays"
                )
            return arrays.empty(shape, dtype)

    # The self-check, and the end.

    def tried(self, given: NDArray[Any], control: Control) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Carry `SELF_CHECK` out on the path of such calls.

        Raises
        ------
        CommunicationError
            On every rank, if the call cannot be issued on one.
        """
        choice, found = self.dispatch.decide(SELF_CHECK, AUTO)
        with streams.on_device(self.device):
            x = cupy().asarray(given)
            stream, holder = streams.current(x, self.device)
            pointer: int = x.data.ptr
            if found.launch is None:
                assert found.start is not None
                self._calls.run_steps("self-check", found.start(pointer, pointer, stream))
            else:
                launch = partial(found.launch, pointer, pointer, stream)
                entry = self._issued(launch, x.nbytes, choice.backend, control)
                self.issuer.pending.note(stream, holder, x, entry)
                self._calls.run_steps("self-check", iter(self.issuer.pending.idle, True))
            result: NDArray[Any] = cupy().asnumpy(x)
        yield choice, result

    def _issued(
        self, launch: Callable[[], None], nbytes: int, way: str, control: Control
    ) -> CallRecord:
        """Issue a call of the self-check; return its record. Collective; blocks."""
        calls, pending = self._calls, self.issuer.pending
        pending.entered = entry = calls.start_record(
            CallFingerprint("self-check", nbytes), DEVICE, calls.timeout
        )
        failure = ""
        try:
            launch()
        except Exception as error:  # noqa: BLE001 (sent to all ranks, and raised)
            failure = str(error) or repr(error)
        pending.entered = None
        failure = control.objections(failure)
        if failure:
            raise CommunicationError(
                f"self-check of communicator {calls.name!r}: a call on device arrays over {way} cannot "
                f"be issued ({failure})",
                communicator=calls.name,
                rank=calls.backend.rank,
                operation="self-check",
            )
        return entry

    def settling(self) -> Steps:
        """Return steps that end once nothing is under way, or the communicator has failed."""
        while self._calls.gate.error is None:
            try:
                with streams.on_device(self.device):
                    if self.issuer.pending.idle():
                        return
            except CommunicationError as error:
                self._calls.fail(error)
            yield False

    def close(self) -> None:
        """Wait for all calls under way, and free the library's communicators. Blocks."""
        self.issuer.close(self.dispatch.close)

    def abandon(self) -> None:
        """End all calls under way, after the communicator failed. From any thread; idempotent."""
        self.issuer.abandon()


def _span(array: DeviceArray) -> Span:
    return Span(array.pointer, array.elements, array.dtype)


def _places(call: Call, backend: NcclBackend | None) -> list[tuple[int, int, int]]:
    """Return where a call's arrays lie in memory that can be registered; empty if one of them does not.

    Ranks must find the same. In place the larger array counts, since the own block lies elsewhere on each.
    """
    arrays: tuple[Any, Any] = (call.send, call.recv)
    there = [each for each in arrays if each is not None and each.nbytes]
    if backend is None or not there:
        return []
    largest = max(there, key=lambda each: each.nbytes)
    if all(overlap(each, largest) for each in there):
        there = [largest]
    found = [backend.place(each.pointer, each.nbytes) for each in there]
    return [each for each in found if each is not None] if all(found) else []
