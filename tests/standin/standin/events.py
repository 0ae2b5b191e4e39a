"""Events: moments of a stream."""

import itertools
import time

from standin import control, devices, graphs, streams
from standin.errors import NOT_READY, CUDARuntimeError

DISABLE_TIMING = 2

_numbers = itertools.count(0x7F20_0000_0000, 0x20)
by_pointer: dict[int, "Event"] = {}


class Event:
    """One event.

    Attributes
    ----------
    flags : int
        As it was created.
    device : devices.Device
        Of whose streams it can be a moment.
    marker : standin.streams.Marker or None
        What it waits for; None before it was recorded.
    captured : standin.graphs.Point or None
        Its place in a graph that is captured, if it was recorded there last.
    came : list of float
        When the last of these moments came, in seconds.
    """

    marker: streams.Marker | None = None
    captured: graphs.Point | None = None

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.device = devices.device()
        self.came = [0.0]


def create(flags: int) -> int:
    """Return the number of a new event of the current device."""
    graphs.forbid_beside_others()
    control.seen("eventCreate", flags)
    pointer = next(_numbers)
    by_pointer[pointer] = Event(flags)
    return pointer


def find(pointer: int) -> Event:
    """Return an event by its number."""
    devices.touch()
    return by_pointer[pointer]


def destroy(event: int) -> None:
    """End an event. Streams that wait for it still do."""
    find(event)
    del by_pointer[event]


def record(pointer: int, stream: streams.Stream) -> None:
    """Make an event the moment at which all that is on a stream has run."""
    control.seen("eventRecord", pointer, stream.pointer)
    event = find(pointer)
    if event.device is not stream.device:
        raise CUDARuntimeError(400)
    if stream.capture is not None:
        event.captured = stream.capture.point(stream)
        return
    event.captured = None
    event.came = came = [0.0]
    stream.put(lambda: came.append(time.perf_counter()))
    event.marker = stream.mark()


def order(stream: streams.Stream, pointer: int) -> None:
    """Have a stream wait for an event as it is now."""
    event = find(pointer)
    stream.device.check()
    if event.captured is not None and event.captured.capture.active:
        event.captured.capture.join(stream, event.captured)
    elif event.marker is not None:
        if stream.capture is not None:
            stream.capture.invalid = True
            raise CUDARuntimeError(905)
        stream.after(event.marker)


def _forbid_captured(event: Event) -> None:
    if event.captured is not None:
        if event.captured.capture.active:
            event.captured.capture.invalid = True
        raise CUDARuntimeError(907)


def query(pointer: int, *, driver: bool = False) -> int:
    """Return 0 if an event has come or was never recorded, else a status. Raises nothing, as CUDA.

    Asked of the driver it makes no context; a thread that has none current is refused.
    """
    control.seen("eventQuery", pointer)
    try:
        devices.count()
        if driver and not devices.has_current():
            return 201
        graphs.forbid_while_capturing()
        event = by_pointer[pointer] if driver else find(pointer)
        _forbid_captured(event)
        streams.await_driver(event.device, "" if driver else "eventQuery")
        if event.device.error:
            return event.device.error
    except CUDARuntimeError as error:
        return error.status
    return 0 if event.marker is None or event.marker.soon() else NOT_READY


def synchronize(event: int) -> None:
    """Block until an event has come."""
    graphs.forbid_while_capturing()
    found = find(event)
    _forbid_captured(found)
    if found.marker is not None:
        found.marker.wait()
    found.device.check()


def elapsed(start: int, end: int) -> float:
    """Return the milliseconds between two events."""
    first, last = find(start), find(end)
    for event in (first, last):
        _forbid_captured(event)
        if event.flags & DISABLE_TIMING or event.marker is None:
            raise CUDARuntimeError(400)
        if not event.marker.done():
            raise CUDARuntimeError(600)
    return (last.came[-1] - first.came[-1]) * 1e3
