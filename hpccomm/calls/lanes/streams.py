"""Puts the calls of one communicator on its device's streams, and remembers them until they are done.

Calls in which the host takes part are polled, in order with the streams of their arrays. Batches and plans put
several calls on one stream together. The device lane issues calls through it. It also ends them: at a close, an abort,
or the exit.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

from hpccomm.backends.nccl import NcclBackend, libnccl
from hpccomm.calls.lanes.lane import HALO, Call, HaloPart, Pairs
from hpccomm.contracts.device import Begun, DeviceImplementation, Launch
from hpccomm.contracts.signature import CallFingerprint, compared, joined
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.cuda.streams import used_for
from hpccomm.memory.views import address
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.pending import PendingCall, PendingCalls, pending_call
from hpccomm.runtime.progress import COMPARED, DIGEST, Task
from hpccomm.runtime.recorder import BEGIN, DEVICE, LABEL, TIMEOUT, CallRecord
from hpccomm.runtime.service import ExitStep, at_exit, keep, write_stderr
from hpccomm.runtime.waiting import Gate, at_once, wait

logger = logging.getLogger("hpccomm")


def pointers(call: Call) -> tuple[int, int]:
    """Return the addresses of a call's arrays on a device; 0 without one."""
    send: Any = call.send
    recv: Any = call.recv
    return (0 if send is None else send.pointer, 0 if recv is None else recv.pointer)


def array_of(call: Call) -> Any:
    """Return the array whose framework has the current stream for a call."""
    result = call.result[0] if isinstance(call.result, tuple) else call.result
    return call.keep[0] if result is None else result


def whole(prepared: PreparedCall, calls: Sequence[Call]) -> Call:
    """Return one call that stands for calls that are carried out together."""
    keep = (array_of(calls[0]), *(call.keep for call in calls))
    return Call(prepared, None, None, None, keep, queue=calls[0].queue)


def grouped(calls: tuple[Call, ...], backend: NcclBackend) -> Launch:
    """Return the function that puts calls on a stream: first those that can stand in a group, then the others.

    The same calls can stand in a group on all ranks, so the order of collectives is the same too. All messages stand
    in the group, so that none waits for a call that its peer issues later.
    """
    each = [(call.prepared.more, *pointers(call)) for call in calls]

    def launch(_send: int, _recv: int, stream: int) -> None:
        together = []
        for found, send, recv in each:
            if found.groups:
                begun = found.begin(send, recv, stream) if found.begin else Begun(send, recv)
                together.append((found.launch, begun))
        with backend.group():
            for run, begun in together:
                run(begun.send, begun.recv, stream)
        for _, begun in together:
            begun.end()
        for found, send, recv in each:
            if not found.groups:
                found.alone()(send, recv, stream)

    return launch


def as_one(
    calls: tuple[Call, ...], backend: NcclBackend
) -> tuple[CallFingerprint, CallFingerprint, DeviceImplementation, bool]:
    """Return one call that stands for calls that are put on a stream together.

    The result has its label, the label of its asynchronous form, its implementation, and whether it has collectives.
    """
    nbytes = sum(call.prepared.label.nbytes for call in calls)
    each = [call.prepared.label for call in calls if call.prepared.ordered]
    label = joined(nbytes, each, 0) if each else CallFingerprint("batch", nbytes)
    async_label = joined(nbytes, each, 1) if each else label
    return label, async_label, DeviceImplementation(grouped(calls, backend)), bool(each)


