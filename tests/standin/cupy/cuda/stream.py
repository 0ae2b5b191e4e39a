"""Streams and events, as CuPy has them."""

import sys
import threading
from typing import Any

from cupy.cuda import graph, runtime

_local = threading.local()


class _PerThread:
    """The calling thread's current stream of each device, and those that it will go back to."""

    def __init__(self) -> None:
        count = runtime.getDeviceCount()
        self.current = [Stream.null for _ in range(count)]
        self.devices: list[int] = []
        self.stacks = [[Stream.null] for _ in range(count)]

    @staticmethod
    def get() -> "_PerThread":
        try:
            return _local.streams
        except AttributeError:
            _local.streams = _PerThread()
            return _local.streams

    def set(self, stream: "_BaseStream") -> None:
        device = runtime.getDevice() if stream.device_id == -1 else stream.device_id
        self.current[device] = stream


def get_current_stream(device_id: int = -1) -> Any:
    device = runtime.getDevice() if device_id == -1 else device_id
    return _PerThread.get().current[device]


def _matching(device_id: int) -> int:
    current = runtime.getDevice()
    if device_id not in (-1, current):
        raise RuntimeError(
            f"The device that the stream is created on ({device_id})"
            f" does not match with the current device ({current})"
        )
    return current


class Event:
    """An event that ends with its object."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.ptr = 0
        self.ptr = runtime.eventCreateWithFlags(disable_timing and runtime.eventDisableTiming)

    def __del__(self, finalizing: Any = sys.is_finalizing) -> None:
        if self.ptr and not finalizing():
            runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        runtime.eventRecord(self.ptr, (get_current_stream() if stream is None else stream).ptr)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class _BaseStream:
    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __enter__(self) -> "_BaseStream":
        mine = _PerThread.get()
        device = _matching(self.device_id)
        mine.stacks[device].append(self)
        mine.devices.append(device)
        mine.set(self)
        return self

    def __exit__(self, *raised: object) -> None:
        mine = _PerThread.get()
        device = mine.devices.pop()
        mine.stacks[device].pop()
        mine.set(mine.stacks[device][-1])

    @property
    def done(self) -> bool:
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        runtime.launchHostFunc(self.ptr, lambda _: callback(arg), 0)

    def record(self, event: Event | None = None) -> Event:
        if event is None:
            event = Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr in (0, 1):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        runtime.streamBeginCapture(
            self.ptr, runtime.streamCaptureModeRelaxed if mode is None else mode
        )

    def end_capture(self) -> "graph.Graph":
        return graph.from_stream(runtime.streamEndCapture(self.ptr))

    def is_capturing(self) -> bool:
        return runtime.streamIsCapturing(self.ptr)


class Stream(_BaseStream):
    """A stream that ends with its object."""

    null: Any = None
    ptds: Any = None

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
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

    def __del__(self, finalizing: Any = sys.is_finalizing) -> None:
        if finalizing() or getattr(self, "foreign_owner", None) is not None:
            return
        if getattr(self, "ptr", 0) not in (0, runtime.streamLegacy, runtime.streamPerThread):
            runtime.streamDestroy(self.ptr)

    @classmethod
    def from_external(cls, obj: Any) -> "Stream":
        version, pointer = obj.__cuda_stream__()
        if (type(version), type(pointer), version) != (int, int, 0):
            raise TypeError(f"__cuda_stream__() returned {(version, pointer)}")
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, pointer, -1)
        stream.foreign_owner = obj
        return stream


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
