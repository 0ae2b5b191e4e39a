"""Calls on streams that were issued and may not be done: their arrays, events and deadlines.

The arrays of a call must live until the device is done with them, and a call that never ends must
be noticed. An event behind each call shows its end, but recording an event takes as long as issuing a
small call. So calls that follow each other closely share an event, and a thread records the event of the
last ones.

A query to CUDA may wait in the driver for another thread, such as the thread that issues
calls: a stream has room for about a thousand calls, and behind a lost rank none of them ends. So the
watchdog never asks CUDA. Another thread does (`PendingCalls.look`). If that thread does not return, the
watchdog checks the deadlines alone (`PendingCalls.beat`). The device lane (`hpccomm.calls.lanes.streams`)
registers its calls here, and `work` asks whether they are over.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpccomm.errors import CommunicationError, PeerLost, UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.runtime.recorder import BEGIN, ENDED, LABEL, TIMEOUT, CallRecord
from hpccomm.runtime.waiting import Gate

MARK_SECONDS = 0.0005
"""Seconds within which calls share an event."""

MARK_BYTES = 1 << 20
"""Bytes from which the event of a call is recorded at once, since its arrays should be released soon."""

QUIET_SECONDS = 0.05
"""Seconds without a call after which `PendingCalls.look` records the event of the last calls."""

MISSED_BEATS = 50
"""Times that the watchdog finds a passed deadline, without a look of the other thread, before it acts: 5 s."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call, or several that follow each other on one stream and share an event.

    Attributes
    ----------
    stream : int
        The stream's handle.
    holder : object
        Keeps the stream alive until the calls are done.
    entry : list
        The record of the call whose deadline passes first.
    expires : float
        Time of that deadline (``time.perf_counter``).
    entries : list of list
        The records of all calls.
    keep : list
        Objects that must live until the calls are done.
    event : cupy.cuda.Event or None
        The event behind the calls; None if none is recorded yet, for example while the stream is captured.
    captured : bool
        Whether the calls were recorded into a graph: then only a stream can wait for the event.
    over : bool
        Whether the calls are done.
    error : BaseException or None
        The failure that ended them.
    """

    stream: int
    holder: object
    entry: CallRecord
    expires: float
    entries: list[CallRecord]
    keep: list[object] = field(default_factory=list)
    event: Any = None
    captured: bool = False
    over: bool = False
    error: BaseException | None = None


def pending_call(stream: int, holder: object, entry: CallRecord, keep: object) -> PendingCall:
    """Return one call that was put on a stream."""
    return PendingCall(stream, holder, entry, entry[BEGIN] + entry[TIMEOUT], [entry], [keep])


class PendingCalls:
    """The calls of one communicator that are under way on its device.

    Calls captured into a graph are not under way. Only their memory is kept, as long as the
    communicator lives, since the graph may be launched until then.

    Parameters
    ----------
    device : int
        Number of the CUDA device.
    check : callable
        ``check()`` raises if the library has noticed a failure.
    lost : callable
        ``lost(call, error)`` is called once something failed, from the thread that found it. It gets either the error,
        or the call whose deadline has passed; the other argument is None. It returns the error that ends the calls,
        or None if they go on.

    Attributes
    ----------
    device : int
        The parameter.
    capturing : callable
        ``capturing(stream)`` returns whether a graph is captured from a stream.
    entered : list or None
        The record of the call that is being put on a stream, else None. The library may wait for peers there: it
        connects ranks at the first call that needs the connection.
    looks : dict of callable to None
        The `Work.looked` of each work with callbacks: it calls them if the work is over, and
        returns whether it is.
    """

    def __init__(
        self,
        device: int,
        check: Callable[[], None],
        lost: Callable[[PendingCall | None, CommunicationError | None], BaseException | None],
    ) -> None:
        self.device = device
        self._check = check
        self._lost = lost
        self.capturing = streams.capture_query(device)
        self._lock = threading.Lock()
        self._open: PendingCall | None = None  # takes further calls, and has no event yet
        self._shared = 0.0  # when an event that calls share was recorded last
        self._under_way: deque[PendingCall] = deque()
        self._graphs: list[object] = []
        self._ended = False
        self._giving_up = threading.Lock()  # once, from whichever thread is first
        self._missed = 0  # beats since the last look that found a passed deadline
        self.entered: CallRecord | None = None
        self.looks: dict[Callable[[], bool], None] = {}

    def note(
        self, stream: int, holder: object, keep: object, entry: CallRecord, captured: bool = False
    ) -> None:
        """Remember a call that was put on a stream just now. Each call runs this, so it is short.

        `captured` says whether the call was recorded into a graph. A stream without a holder may be gone once the
        call has returned, so nothing is asked of that stream later.
        """
        if captured:
            self._graphs.append(keep)
            return
        call, begin, nbytes = self._open, entry[BEGIN], entry[LABEL].nbytes
        if (
            call is not None
            and call.stream == stream
            and begin - self._shared <= MARK_SECONDS
            and entry[TIMEOUT] >= call.entry[TIMEOUT]
            and nbytes < MARK_BYTES
            and holder is not None
        ):
            # No lock is needed: if another thread records the event just now, the event comes after this call.
            call.keep.append(keep)
            call.entries.append(entry)
            return
        with self._lock:
            call = self._open
            if call is not None and call.stream != stream:
                self._put_away(call)  # a graph may be captured from that stream now
                self._mark_later(call)
                call = None
            if call is None:
                call = self._open = pending_call(stream, holder, entry, keep)
            else:
                call.keep.append(keep)
                call.entries.append(entry)
                if begin + entry[TIMEOUT] < call.expires:
                    call.expires, call.entry = begin + entry[TIMEOUT], entry
            if begin - self._shared > MARK_SECONDS or nbytes >= MARK_BYTES or holder is None:
                self._shared = begin
                self._put_away(call)
                self._mark(call)
                self._let_go()

    def note_alone(self, call: PendingCall) -> None:
        """Remember a call as `note` does, with a separate event. `call.captured` says whether a graph is captured."""
        with self._lock:
            if call.captured:
                self._graphs.append(call)
            else:
                self._put_away(call)
            self._mark(call)
            self._let_go()

    def _put_away(self, call: PendingCall) -> None:
        """Let no further calls join a call. Under the lock."""
        if call is self._open:
            self._open = None
        self._under_way.append(call)

    def _mark(self, call: PendingCall) -> None:
        """Record the event of a call. Under the lock."""
        # The default stream has the same handle on each device, and another thread may capture a graph.
        with streams.on_device(self.device), streams.relaxed():
            call.event = streams.marked(call.stream)

    def _mark_later(self, call: PendingCall) -> None:
        """Record the event of a call, unless a graph is captured: then a later look records it. Under the lock.

        During a capture, the event would become a part of the graph, or end the capture.
        """
        if not streams.undisturbed(call.stream):
            return
        try:
            self._mark(call)
        except RuntimeError as error:  # of CUDA: a capture has begun meanwhile
            if getattr(error, "status", 0) not in streams.CAPTURE_ERRORS:
                raise
        if call.event and not streams.undisturbed(call.stream):
            # A graph may contain the event, so it must not be queried; another event is recorded later.
            call.event = None

    def _let_go(self) -> None:
        """Release finished calls, up to the first unfinished one. Under the lock; short."""
        under_way = self._under_way
        while under_way and self._is_done(under_way[0]):
            self._end(under_way.popleft())

    def _sweep(self) -> None:
        """Release all finished calls of all streams. Under the lock."""
        for call in tuple(self._under_way):
            if not call.event:
                self._mark_later(call)
            if self._is_done(call):
                self._under_way.remove(call)
                self._end(call)

    def _is_done(self, call: PendingCall) -> bool:
        if call.over or not call.event:
            return call.over
        status = streams.event_status(call.event)
        if status == streams.CAPTURED_EVENT:
            call.event = None  # it belongs to a graph
        return streams.come(status)

    def _end(self, call: PendingCall) -> None:
        """Note that a call is done, unless an abort has completed its event."""
        if self._ended:
            return
        call.over = True
        call.keep, call.holder = [], None
        now = time.perf_counter()
        for entry in call.entries:
            entry[ENDED] = now - entry[BEGIN]

    def done(self, call: PendingCall) -> bool:
        """Tell whether a call of `note_alone` is over. Never blocks.

        Raises
        ------
        CommunicationError
            If CUDA has failed.
        """
        # NCCL's abort, which follows `abandon`, completes the events of stuck calls, perhaps during this query. So
        # `_end` checks `_ended` again.
        if not (call.over or self._ended or call.event is None) and streams.ready(call.event):
            self._end(call)
        return call.over

    def idle(self) -> bool:
        """Record the missing events, and return whether no call is under way."""
        with self._lock:
            if self._open is not None:
                self._put_away(self._open)
            self._sweep()
            return not self._under_way

    def look(self, now: float) -> None:
        """Check the calls under way. A separate thread calls it, since it may wait in the driver."""
        if not self._ended:
            self._look(now)
        self._tell()

    def _tell(self) -> None:
        """Have the works that are over call their callbacks."""
        for look in tuple(self.looks):
            if look():
                self.looks.pop(look, None)

    def _look(self, now: float) -> None:
        try:
            streams.look_from_here(self.device)
            with self._lock:
                last = self._open
                if last is not None and now - last.entries[0][BEGIN] > QUIET_SECONDS:
                    self._put_away(last)
                self._sweep()
            self._check()
        except CommunicationError as error:
            self._give_up(None, error)
            return
        except RuntimeError as error:  # of CUDA: no later query will succeed
            self._give_up(None, CommunicationError(f"CUDA has failed: {error}"))
            return
        self._missed = 0
        overdue = self._overdue(now)
        if overdue is not None:
            self._give_up(overdue, None)

    def beat(self, now: float) -> None:
        """Check the deadlines, in case `look` does not return. For the watchdog; never blocks."""
        overdue = None if self._ended else self._overdue(now)
        self._missed = 0 if overdue is None else self._missed + 1
        if self._missed > MISSED_BEATS:
            self._give_up(overdue, None)

    def _overdue(self, now: float) -> PendingCall | None:
        return next((call for call in self._all() if now > call.expires and not call.over), None)

    def _all(self) -> tuple[PendingCall, ...]:
        """Return the calls that are under way or being issued. It takes no lock, since others may hold that."""
        calls = [*self._under_way.copy()]  # one step of the interpreter
        last, entered = self._open, self.entered
        if last is not None:
            calls.append(last)
        if entered is not None:
            calls.append(pending_call(0, None, entered, None))
        return tuple(calls)

    def _give_up(self, call: PendingCall | None, error: CommunicationError | None) -> None:
        if not self._giving_up.acquire(blocking=False):
            return
        self._ended = True
        raised = self._lost(call, error)
        if raised is None:
            self._ended = False
            self._giving_up.release()
            return
        for each in self._all():
            each.error = each.error or raised
        self._tell()  # the thread for devices may not return

    @property
    def captured(self) -> bool:
        """Whether calls were captured into graphs, which may still exist."""
        return bool(self._graphs)

    def end(self) -> None:
        """Stop the checks, and release the memory of captured calls."""
        with self._lock:
            self._ended = True
            self._graphs.clear()
        self._tell()  # the checks may not run again

    def abandon(self) -> Sequence[object]:
        """Stop the checks, and return the objects that the device may still use."""
        self._ended = True
        return (*self._under_way, self._open, self._graphs)


@dataclass(slots=True)
class StreamCall:
    """A call of `PendingCalls.note_alone`, for its `Work`.

    Attributes
    ----------
    pending : PendingCalls
        The `PendingCalls` that the call was added to.
    call : PendingCall
        The call.
    current : callable
        Returns the current stream of the arrays' framework, in the calling thread.
    """

    pending: PendingCalls
    call: PendingCall
    current: Callable[[], Queue]

    def failure(self, gate: Gate) -> BaseException | None:
        """Return the error that ended the call, or the error in the communicator's `gate`; None without one.

        Asks no device.
        """
        call, failure = self.call, gate.error
        if call.error is not None or call.over or failure is None:
            return call.error
        cause = failure.__cause__
        # This call waits for a lost rank as well.
        return cause if isinstance(cause, PeerLost) else failure

    def done(self) -> bool:
        """Ask the device whether the call is over. Never blocks.

        Raises
        ------
        UsageError
            If the call was recorded into a graph.
        CommunicationError
            If CUDA has failed.
        """
        if self.call.captured:
            raise UsageError(
                "this operation was recorded into a CUDA graph and is not under way; wait for the graph that was "
                "launched instead, or ask its stream"
            )
        return self.pending.done(self.call)

    def order(self) -> None:
        """Order the current stream behind the call."""
        call = self.call
        if not call.over or call.captured:
            # The current stream may be this device's default stream.
            with streams.on_device(self.pending.device):
                streams.order(call.event, self.current()[0])