def halo_as_one(
    calls: Sequence[Call], parts: Sequence[HaloPart], backend: NcclBackend | None, device: int
) -> tuple[CallFingerprint, DeviceImplementation]:
    """Return the label and the implementation of a halo, whose parts run one after the other.

    They run on a stream, or by the host if there is no backend.
    """
    left, array = iter(calls), calls[0].keep[0]
    every: list[tuple[HaloPart, Any]] = []
    for part in parts:
        messages = tuple(islice(left, part.messages))
        every.append((part, grouped(messages, backend) if backend else _by_host(messages)))

    def copy(pairs: Pairs, stream: int) -> None:
        if pairs:
            with used_for(array, stream, device):
                for into, what in pairs:
                    into[...] = what

    def each(stream: int) -> Iterator[Any]:
        for part, run in every:
            copy(part.before, stream)
            yield run
            copy(part.after, stream)

    def launch(send: int, recv: int, stream: int) -> None:
        for run in each(stream):
            run(send, recv, stream)

    def start(send: int, recv: int, stream: int) -> Steps:
        for run in each(stream):
            yield from run(send, recv, stream)

    label = CallFingerprint(HALO, sum(call.prepared.label.nbytes for call in calls))
    return label, DeviceImplementation(launch) if backend else DeviceImplementation(start=start)


def _by_host(calls: tuple[Call, ...]) -> Callable[[int, int, int], Steps]:
    """Return the function that returns the steps of messages in which the host takes part."""

    def start(_send: int, _recv: int, stream: int) -> Steps:
        return at_once([call.prepared.more.start(*pointers(call), stream) for call in calls])

    return start


def check_batch(calls: tuple[Call, ...], rank: int) -> None:
    """Raise unless calls can be put on a stream together.

    Raises
    ------
    UsageError
        If the calls are on several streams, a call touches memory that another one writes, or this rank sends
        to itself without a matching receive.
    """
    first = calls[0].queue
    assert first is not None
    if any(call.queue is None or call.queue[0] != first[0] for call in calls):
        raise UsageError("the calls of a batch are on several streams; give all of them one stream")
    _check_apart(calls)
    check_own(calls, rank)


def check_own(calls: tuple[Call, ...], rank: int) -> None:
    """Raise if this rank sends to itself without a matching receive in the same calls.

    On a stream the send would wait for the receive for ever.
    """
    messages: list[tuple[Any, Any]] = [
        (call.send if to == rank else None, call.recv if origin == rank else None)
        for call in calls
        for to, origin in (call.ends,)
    ]
    going = [send.nbytes for send, _ in messages if send is not None and send.nbytes]
    coming = [recv.nbytes for _, recv in messages if recv is not None and recv.nbytes]
    if going != coming:
        raise UsageError(
            f"this rank sends messages of {going} bytes to itself and receives {coming} in this call or "
            "batch; on a device both ends are given together: in one send_recv of the same size, or in "
            "one batch, in the same order"
        )


def _check_apart(calls: tuple[Call, ...]) -> None:
    """Raise if a call of a batch touches memory that another one writes: they are carried out at the same time."""
    far = written = _Extent(0, 0, False, "")  # the extents so far that reach farthest
    for extent in sorted(each for call in calls for each in _extents(call)):
        other = far if extent.written else written
        if extent.start < other.end:
            raise UsageError(
                f"{other.name} and {extent.name} of a batch share memory that one of them writes, and "
                "a device carries a batch out at once; take one of them out of it"
            )
        far = max(far, extent, key=attrgetter("end"))
        if extent.written:
            written = max(written, extent, key=attrgetter("end"))


class _Extent(NamedTuple):
    """Memory that one call touches."""

    start: int
    end: int
    written: bool
    name: str


def _extents(call: Call) -> list[_Extent]:
    """Return the memory that a call reads and writes. Overlap within a call is checked elsewhere."""
    name = call.prepared.label.name
    read, write = _extent(call.send, False, name), _extent(call.recv, True, name)
    if read is not None and write is not None and read.start < write.end and write.start < read.end:
        return [_Extent(min(read.start, write.start), max(read.end, write.end), True, name)]
    return [each for each in (read, write) if each is not None]


def _extent(array: Any, written: bool, name: str) -> _Extent | None:
    if array is None or not array.nbytes:
        return None
    start = address(array)
    return _Extent(start, start + array.nbytes, written, name)


DRAIN_SECONDS = 10.0
"""All that is under way at exit may take so long; then it is aborted, since freeing it could block."""

ABORT_SECONDS = 2.0
"""The part of them for the abort."""

LET_GO_SECONDS = 10.0
"""Seconds for the library to release aborted calls."""

