"""The device side of a communicator: calls on streams."""

import logging
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.communicator.device_call import DeviceCall, check_apart, check_own
from hpccomm.contracts.device import DeviceBackend, DeviceDispatch, DeviceRoute, Given, Launch
from hpccomm.contracts.transport import Steps
from hpccomm.dtypes import DType
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda import arrays, streams
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.memory import clear
from hpccomm.memory.cuda.streams import Queue
from hpccomm.runtime.engine import CallEngine, Label, Operation
from hpccomm.runtime.lifetime import ExitStep, at_exit, keep
from hpccomm.runtime.pending import PendingCall, PendingCalls
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.stderr import tell
from hpccomm.runtime.waiting import Gate, wait
from hpccomm.runtime.watchdog import watch
from hpccomm.runtime.work import DeviceWork, Work

if TYPE_CHECKING:
    from hpccomm.communicator.core import Bound

logger = logging.getLogger("hpccomm")

DRAIN_SECONDS = 10.0
"""All that is under way at exit may take so long; then it is aborted, since freeing it could block."""

ABORT_SECONDS = 2.0
"""Of those, what is left to abort."""

LET_GO_SECONDS = 10.0
"""How long the library may take to let go of what is aborted."""

GRAPH_SECONDS = 1.0
"""The same, and to free what is finalized, where calls were captured: it lets go once no graph is left."""


CAUSES = (
    "A rank did not take part, is late, or gave other arguments: NCCL does not compare the count, dtype, "
    "op and root of its ranks"
)
"""What may have kept a call on a device."""

TOGETHER = "put them into one send_recv or one batch"


