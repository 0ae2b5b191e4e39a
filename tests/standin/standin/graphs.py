"""Capture of what is put on streams into graphs, and their replay."""

import itertools
import threading
from contextlib import suppress
from typing import NamedTuple

from standin import control, streams
from standin.errors import CUDARuntimeError

GLOBAL, RELAXED = 0, 2

_numbers = itertools.count(0x7F30_0000_0000, 0x80)
_graphs: dict[int, "Graph"] = {}
_captures: list["Capture"] = []
_local = threading.local()


class Point(NamedTuple):
    """A place in a graph that is captured: how much of each stream comes before it."""

    capture: "Capture"
    clock: dict["streams.Stream", int]


class Graph(NamedTuple):
    """What was captured, in the order in which it was issued, and the communicators that it uses."""

    operations: tuple
    communicators: tuple


class Capture:
    """One capture that is under way.

    Attributes
    ----------
    active : bool
        Whether it has not ended.
    invalid : bool
        Whether an error has spoilt it: it can then only be ended.
    """

    def __init__(self, origin: streams.Stream, mode: int) -> None:
        self.origin = origin
        self.mode = mode
        self.thread = threading.get_ident()
        self.active = True
        self.invalid = False
        self._operations: list = []
        self._communicators: list = []
        self._clocks: dict[streams.Stream, dict[streams.Stream, int]] = {origin: {}}

    def add(self, stream, operation, communicators) -> None:
        """Take an operation into the graph."""
        self._check()
        self._operations.append(operation)
        for communicator in communicators:
            if communicator not in self._communicators:
                communicator.hold()
                self._communicators.append(communicator)
        clock = self._clocks[stream]
        clock[stream] = clock.get(stream, 0) + 1

    def point(self, stream: streams.Stream) -> Point:
        """Return the place after all that was captured of a stream."""
        self._check()
        return Point(self, dict(self._clocks[stream]))

    def join(self, stream: streams.Stream, point: Point) -> None:
        """Have a stream wait for a place in the graph: it is captured too from now on."""
        self._check()
        stream.capture = self
        clock = self._clocks.setdefault(stream, {})
        for other, count in point.clock.items():
            clock[other] = max(clock.get(other, 0), count)

    def end(self, stream: streams.Stream) -> int:
        """End it, and return the number of the graph."""
        self.active = False
        _captures.remove(self)
        for captured in self._clocks:
            captured.capture = None
        status = 901 if self.invalid else 0
        seen = self._clocks[stream]
        for other, clock in self._clocks.items():
            if seen.get(other, 0) < clock.get(other, 0):
                status = status or 904
        if status:
            for communicator in self._communicators:
                communicator.let_go()
            raise CUDARuntimeError(status)
        pointer = next(_numbers)
        _graphs[pointer] = Graph(tuple(self._operations), tuple(self._communicators))
        return pointer

    def _check(self) -> None:
        if self.invalid:
            raise CUDARuntimeError(901)


def begin(stream: streams.Stream, mode: int) -> None:
    """Capture what is put on a stream from now on."""
    stream.capture = Capture(stream, mode)
    _captures.append(stream.capture)


def forget() -> None:
    """Give up the captures that a test has left, and the calling thread's mode."""
    exchange_mode(GLOBAL)
    while _captures:
        _captures[-1].invalid = True
        with suppress(CUDARuntimeError):
            _captures[-1].end(_captures[-1].origin)


def capturing(stream: streams.Stream) -> bool:
    """Tell whether a stream is captured; once that was spoilt CuPy raises."""
    blocking = [each.origin.device for each in _captures if each.origin.blocking]
    if stream.legacy and stream.device in blocking:
        raise CUDARuntimeError(906)
    if stream.capture is not None and stream.capture.invalid:
        raise RuntimeError("an error has invalidated the capture sequence")
    return stream.capture is not None


def exchange_mode(mode: int) -> int:
    """Set the calling thread's capture mode, global at first, and return what it was."""
    before = getattr(_local, "mode", GLOBAL)
    _local.mode = mode
    return before


def forbid_while_capturing() -> None:
    """Refuse, and spoil the captures that forbid it, a call that CUDA holds to be unsafe then.

    Such are all that wait for or ask about what runs, and that allocate or free memory. The mode of the
    calling thread says which captures forbid it: of a global one, those that this thread began unless
    relaxed, and those that others began in global mode; of a thread-local one, the former; of a relaxed
    one, none (CUDA Runtime API, cudaThreadExchangeStreamCaptureMode).
    """
    me, mine = threading.get_ident(), getattr(_local, "mode", GLOBAL)
    spoilt = [
        capture
        for capture in tuple(_captures)
        if mine != RELAXED
        and (capture.mode != RELAXED if capture.thread == me else capture.mode == mine == GLOBAL)
    ]
    for capture in spoilt:
        capture.invalid = True
    if spoilt:
        raise CUDARuntimeError(900)


def forbid_beside_others() -> None:
    """Note that an event or a stream is made while another thread captures in global mode.

    CUDA does not say whether that ends the capture, as an allocation does; a relaxed thread may do it.
    """
    me, mine = threading.get_ident(), getattr(_local, "mode", GLOBAL)
    if mine == GLOBAL and any(c.mode == GLOBAL and c.thread != me for c in tuple(_captures)):
        control.violation("an event or a stream was made beside another thread's capture")


def launch(pointer: int, stream: streams.Stream) -> None:
    """Put the operations of a graph on a stream."""
    graph = _graphs[pointer]

    def replay() -> None:
        for operation in graph.operations:
            operation()

    for communicator in graph.communicators:
        communicator.order(stream)
    stream.put(replay, graph.communicators)
    for communicator in graph.communicators:
        communicator.launched(stream)


def destroy(graphExec: int) -> None:
    """End a graph; what was launched still runs."""
    graph = _graphs.pop(graphExec, None)
    if graph is not None:
        for communicator in graph.communicators:
            communicator.let_go()