GRAPH_SECONDS = 1.0
"""The same, for a finalized communicator with captured calls, which waits for graphs."""


CAUSES = (
    "A rank did not take part, is late, or gave other arguments: NCCL does not compare the count, dtype, "
    "op and root of its ranks"
)
"""Likely causes, which errors about a late call on a device quote."""

TOGETHER = "put them into one send_recv or one batch"


@dataclass(slots=True, eq=False)
class StreamedCall(PreparedCall):
    """A prepared call that is put on a stream.

    Attributes
    ----------
    issuer : StreamIssuer
        Remembers the call until it is done.
    launch : callable
        Puts the call on a stream; see `Launch`.
    noted : bool
        Whether `issue` notes the call as pending, and first has the ranks compare it; else `launch` does so.
    """

    issuer: Any = None
    launch: Any = None
    noted: bool = True

    def issue(self, arguments: tuple[Any, ...], keep: object, timeout: float) -> None:
        """Put the call on a stream, and return. The counted seconds are those of the host.

        `arguments` has the addresses of the sent and the received array, and the stream.
        """
        calls, label, tally, issuer = self.calls, self.label, self.tally, self.issuer
        reports, ordered, noted = calls.reports, self.ordered, self.noted
        send, recv, (stream, holder) = arguments
        number, pending = 0, issuer.pending
        if ordered:
            calls.number = number = calls.number + 1
            calls.digest = (calls.digest * 9 ^ self.mark) & DIGEST
        calls.sequence = sequence = calls.sequence + 1
        begin = perf_counter()
        entry = [
            calls.origin,
            sequence,
            number,
            label,
            DEVICE,
            calls.site,
            begin,
            timeout,
            None,
            None,
        ]
        calls.record(entry)
        pending.entered = entry
        try:
            if reports.pre_hooks.registered:
                reports.pre_hooks(reports.info(entry))
            if (
                ordered
                and noted
                and (self.agreed != calls.agreement or number & COMPARED == COMPARED)
            ):
                calls.agree_on(self, entry, ())
            captured = pending.capturing(stream)
            if captured:
                issuer.launch_captured(self, send, recv, stream)
            else:
                self.launch(send, recv, stream)
            pending.entered = None
            if noted:
                pending.note(stream, holder, keep, entry, captured)
        except BaseException as error:  # noqa: BLE001 (raised again)
            pending.entered = None
            issuer.not_issued(error, entry, keep, stream)
        elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += self.nbytes
        tally.seconds += elapsed
        if elapsed > reports.quiet:
            reports.report(entry, elapsed, None, None if captured else (keep, stream))


