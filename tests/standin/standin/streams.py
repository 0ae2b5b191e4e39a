"""Streams: what is put on one runs in order, in a thread of its own, some time later."""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from standin import control, devices
from standin.errors import NOT_READY, CUDARuntimeError

Operation = Callable[[], None]

LEGACY, PER_THREAD = 1, 2
NON_BLOCKING = 1

_IDLE = 1.0
"""Seconds after which the thread of a stream with nothing to do ends; it is started again."""

_GLANCE = 1e-4
"""Seconds that asking for what has not run yet takes at most."""

_numbers = itertools.count(0x7F10_0000_0000, 0x40)
_by_pointer: dict[int, "Stream"] = {}
_lock = threading.RLock()
_local = threading.local()


class Marker(NamedTuple):
    """All that was on a stream at some moment."""

    stream: "Stream"
    number: int

    def done(self) -> bool:
        """Tell whether it has run."""
        return self.stream.completed >= self.number

    def soon(self) -> bool:
        """Tell whether it has run, or does so now.

        Who asks again and again would keep the interpreter from the thread that it waits for.
        """
        if self.done():
            return True
        with self.stream.condition:
            return self.stream.condition.wait_for(self.done, _GLANCE)

    def wait(self) -> None:
        """Block until it has run."""
        with self.stream.condition:
            self.stream.condition.wait_for(self.done)


class Stream:
    """One stream of a device.

    Attributes
    ----------
    pointer : int
        The number that it is known by.
    device : devices.Device
        Where it is.
    flags, priority : int
        As it was created.
    capture : standin.graphs.Capture or None
        The capture that it belongs to.
    issued, completed : int
        Operations that were put on it, and that have run.
    crowd : int
        Threads that wait in the driver for room on it.
    """

    capture: Any = None
    issued = completed = crowd = 0
    _running = False

    def __init__(self, device: devices.Device, flags: int, priority: int, pointer: int) -> None:
        self.pointer = pointer
        self.device = device
        self.flags = flags
        self.priority = priority
        self.condition = threading.Condition()
        self._queue: deque[Operation] = deque()
        device.streams.append(self)

    @property
    def legacy(self) -> bool:
        """Whether it is the legacy default stream."""
        return self.pointer == 0

    @property
    def blocking(self) -> bool:
        """Whether it waits for the legacy default stream, and that for it."""
        return not self.flags & NON_BLOCKING

    def put(self, operation: Operation, communicators: tuple = (), *, counts: bool = True) -> None:
        """Have an operation run after all that is on the stream, which needs room there if it `counts`.

        While the stream is captured it becomes part of the graph instead; `communicators` are those
        that the operation uses.
        """
        self.device.check()
        if self.capture is not None:
            self.capture.add(self, operation, communicators)
            return
        for marker in self._before():
            self.append(marker.wait, counts)
        self.append(operation, counts)

    def mark(self) -> Marker:
        """Return what is on the stream so far."""
        return Marker(self, self.issued)

    def after(self, marker: Marker) -> None:
        """Have what is put on the stream from now on wait."""
        if marker.stream is not self and not marker.done():
            self.append(marker.wait)

    def query(self) -> int:
        """Return 0 if all has run, else the status of not being ready, or of an error."""
        if self.device.error:
            return self.device.error
        return 0 if all(marker.done() for marker in self._last()) else NOT_READY

    def synchronize(self) -> None:
        """Block until all that is on it has run."""
        for marker in self._last():
            marker.wait()
        self.device.check()

    def _last(self) -> list[Marker]:
        return [self.mark(), *(self._before() if self.legacy else ())]

    def _before(self) -> list[Marker]:
        """Return what an operation waits for by the rules of the legacy default stream."""
        if not self.blocking:
            return []
        if self.legacy:
            others = [s for s in tuple(self.device.streams) if s.blocking and s is not self]
            for other in others:
                if other.capture is not None:
                    other.capture.invalid = True
                    raise CUDARuntimeError(906)
        else:
            others = self.device.streams[:1]
        return [other.mark() for other in others if other.completed < other.issued]

    def append(self, operation: Operation, counts: bool = True) -> None:
        """Have an operation run after all that is on the stream, whatever that waits for."""
        with self.condition:
            if counts and len(self._queue) >= control.queue():  # about a thousand on a real one
                self.crowd += 1
                self.condition.wait_for(lambda: len(self._queue) < control.queue())
                self.crowd -= 1
            self._queue.append(operation)
            self.issued += 1
            if self._running:
                self.condition.notify_all()
                return
            self._running = True
        threading.Thread(target=self._run, name=f"stream {self.pointer:#x}", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self.condition:
                if not self._queue:
                    self.condition.wait_for(lambda: self._queue, _IDLE)
                if not self._queue:
                    self._running = False
                    return
                operation = self._queue.popleft()
                self.condition.notify_all()
            control.late()
            try:
                if not self.device.error:
                    operation()
            except CUDARuntimeError as error:
                self.device.lose(error.status, str(error))
            except BaseException:  # whatever it is, the stream goes on and the device is lost
                self.device.lose(719, "an operation on a stream has failed")
            del operation
            with self.condition:
                self.completed += 1
                self.condition.notify_all()


def create(flags: int, priority: int) -> Stream:
    """Return a new stream of the current device."""
    device = devices.device()
    find(0)
    with _lock:
        stream = Stream(device, flags, priority, next(_numbers))
        _by_pointer[stream.pointer] = stream
    return stream


def find(pointer: int, device: int | None = None) -> Stream:
    """Return a stream by its number; the default streams are those of `device`, else the current one."""
    found = _by_pointer.get(pointer)
    if found is not None:
        if device is None:
            devices.touch()
        return found
    there = devices.device(device)
    if pointer in (0, LEGACY):
        with _lock:
            return there.streams[0] if there.streams else Stream(there, 0, 0, 0)
    if pointer == PER_THREAD:
        find(0, there.number)
        mine = _local.__dict__.setdefault("streams", {})
        if there.number not in mine:
            mine[there.number] = Stream(there, 0, 0, PER_THREAD)
        return mine[there.number]
    raise CUDARuntimeError(400)


def destroy(stream: int) -> None:
    """End a stream; what is on it still runs."""
    with _lock:
        found = _by_pointer.pop(stream)
        if found.completed == found.issued:
            found.device.streams.remove(found)
            return
    # The legacy default stream must still wait for what runs.
    found.append(lambda: found.device.streams.remove(found))


def await_driver(device: devices.Device, what: str = "") -> None:
    """Block while another thread is in the driver, where it waits for room on a stream of a device.

    `what` is a function of CuPy that holds the interpreter's lock meanwhile: it would never return.
    """
    for stream in tuple(device.streams):
        if stream.crowd and what:
            control.violation(f"{what} waits in the driver and holds the interpreter's lock")
        with stream.condition:
            stream.condition.wait_for(lambda stream=stream: not stream.crowd)


def synchronize(device: devices.Device) -> None:
    """Block until all streams of a device are through."""
    for stream in tuple(device.streams):
        if stream.capture is not None:
            stream.capture.invalid = True
            raise CUDARuntimeError(900)
        stream.mark().wait()
    device.check()
