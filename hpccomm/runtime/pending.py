"""Calls on streams that were issued and may not be done: their arrays, events and deadlines.

The arrays of a call must live until the device is done with them, and a call that never ends must
be noticed. An event behind each call shows its end, but recording one takes as long as issuing a
small call. So calls that follow each other closely share one; a thread records the event of the
last ones.

A query to CUDA may wait in the driver for another thread there, such as the thread that issues
calls: a stream has room for about a thousand, and behind a lost rank none of them ends. So the
watchdog never asks CUDA. Another thread does (`PendingCalls.look`). If it does not return, the
watchdog goes by the deadlines alone (`PendingCalls.beat`). The device lane registers its calls
here.
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
"""Bytes from which a call has an event of its own: its arrays should be released soon."""

QUIET_SECONDS = 0.05
"""Seconds without a call after which the watchdog records the event of the last ones."""

MISSED_BEATS = 50
"""Times that the watchdog finds a passed deadline without a look, before it acts: 5 s."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call, or some that follow each other on one stream.

    Attributes
    ----------
    stream, holder : int and object
        Where they are, and what keeps that stream until they are done.
    entry : list
        The record of the one whose deadline passes first.
    expires : float
        When it passes (``time.perf_counter``).
    entries : list of list
        The records of all.
    keep : list
        What must live until they are done.
    event : cupy.cuda.Event or None
        Comes after them; None as long as none was recorded, which is while their stream is captured too.
    captured : bool
        Whether they were recorded into a graph: the event can be waited for on a stream alone.
    over : bool
        Whether they are done or abandoned.
    error : BaseException or None
        What ended them.
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
        CUDA device.
    check : callable
        Raises if the library noticed that something failed.
    lost : callable
        ``lost(call, error)`` is called once with the call that failed (``error``) or passed its
        deadline (None), and returns the error. From the watchdog's thread.

    Attributes
    ----------
    device : int
        The parameter.
    capturing : callable
        Returns whether a graph is captured from a stream.
    entered : list or None
        While a call is being put on a stream, its record. The library may wait for peers in it: it
        connects them when they first need it.
    looks : dict of callable to None
        Of works that have functions to call at their end: ``look()`` calls them if the work is over, and
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
        self._missed = 0  # beats since the last look, with a deadline that has passed
        self.entered: CallRecord | None = None
        self.looks: dict[Callable[[], bool], None] = {}

    def note(
        self, stream: int, holder: object, keep: object, entry: CallRecord, captured: bool = False
    ) -> None:
        """Remember a call that was put on a stream just now. It costs each call, so it is short.

        `captured` says whether it was recorded into a graph. A stream without a holder may be gone when the call has returned: it is asked for nothing more.
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
            # Without the lock: if the watchdog records the event just now, that comes after this call.
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
        """Remember a call as `note` does, with an event of its own. Whether it is captured, it says."""
        with self._lock:
            if call.captured:
                self._graphs.append(call)
            else:
                self._put_away(call)
            self._mark(call)
            self._let_go()

    def _put_away(self, call: PendingCall) -> None:
        """Have no further calls join a call. Under the lock."""
        if call is self._open:
            self._open = None
        self._under_way.append(call)

    def _mark(self, call: PendingCall) -> None:
        """Record the event of a call. Under the lock."""
        # The default stream has the same number on each device, and another thread may capture a graph.
        with streams.on_device(self.device), streams.relaxed():
            call.event = streams.marked(call.stream)

    def _mark_later(self, call: PendingCall) -> None:
        """Record the event of a call, unless a graph is captured: then a later look does. Under the lock.

        The event would become a part of the graph, or end the capture.
        """
        if not streams.undisturbed(call.stream):
            return
        try:
            self._mark(call)
        except RuntimeError as error:  # CUDA's: the capture has begun since
            if getattr(error, "status", 0) not in streams.CAPTURE_ERRORS:
                raise
        if call.event and not streams.undisturbed(call.stream):
            call.event = (
                None  # a graph may have it: it must not be asked for, and another is recorded later
            )

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
            call.event = None  # a graph has it
        return streams.come(status)

    def _end(self, call: PendingCall) -> None:
        """Note that a call is done, unless an abort has completed it."""
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
        # NCCL's abort, which comes after `abandon`, completes the events of calls that were stuck: also one that is
        # asked for just now.
        if not (call.over or self._ended or call.event is None) and streams.ready(call.event):
            self._end(call)
        return call.over

    def idle(self) -> bool:
        """Tell whether nothing is under way, having recorded the events that are missing."""
        with self._lock:
            if self._open is not None:
                self._put_away(self._open)
            self._sweep()
            return not self._under_way

    def look(self, now: float) -> None:
        """Check the calls under way, from a thread of its own, which may wait in the driver."""
        if not self._ended:
            self._look(now)
        self._tell()

    def _tell(self) -> None:
        """Have the works that are over call what waits for their end."""
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
        except RuntimeError as error:  # CUDA's: nothing that is asked of it will come any more
            self._give_up(None, CommunicationError(f"CUDA has failed: {error}"))
            return
        self._missed = 0
        overdue = self._overdue(now)
        if overdue is not None:
            self._give_up(overdue, None)

    def beat(self, now: float) -> None:
        """Go by the deadlines where `look` does not come back. For the watchdog; never blocks."""
        overdue = None if self._ended else self._overdue(now)
        self._missed = 0 if overdue is None else self._missed + 1
        if self._missed > MISSED_BEATS:
            self._give_up(overdue, None)

    def _overdue(self, now: float) -> PendingCall | None:
        return next((call for call in self._all() if now > call.expires and not call.over), None)

    def _all(self) -> tuple[PendingCall, ...]:
        """Return the calls under way and being issued. Without the lock, which others may hold."""
        calls = [*self._under_way.copy()]  # in one step of the interpreter
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
        self._tell()  # from the watchdog, where the thread for devices does not come back

    @property
    def captured(self) -> bool:
        """Whether calls were captured: into graphs that may be there still."""
        return bool(self._graphs)

    def end(self) -> None:
        """Stop the checks, and forget all calls. Recorded events are abandoned with CUDA."""
        with self._lock:
            self._ended = True
            self._graphs.clear()
        self._tell()  # nobody may look any more

    def abandon(self) -> Sequence[object]:
        """Look no more; return what may still be in use."""
        self._ended = True
        return (*self._under_way, self._open, self._graphs)


@dataclass(slots=True)
class StreamCall:
    """A call of `PendingCalls.note_alone`, as its `Work` sees it.

    Attributes
    ----------
    pending : PendingCalls
        Where it was noted.
    call : PendingCall
        The call.
    current : callable
        Returns the current stream of the arrays' framework, in the thread that calls.
    """

    pending: PendingCalls
    call: PendingCall
    current: Callable[[], Queue]

    def failure(self, gate: Gate) -> BaseException | None:
        """Return what has ended it, which the `gate` of its communicator may say; None so far. Asks no device."""
        call, failure = self.call, gate.error
        if call.error is not None or call.over or failure is None:
            return call.error
        cause = failure.__cause__
        return cause if isinstance(cause, PeerLost) else failure  # it waits for that rank as well

    def done(self) -> bool:
        """Ask the device whether it is over. Never blocks.

        Raises
        ------
        UsageError
            If it was recorded into a graph.
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
        """Have the current stream go on behind it."""
        call = self.call
        if not call.over or call.captured:
            with streams.on_device(self.pending.device):  # whose default stream may be meant
                streams.order(call.event, self.current()[0])