class StreamIssuer:
    """Puts calls on streams, and ends them.

    Parameters
    ----------
    calls : CallEngine
        The communicator's engine.
    backend : NcclBackend or None
        Puts calls on streams; None if the host takes part in all calls.
    device : int
        CUDA device of this rank.
    high_priority : bool
        Whether the stream of asynchronous calls has a higher priority than others.

    Attributes
    ----------
    calls, backend, device
        The parameters.
    pending : PendingCalls
        The calls that are under way.
    """

    def __init__(
        self,
        calls: CallEngine,
        backend: NcclBackend | None,
        device: int,
        *,
        high_priority: bool,
    ) -> None:
        check = (lambda: None) if backend is None else backend.check
        self.pending = PendingCalls(device, check, self._lost)
        self.calls = calls
        self.backend = backend
        self.device = device
        self._high_priority = high_priority
        self._own: Any = None  # the stream of asynchronous calls, once it is made
        self._process = os.getpid()
        self._until = math.inf  # when the process wants to be gone
        self._closed = False
        if backend is not None:
            calls.failure.translators.append(libnccl.translate)
            calls.failure.releases.append(self.abandon)
            _everyone.add(self)
            at_exit(ExitStep.DEVICES, _leave_all)

    def launch_captured(self, prepared: "StreamedCall", send: int, recv: int, stream: int) -> None:
        """Put a call on a stream from which a CUDA graph is captured."""
        calls, label, entry = self.calls, prepared.label, self.pending.entered
        assert entry is not None
        if prepared.ordered:
            # A call must be captured on all ranks or on none (NCCL's user guide, Using NCCL with CUDA Graphs).
            # So the ranks agree on each captured call.
            captured = compared(label.name, {**label.values, "captured": True}, label.nbytes)
            calls.compare(captured, entry)
        with streams.relaxed():  # a kernel of a fold may be loaded for the first time
            prepared.launch(send, recv, stream)

    def not_issued(
        self, error: BaseException, entry: CallRecord, keep: object, stream: int
    ) -> NoReturn:
        """Raise the error that kept a call from being put on a stream.

        If the watchdog released the call from the library, it is the error that the watchdog found. The refusal of a
        captured call is harmless, since nothing of it has run.
        """
        failure = self.calls.gate.error
        if failure is not None and isinstance(error, Exception):
            error = failure.__cause__ or failure
        harmless = isinstance(error, UsageError) and not streams.undisturbed(stream)
        self.calls.failed(error, entry, keep, harmless=harmless)

    def issue_apart(
        self, call: Call, label: CallFingerprint, queue: Queue, limit: float
    ) -> PendingCall:
        """Issue a call on the communicator's stream, ordered behind the stream of its arrays.

        Parameters
        ----------
        call : Call
            The call on device arrays.
        label : CallFingerprint
            The label of the asynchronous call.
        queue : tuple of int and object
            The stream on which the arrays are ready.
        limit : float
            Seconds to the deadline.
        """
        own, pending, prepared = self.own_stream(), self.pending, call.prepared
        assert isinstance(prepared, StreamedCall)
        launch = prepared.launch
        under_way: PendingCall | None = None

        def apart(send: int, recv: int, stream: int) -> None:
            nonlocal under_way
            with streams.on_device(self.device):
                ready = streams.marked(stream)
                streams.order(ready, own)
                launch(send, recv, own)
                entry = pending.entered
                assert entry is not None
                # A captured event belongs to the graph until the capture ends.
                under_way = pending_call(own, self._own, entry, (ready, call.keep))
                under_way.captured = pending.capturing(own)
                pending.note_alone(under_way)

        beside = replace(prepared, label=label, launch=apart, noted=False)
        beside.issue((*pointers(call), queue), call.keep, limit)
        assert under_way is not None
        trace = self.calls.reports.trace
        if trace is not None:
            trace.apart(under_way.entry, own)
        return under_way

    def agree(self, call: PendingCall, agreement: Steps) -> None:
        """Let the ranks agree on a call while it is under way."""
        calls = self.calls
        task = _Agreement(calls, call, agreement)
        calls.under_way[task] = call.entry
        calls.progress.submit(calls.queue, task)

    def own_stream(self) -> int:
        """Return the stream of asynchronous calls."""
        if self._own is None:
            self._own = streams.make_stream(self.device, high_priority=self._high_priority)
        pointer: int = self._own.ptr
        return pointer

    # Failure.

    def _lost(
        self, call: PendingCall | None, error: CommunicationError | None
    ) -> BaseException | None:
        """Note a failure that the watchdog found, and return its error; None if the call may wait on."""
        if error is None:
            assert call is not None
            causes, entry = CAUSES, call.entry
            if entry[LABEL].name in ("send", "recv", "send_recv", "batch"):
                causes = f"{CAUSES}; or both ends send before they receive: {TOGETHER}"
            error = self.calls.at_deadline(entry, perf_counter() - entry[BEGIN], causes)
            if error is None:
                call.expires = math.inf
                return None
        # Set before other threads can see the failure, since the thread that raises the error clears it.
        self.calls.failure.unraised = error
        if call is not None:
            call.error = error
        self.calls.fail(error)
        write_stderr(
            f"hpccomm: {error}\nhpccomm: communicator {self.calls.name!r} is aborted, so that its "
            "streams go on; results of its calls that were under way are undefined"
        )
        return error

    # The end.

    def close(self, free: Callable[[], None]) -> None:
        """Wait for all calls under way, and `free` what they needed, the library's communicators. Blocks.

        Raises
        ------
        CollectiveTimeout
            If the deadline of the communicator passes.
        """
        if self._closed or self._process != os.getpid():
            return
        self._drain(self.calls.timeout, self.calls.gate)
        self._closed = True
        _everyone.discard(self)
        captured = self.pending.captured
        self.pending.end()
        with streams.on_device(self.device):
            if captured and self.backend is not None and not self.backend.release(GRAPH_SECONDS):
                logger.warning(
                    "%s: NCCL keeps its communicators as long as there are CUDA graphs with their calls, "
                    "and frees them in a thread; drop the graphs before finalize",
                    self.calls.name,
                )
            free()

    def leave(self, until: float) -> None:
        """At the process's exit: free what can be freed soon, and abort the rest.

        Starts no thread: at exit Python may refuse to.

        Parameters
        ----------
        until : float
            When it is over, as ``time.perf_counter`` counts.
        """
        if self._closed or self._process != os.getpid() or self.calls.gate.error is not None:
            return
        self._until = until
        try:
            self._drain(max(0.0, self._left() - ABORT_SECONDS), Gate())
        except Exception as error:  # noqa: BLE001 (in any case, nothing may stay under way)
            self.calls.fail(error)
            return
        self._closed = True
        _everyone.discard(self)
        # Captured graphs are there still, as a rule, and NCCL would wait for them: it ends with the
        # process, and they before it.
        if self.backend is not None and not self.pending.captured:
            self.pending.end()
            if not self.backend.release(self._left(), leaving=True):
                logger.warning("%s: NCCL has not ended before the exit", self.calls.name)

    def _drain(self, timeout: float, gate: Gate) -> None:
        """Wait until nothing is under way."""

        def expired(elapsed: float) -> CommunicationError:
            calls = self.calls
            entry = calls.start_record(
                CallFingerprint("finalize", 0), DEVICE, timeout, ordered=False
            )
            error = calls.overdue(entry, elapsed)
            calls.fail(error)
            return error

        try:
            with streams.on_device(self.device):
                wait(self.pending.idle, timeout=timeout, gate=gate, expired=expired)
        except CommunicationError:
            self.calls.failure.unraised = None
            raise

    def abandon(self) -> None:
        """Release the device: the communicator has failed. From any thread; idempotent."""
        if self.backend is None or self._closed or self._process != os.getpid():
            return
        keep(*self.pending.abandon())
        _everyone.discard(self)
        patience = GRAPH_SECONDS if self.pending.captured else LET_GO_SECONDS
        self.backend.abort(min(patience, self._left()), lambda: self.pending.entered is not None)

    def _left(self) -> float:
        """Return the seconds that are left to this process."""
        return max(0.0, self._until - perf_counter())


