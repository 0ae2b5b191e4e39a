"""Streams and events, as CuPy has them."""

import sys
import threading
from collections import defaultdict
from typing import Any

from cupy.cuda import graph, runtime
from standin import events, graphs, streams


class _PerThread(threading.local):
    """The calling thread's streams of each device, the current one last, and which devices it entered some of."""

    def __init__(self):
        self.devices: list[int] = []
        self.stacks: dict[int, list[Any]] = defaultdict(lambda: [Stream.null])


_mine = _PerThread()


def get_current_stream(device_id=-1):
    return _mine.stacks[runtime.getDevice() if device_id == -1 else device_id][-1]


def _matching(device_id):
    current = runtime.getDevice()
    if device_id not in (-1, current):
        raise RuntimeError("The device of the stream does not match with the current device")
    return current


class Event:
    """An event that ends with its object."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.ptr = 0
        self.ptr = events.create(disable_timing and runtime.eventDisableTiming)

    def __del__(self, finalizing=sys.is_finalizing):
        if self.ptr and not finalizing():
            events.destroy(self.ptr)

    @property
    def done(self):
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream=None):
        runtime.eventRecord(self.ptr, (get_current_stream() if stream is None else stream).ptr)

    def synchronize(self):
        events.synchronize(self.ptr)


def get_elapsed_time(start_event, end_event):
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class _BaseStream:
    def __init__(self, ptr, device_id):
        self.ptr = ptr
        self.device_id = device_id

    def __cuda_stream__(self):
        return 0, self.ptr

    def __enter__(self):
        _mine.devices.append(_matching(self.device_id))
        _mine.stacks[_mine.devices[-1]].append(self)
        return self

    def __exit__(self, *raised):
        _mine.stacks[_mine.devices.pop()].pop()

    @property
    def done(self):
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self):
        runtime.streamSynchronize(self.ptr)

    def launch_host_func(self, callback, arg):
        runtime.launchHostFunc(self.ptr, lambda _: callback(arg), 0)

    def record(self, event=None):
        if event is None:
            event = Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event):
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode=None):
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        graphs.begin(streams.find(self.ptr), graphs.RELAXED if mode is None else mode)

    def end_capture(self):
        there, made = streams.find(self.ptr), graph.Graph.__new__(graph.Graph)
        made.graph = made.graphExec = there.capture.end(there)
        return made

    def is_capturing(self):
        return runtime.streamIsCapturing(self.ptr)


class Stream(_BaseStream):
    """A stream that ends with its object."""

    null: Any = None
    ptds: Any = None

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
        if null:
            ptr, device = 0, -1
        elif ptds:
            ptr, device = runtime.streamPerThread, -1
        else:
            flags = runtime.streamNonBlocking if non_blocking else runtime.streamDefault
            ptr = runtime.streamCreateWithPriority(flags, 0 if priority is None else priority)
            device = runtime.getDevice()
        super().__init__(ptr, device)
        self.foreign_owner: object = None

    def __del__(self, finalizing=sys.is_finalizing):
        if finalizing() or getattr(self, "foreign_owner", None) is not None:
            return
        if getattr(self, "ptr", 0) not in (0, runtime.streamLegacy, runtime.streamPerThread):
            streams.destroy(self.ptr)

    @classmethod
    def from_external(cls, obj):
        version, pointer = obj.__cuda_stream__()
        if (type(version), type(pointer), version) != (int, int, 0):
            raise TypeError(f"__cuda_stream__() returned {(version, pointer)}")
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, pointer, -1)
        stream.foreign_owner = obj
        return stream


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
