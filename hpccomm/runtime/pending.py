"""Calls on streams that were issued and are not known to be done.

What a call reads and writes must live until the device is done with it, and somebody must notice when
it never is. An event behind each call tells, but recording one takes as long as issuing a small call:
so calls that follow each other closely share one. The watchdog records the event of those that came
last.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpccomm.errors import CommunicationError
from hpccomm.memory.cuda import streams
from hpccomm.runtime.recorder import BEGIN, ENDED, LABEL, TIMEOUT, Entry

MARK_SECONDS = 0.0005
"""Calls within so many seconds share an event."""

MARK_BYTES = 1 << 20
"""A call on so many bytes has one of its own: what it holds should be let go soon."""

QUIET_SECONDS = 0.05
"""After so many seconds without a call the watchdog records the event of the last ones."""

KEPT_EVENTS = 256
"""Events that are kept for later calls."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call, or some that follow each other on one stream.

    Attributes
    ----------
    stream, holder : int and object
        Where they are, and what keeps that stream until the event is recorded.
    entry : list
        The record of the one whose deadline passes first.
    expires : float
        When it passes (``time.perf_counter``).
    entries : list of list
        The records of all.
    keep : list
        What must live until they are done.
    event : int
        Comes after them; 0 as long as none was recorded.
    owner : object or None
        Ends the event with the call; None where it belongs to the `PendingCalls`.
    captured : bool
        Whether they were recorded into a graph: the event can be waited for on a stream alone.
    over : bool
        Whether they are done or given up.
    error : BaseException or None
        What ended them.
    """

    stream: int
    holder: object
    entry: Entry
    expires: float
    entries: list[Entry]
    keep: list[object] = field(default_factory=list)
    event: int = 0
    owner: object | None = None
    captured: bool = False
    over: bool = False
    error: BaseException | None = None


def pending_call(stream: int, holder: object, entry: Entry, keep: object) -> PendingCall:
    """Return one call that was put on a stream."""
    return PendingCall(stream, holder, entry, entry[BEGIN] + entry[TIMEOUT], [entry], [keep])


class PendingCalls:
    """The calls of one communicator that are under way on its device.

    Calls that are captured into a graph are not under way: only what they touch is kept, as long as the
    communicator lives, since the graph may be launched until then.

    Parameters
    ----------
    device : int
        CUDA device.
    check : callable
        Raises if the library noticed that something failed.
    lost : callable
        ``lost(call, error)`` is called once with what failed (``error``) or whose deadline passed
        (None), and returns the error. From the watchdog's thread.

    Attributes
    ----------
    entered : list or None
        While a call is being put on a stream, its record. The library may wait for peers in it: it
        connects them when they first need it.
    """

    def __init__(
        self,
        device: int,
        check: Callable[[], None],
        lost: Callable[[PendingCall | None, CommunicationError | None], BaseException | None],
    ) -> None:
        self._device = device
        self._check = check
        self._lost = lost
        self._is_capturing = streams.capture_query()
        self._lock = threading.Lock()
        self._open: PendingCall | None = None  # takes further calls, and has no event yet
        self._shared = 0.0  # when an event that calls share was recorded last
        self._under_way: deque[PendingCall] = deque()
        self._events: list[int] = []
        self._graphs: list[object] = []
        self._ended = False
        self.entered: Entry | None = None

    def note(self, stream: int, holder: object, keep: object, entry: Entry) -> None:
        """Remember a call that was put on a stream just now. It costs each call, so it is short.

        A stream without a holder may be gone when the call has returned: it is asked for nothing more.
        """
        if self._is_capturing(stream):
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
                self._mark(call)
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
                self._mark(call)
                self._let_go()

    def note_alone(self, call: PendingCall) -> None:
        """Remember a call as `note` does, with an event of its own."""
        call.owner = owner = streams.owned_event()
        call.event = owner.ptr
        call.captured = bool(self._is_capturing(call.stream))
        with self._lock:
            if call.captured:
                streams.record(call.event, call.stream)
                self._graphs.append(call)
            else:
                self._mark(call)
                self._let_go()

    def _mark(self, call: PendingCall) -> None:
        """Record the event of a call. Under the lock."""
        if call is self._open:
            self._open = None
        with streams.on_device(self._device):  # the default stream has the same number on each
            if not call.event:
                call.event = self._take()
            streams.record(call.event, call.stream)
        call.holder = None
        self._under_way.append(call)

    def _take(self) -> int:
        return self._events.pop() if self._events else streams.make_event()

    def event(self) -> int:
        """Return an event for a short while; `give` takes it back."""
        with self._lock:
            return self._take()

    def give(self, event: int) -> None:
        """Take an event back that nobody waits for any more."""
        with self._lock:
            self._give(event)

    def _give(self, event: int) -> None:
        if self._ended or len(self._events) >= KEPT_EVENTS:
            streams.drop_event(event)
        else:
            self._events.append(event)

    def _let_go(self) -> None:
        """Let go of what is done, up to the first that is not. Under the lock; short."""
        under_way = self._under_way
        while under_way and (under_way[0].over or streams.ready(under_way[0].event)):
            self._finish(under_way.popleft())

    def _sweep(self) -> None:
        """Let go of all that is done, whichever streams others still wait on. Under the lock."""
        for _ in range(len(self._under_way)):
            call = self._under_way.popleft()
            if call.over or streams.ready(call.event):
                self._finish(call)
            else:
                self._under_way.append(call)

    def _finish(self, call: PendingCall) -> None:
        _end(call)
        if call.owner is None:
            self._give(call.event)

    def done(self, call: PendingCall) -> bool:
        """Tell whether a call of `note_alone` is over. Never blocks.

        Raises
        ------
        CommunicationError
            If CUDA has failed.
        """
        if not call.over and streams.ready(call.event):
            _end(call)
        return call.over

    def idle(self) -> bool:
        """Tell whether nothing is under way, having recorded the events that are missing."""
        with self._lock:
            if self._open is not None and streams.undisturbed(self._open.stream):
                self._mark(self._open)
            self._sweep()
            return not self._under_way and self._open is None

    def look(self, now: float) -> None:
        """Look after what is under way: for the watchdog, from its thread."""
        if self._ended:
            return
        try:
            streams.look_from_here(self._device)
            with self._lock:
                last = self._open
                # An event that another thread records while a graph is captured would become a part of
                # it, or end it: the next look tries again.
                if (
                    last is not None
                    and now - last.entries[0][BEGIN] > QUIET_SECONDS
                    and streams.undisturbed(last.stream)
                ):
                    self._mark(last)
                self._sweep()
            self._check()
        except CommunicationError as error:
            self._give_up(None, error)
            return
        except RuntimeError as error:  # CUDA's: nothing that is asked of it will come any more
            self._give_up(None, CommunicationError(f"CUDA has failed: {error}"))
            return
        for call in self._all():
            if now > call.expires:
                self._give_up(call, None)
                return

    def _all(self) -> tuple[PendingCall, ...]:
        """Return what is under way, and what is being issued."""
        with self._lock:
            calls = [*self._under_way]
            if self._open is not None:
                calls.append(self._open)
        entered = self.entered
        if entered is not None:
            calls.append(pending_call(0, None, entered, None))
        return tuple(calls)

    def _give_up(self, call: PendingCall | None, error: CommunicationError | None) -> None:
        self._ended = True
        raised = self._lost(call, error)
        if raised is None:
            self._ended = False
            return
        for each in self._all():
            each.error = each.error or raised

    @property
    def captured(self) -> bool:
        """Whether calls were captured: into graphs that may be there still."""
        return bool(self._graphs)

    def end(self) -> None:
        """Look no more, and forget what there is. Events that are out are given up with CUDA."""
        with self._lock:
            self._ended = True
            for event in self._events:
                streams.drop_event(event)
            self._events.clear()
            self._graphs.clear()

    def abandon(self) -> Sequence[object]:
        """Look no more; return what may still be in use."""
        self._ended = True
        return (*self._under_way, self._open, self._graphs)


def _end(call: PendingCall) -> None:
    """Note that a call is done."""
    call.over = True
    call.keep = []
    now = time.perf_counter()
    for entry in call.entries:
        entry[ENDED] = now - entry[BEGIN]