_everyone: set[StreamIssuer] = set()
"""The open ones, also of collected communicators: the
device still uses their memory."""


def _leave_all() -> None:
    until = perf_counter() + DRAIN_SECONDS
    for each in list(_everyone):
        try:
            each.leave(until)
        except Exception:  # the others must still be looked after
            logger.exception("a communicator failed at exit")


class _Agreement(Task):
    """An agreement of the ranks on a call that is under way on the device."""

    __slots__ = ("_agreement", "_call", "_calls")

    def __init__(self, calls: CallEngine, call: PendingCall, agreement: Steps) -> None:
        super().__init__(calls.gate, call.entry[TIMEOUT], perf_counter())
        self._calls = calls
        self._call = call
        self._agreement = agreement

    def begin(self) -> Steps:
        return self._agreement

    def expired(self, elapsed: float) -> CommunicationError | None:
        return self._calls.at_deadline(self._call.entry, elapsed)

    def ended(self, error: BaseException | None) -> BaseException | None:
        calls, call = self._calls, self._call
        self._agreement = iter(())
        calls.under_way.pop(self, None)
        if error is None or error is calls.gate.error:
            return error
        raised = calls.failure.raised(error, call.entry, perf_counter() - self.started)
        call.error = calls.failure.unraised = raised
        calls.fail(raised)
        return raised