class Devices:
    """Carries out calls on arrays in the memory of one rank's device.

    Parameters
    ----------
    calls : CallEngine
        Of the communicator.
    path : DeviceDispatch
        Decides how.
    backend : DeviceBackend or None
        What puts calls on streams; None where the host takes part in all of them.
    device : int
        CUDA device of this rank.
    high_priority : bool
        Whether the stream of asynchronous calls goes before others.
    """

    def __init__(
        self,
        calls: CallEngine,
        path: DeviceDispatch,
        backend: DeviceBackend | None,
        device: int,
        *,
        high_priority: bool,
    ) -> None:
        self.path = path
        self.backend = backend
        self.device = device
        self._calls = calls
        self._high_priority = high_priority
        self._own: Any = None  # the stream of asynchronous calls, once there is one
        self._told_ordinary = False
        self._process = os.getpid()
        self._until = math.inf  # when the process wants to be gone
        check = (lambda: None) if backend is None else backend.check
        self._flights = PendingCalls(device, check, self._lost)
        self._closed = False
        if backend is not None:
            calls.translators.append(backend.translate)
            calls.releases.append(self._abandon)
            watch(self._flights)
            _remember(self)

    # What a call is made of.

    def launched(self, way: DeviceRoute, label: Label, tally: Tally, bound: "Bound") -> DeviceCall:
        """Return a collective call that is ready to go."""
        send, recv = bound.send, bound.recv
        assert send is None or isinstance(send, DeviceArray)
        assert recv is None or isinstance(recv, DeviceArray)
        x, result = bound.keep
        array = x if result is None else result
        queue = self._queue(array, bound.stream)
        return DeviceCall(
            way,
            label,
            tally,
            0 if send is None else send.pointer,
            0 if recv is None else recv.pointer,
            queue,
            streams.finder(array, self.device),
            result,
            bound.keep,
            () if send is None else (send,),
            () if recv is None else (recv,),
        )

    def message(
        self,
        way: DeviceRoute,
        label: Label,
        result: Any,
        keep: tuple[Any, ...],
        stream: object,
        reads: tuple[DeviceArray, ...],
        writes: tuple[DeviceArray, ...],
        own_sends: tuple[int, ...],
        own_receives: tuple[int, ...],
    ) -> DeviceCall:
        """Return a point-to-point call that is ready to go."""
        array = keep[0]
        return DeviceCall(
            way,
            label,
            self._calls.stats.tally(*label),
            0,
            0,
            self._queue(array, stream),
            streams.finder(array, self.device),
            result,
            keep,
            reads,
            writes,
            ordered=False,
            own_sends=own_sends,
            own_receives=own_receives,
        )

    def _queue(self, array: Any, given: object) -> Queue:
        if given is not None:
            return streams.given(given)
        return streams.current(array, self.device)

    def new_like(self, x: Any, shape: tuple[int, ...], dtype: DType, stream: object) -> Any:
        """Return a new array of the kind of `x`, ready on the stream on which it will be filled.

        Raises
        ------
        UsageError
            While a graph is captured from that stream: each replay would write to memory that nobody
            who captured it holds.
        """
        pointer = self._queue(x, stream)[0]
        if streams.capturing(pointer):
            raise UsageError(
                "out is None while a CUDA graph is captured, which replays with the same memory; "
                "give an array that was made before"
            )
        if stream is None:
            with streams.on_device(self.device):
                return arrays.empty_like_kind(x, shape, dtype)
        with streams.used_for(x, pointer, self.device):
            return arrays.empty_like_kind(x, shape, dtype)

    def clear(self, array: DeviceArray, x: Any, stream: object) -> None:
        """Fill a new array that `new_like` made with zeros, on the same stream."""
        clear(array.pointer, array.nbytes, self._queue(x, stream)[0])

    # Issuing.

    def enqueue(self, way: DeviceRoute, bound: "Bound", limit: float) -> bool:
        """Issue a synchronous call the shortest way, and return whether that could be done."""
        launch, needs = way.launch, way.needs
        if launch is None or not (needs is None or needs.done()):
            return False
        recipe, send, recv, keep = bound.recipe, bound.send, bound.recv, bound.keep
        self._calls.enqueue(
            recipe.label,
            recipe.tally,
            launch,
            0 if send is None else send.pointer,  # type: ignore[union-attr]  # a device array
            0 if recv is None else recv.pointer,  # type: ignore[union-attr]  # likewise
            self._queue(keep[0] if bound.result is None else bound.result, bound.stream),
            keep,
            limit,
            self._flights,
        )
        return True

    def issue(self, call: DeviceCall, async_op: bool, limit: float) -> Any:
        """Issue a call. Does not block the host, unless the host takes part in it."""
        way = call.way
        if way.launch is None:
            return self._by_host(call, async_op, limit)
        self.make_ready(call)
        if async_op:
            return self._start(way.launch, call, limit)
        self._calls.enqueue(
            call.label,
            call.tally,
            way.launch,
            call.send,
            call.recv,
            call.queue,
            call.keep,
            limit,
            self._flights,
        )
        return call.result

    def _by_host(self, call: DeviceCall, async_op: bool, limit: float) -> Any:
        """Issue a call in which the host takes part."""
        operation = self.operation(call, async_op)
        if async_op:
            return self._calls.start(operation, limit, call.result)
        self._calls.run(
            call.label,
            call.tally,
            lambda _send, _recv: operation.start(),
            None,
            None,
            call.keep,
            limit,
            ordered=call.ordered,
        )
        return call.result

    def operation(self, call: DeviceCall, async_op: bool) -> Operation:
        """Return a call in which the host takes part as something polled.

        Raises
        ------
        UsageError
            If a CUDA graph is being captured.
        """
        if streams.capturing(call.queue[0]):
            raise UsageError(
                f"{call.label[0]} on device arrays goes over {self.path.name!r}, in which the host "
                "takes part, and a CUDA graph is being captured; capture works over NCCL alone"
            )
        if async_op:
            return self._apart(call)
        start = call.way.start
        assert start is not None
        steps = partial(start, call.send, call.recv, call.queue[0])
        return Operation(*call.label, steps, (call.keep, call.queue), ordered=call.ordered)

    def _apart(self, call: DeviceCall) -> Operation:
        """Return a call in which the host takes part, on the communicator's own stream.

        It is done once the device is: the stream of its arrays, which may be gone by then, is asked
        for nothing more.
        """
        start, own = call.way.start, self.own_stream()
        assert start is not None
        with streams.on_device(self.device):
            ready, done = streams.owned_event(), streams.owned_event()
            streams.record(ready.ptr, call.queue[0])
            streams.order(ready.ptr, own)

        def steps() -> Steps:
            yield from start(call.send, call.recv, own)
            streams.record(done.ptr, own)
            while not streams.ready(done.ptr):
                yield False

        return Operation(*call.label, steps, (call.keep, ready, done), ordered=call.ordered)

    def make_ready(self, call: DeviceCall) -> None:
        """Make what the call needs, if it is not there yet. Collective then; blocks.

        Raises
        ------
        UsageError
            If a CUDA graph is being captured, in which nothing can be made.
        """
        way = call.way
        if way.needs is None or way.needs.done():
            return
        if streams.capturing(call.queue[0]):
            raise UsageError(
                f"algorithm {way.choice.algorithm!r} has no communicator yet, and none can be made "
                "while a CUDA graph is captured; call or plan it once before"
            )
        with self._calls.told("making a communicator", 0):
            way.needs.make()

    def own_stream(self) -> int:
        """Return the stream of asynchronous calls."""
        if self._own is None:
            self._own = streams.make_stream(self.device, high_priority=self._high_priority)
        pointer: int = self._own.ptr
        return pointer

    def _start(self, launch: Launch, call: DeviceCall, limit: float) -> DeviceWork:
        """Issue a call on the communicator's own stream, behind what its arrays wait for."""
        own, flights = self.own_stream(), self._flights
        flight: PendingCall | None = None

        def apart(send: int, recv: int, stream: int) -> None:
            nonlocal flight
            with streams.on_device(self.device):
                event = flights.event()
                streams.record(event, stream)
                streams.order(event, own)
                launch(send, recv, own)
                flight = flights.depart(
                    own,
                    self._own,
                    call.keep,
                    perf_counter(),
                    limit,
                    call.label,
                    self._calls.sequence,
                )
                # A captured event belongs to the graph until the capture ends.
                if not flight.captured:
                    flights.give(event)

        self._calls.enqueue(
            call.label,
            call.tally,
            apart,
            call.send,
            call.recv,
            call.queue,
            call.keep,
            limit,
            flights,
            apart=True,
        )
        assert flight is not None
        return DeviceWork(
            flights,
            flight,
            result=call.result,
            gate=self._calls.gate,
            current=call.current,
            expired=self._expired,
            told=self._told,
        )

    def _told(self) -> None:
        self._calls.untold = None

    def tried(self, way: DeviceRoute, given: NDArray[Any], control: Control) -> NDArray[Any]:
        """Return what comes of a call in place on `given`, for a self-check. Collective; blocks.

        Raises
        ------
        CommunicationError
            On every rank, if the call cannot be issued on one.
        """
        calls, flights, label = self._calls, self._flights, ("self-check", given.nbytes)
        with streams.on_device(self.device):
            x = cupy().asarray(given)
            stream, holder = streams.current(x, self.device)
            pointer: int = x.data.ptr
            if way.launch is None:
                assert way.start is not None
                calls.drive("self-check", way.start(pointer, pointer, stream))
            else:
                begin = perf_counter()
                flights.entered = (begin, calls.timeout, label, 0)
                failure = ""
                try:
                    way.launch(pointer, pointer, stream)
                except Exception as error:  # noqa: BLE001 (told to all ranks, and raised)
                    failure = f"rank {calls.backend.rank}: {error}"
                flights.entered = None
                told = [each.decode() for each in control.all_gather(failure.encode())]
                if any(told):
                    raise CommunicationError(
                        f"self-check of communicator {calls.name!r}: a call on device arrays over "
                        f"{way.choice.backend} cannot be issued ({'; '.join(filter(None, told))})",
                        communicator=calls.name,
                        rank=calls.backend.rank,
                        operation="self-check",
                    )
                flights.note(stream, holder, x, begin, calls.timeout, label, 0)
                calls.drive("self-check", self._landing())
            found: NDArray[Any] = cupy().asnumpy(x)
            return found

    def _landing(self) -> Steps:
        """Return steps that end once nothing is under way."""
        while not self._flights.idle():
            yield False

    def settling(self) -> Steps:
        """Return steps that end once nothing is under way, or the communicator has failed."""
        while self._calls.gate.error is None:
            try:
                with streams.on_device(self.device):
                    if self._flights.idle():
                        return
            except CommunicationError as error:
                self._calls.fail(error)
            yield False

    # Batches and plans.

    def issue_batch(
        self, calls: tuple[DeviceCall, ...], async_op: bool, limit: float
    ) -> Work | None:
        """Issue calls together: those that can stand in a group in one, then the others, each in order.

        Which can is the same on all ranks, and so is the order of collectives. Messages all stand in the
        group, so that none waits for a call that its peer issues after it.

        Raises
        ------
        UsageError
            Before anything is issued, if they are on several streams, one of them touches what
            another one writes, or this rank sends to itself what it does not receive.
        """
        label = ("batch", sum(call.label[1] for call in calls))
        first = calls[0]
        if any(call.queue[0] != first.queue[0] for call in calls):
            raise UsageError(
                "the calls of a batch are on several streams; give all of them one stream"
            )
        check_apart(calls)
        check_own(calls)
        for call in calls:
            self.make_ready(call)
        backend = self.backend
        assert backend is not None

        def launch(_send: int, _recv: int, stream: int) -> None:
            together = []
            for call in calls:
                if call.way.grouped is not None:
                    begin = call.way.grouped.begin
                    given = Given(call.send, call.recv, None)
                    if begin is not None:
                        given = begin(call.send, call.recv, stream)
                    together.append((call.way.grouped.launch, given))
            with backend.group():
                for run, given in together:
                    run(given.send, given.recv, stream)
            for call in calls:
                if call.way.grouped is None:
                    assert call.way.launch is not None
                    call.way.launch(call.send, call.recv, stream)

        whole = DeviceCall(
            DeviceRoute(first.way.choice, launch),
            label,
            self._calls.stats.tally(*label),
            0,
            0,
            first.queue,
            first.current,
            None,
            tuple(call.keep for call in calls),
            (),
            (),
        )
        work: Work | None = self.issue(whole, async_op, limit)
        return work

    def repeated(
        self,
        call: DeviceCall,
        *,
        given: bool,
        limit: float,
        apart: Callable[[], bool],
        otherwise: Callable[[], Any],
    ) -> Callable[[], Any]:
        """Return the shortest way to issue a synchronous call again and again.

        Parameters
        ----------
        call : DeviceCall
            It.
        given : bool
            Whether its stream was given; else it is the current one of each time.
        limit : float
            Seconds.
        apart : callable
            Whether calls go elsewhere at present (to a batch, say).
        otherwise : callable
            The long way.
        """
        launch = call.way.launch
        if launch is None:
            return otherwise
        queue = call.queue
        return self._calls.repeated(
            call.label,
            call.tally,
            launch,
            call.send,
            call.recv,
            (lambda: queue) if given else call.current,
            call.keep,
            limit,
            self._flights,
            apart=apart,
            otherwise=otherwise,
            result=call.result,
        )

    # Memory.

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return a CuPy array in memory that is registered with the library, where it has such."""
        count = int(np.prod(shape, dtype=np.int64))
        with streams.on_device(self.device):
            memory = None
            if self.backend is not None and count:
                memory = self.backend.empty(count * dtype.itemsize)
            if memory is None:
                self._tell_ordinary(count)
                return arrays.empty(shape, dtype)
            pointer: int = memory.pointer  # type: ignore[attr-defined]  # as the contract has it
            return arrays.wrapped(pointer, count, dtype, self.device, memory).reshape(shape)

    def _tell_ordinary(self, count: int) -> None:
        if count and not self._told_ordinary:
            self._told_ordinary = True
            logger.info(
                "communicator %r: %s registers no memory here; empty() gives ordinary device arrays",
                self._calls.name,
                self.path.name,
            )

    def registered(self, *views: object) -> bool:
        """Tell whether arrays of this rank, all that have elements, are registered. Local."""
        backend = self.backend
        held = [
            backend.holds(each.pointer, each.nbytes)
            for each in views
            if backend is not None and isinstance(each, DeviceArray) and each.nbytes
        ]
        return bool(held) and all(held)

    # Failure and the end.

    def _expired(self, flight: PendingCall, elapsed: float) -> CommunicationError:
        """Fail the communicator, whose deadline passed while somebody waited."""
        error = self._overdue(flight, elapsed)
        flight.error = error
        self._calls.fail(error)
        return error

    def _overdue(self, flight: PendingCall, elapsed: float) -> CommunicationError:
        causes = CAUSES
        if flight.label[0] in ("send", "recv", "send_recv", "batch"):
            causes = f"{CAUSES}; or both ends send before they receive: {TOGETHER}"
        return self._calls.overdue(*flight.label, flight.sequence, flight.timeout, elapsed, causes)

    def _lost(self, flight: PendingCall | None, error: CommunicationError | None) -> BaseException:
        """Take note of a failure that the watchdog found."""
        if error is None:
            assert flight is not None
            error = self._overdue(flight, perf_counter() - flight.begin)
        # Before anybody can see it: whoever raises it then has told.
        self._calls.untold = error
        if flight is not None:
            flight.error = error
        self._calls.fail(error)
        tell(
            f"hpccomm: {error}\nhpccomm: communicator {self._calls.name!r} is aborted, so that its "
            "streams go on; results of its calls that were under way are undefined"
        )
        return error

    def _abandon(self) -> None:
        """Release the device: the communicator has failed. From any thread."""
        if self._process != os.getpid():
            return
        keep(*self._flights.abandon())
        _forget(self)
        if self.backend is not None:
            patience = GRAPH_SECONDS if self._flights.captured else LET_GO_SECONDS
            self.backend.abort(min(patience, self._left()))

    def close(self) -> None:
        """Wait until what is under way is done, and free the library's communicators. Blocks.

        Raises
        ------
        CollectiveTimeout
            If the deadline of the communicator passes.
        """
        if self._closed or self._process != os.getpid():
            return
        self._drain(self._calls.timeout, self._calls.gate)
        self._end()

    def _drain(self, timeout: float, gate: Gate) -> None:
        def expired(elapsed: float) -> CommunicationError:
            error = self._calls.overdue("finalize", 0, self._calls.sequence, timeout, elapsed)
            self._calls.fail(error)
            return error

        try:
            with streams.on_device(self.device):
                wait(self._flights.idle, timeout=timeout, gate=gate, expired=expired)
        except CommunicationError:
            self._told()
            raise

    def _end(self) -> None:
        self._closed = True
        _forget(self)
        captured = self._flights.captured
        self._flights.end()
        with streams.on_device(self.device):
            if captured and self.backend is not None and not self.backend.release(GRAPH_SECONDS):
                logger.warning(
                    "%s: NCCL keeps its communicators as long as there are CUDA graphs with their calls, "
                    "and frees them in a thread; drop the graphs before finalize",
                    self._calls.name,
                )
            self.path.close()

    def leave(self, until: float) -> None:
        """At the process's exit: free what can be freed soon, and abort the rest.

        Starts no thread: at exit Python may refuse to.

        Parameters
        ----------
        until : float
            When it is over, as ``time.perf_counter`` counts.
        """
        if self._closed or self._process != os.getpid() or self._calls.gate.error is not None:
            return
        self._until = until
        try:
            self._drain(max(0.0, self._left() - ABORT_SECONDS), Gate())
        except Exception as error:  # noqa: BLE001 (whatever it is, nothing may be left under way)
            self._calls.fail(error)
            return
        self._closed = True
        _forget(self)
        # Captured graphs are there still, as a rule, and NCCL would wait for them: it ends with the
        # process, and they before it.
        if self.backend is not None and not self._flights.captured:
            self._flights.end()
            if not self.backend.release(self._left(), leaving=True):
                logger.warning("%s: NCCL has not let go before the exit", self._calls.name)

    def _left(self) -> float:
        """Return the seconds that are left to this process."""
        return max(0.0, self._until - perf_counter())


_everyone: set[Devices] = set()
"""Those that are neither closed nor aborted, whether or not their communicators are still there: the
device goes on with what they hold."""

_everyone_lock = threading.Lock()


def _remember(devices: Devices) -> None:
    with _everyone_lock:
        if not _everyone:
            at_exit(ExitStep.DEVICES, _leave_all)
        _everyone.add(devices)


def _forget(devices: Devices) -> None:
    with _everyone_lock:
        _everyone.discard(devices)


def _leave_all() -> None:
    until = perf_counter() + DRAIN_SECONDS
    for each in list(_everyone):
        try:
            each.leave(until)
        except Exception:  # the others must still be looked after
            logger.exception("a communicator failed at exit")
