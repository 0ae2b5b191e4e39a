"""Devices and streams of PyTorch: a thread's current stream is not CuPy's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
from standin import devices, streams

_local = threading.local()


class Stream:
    """A stream that does not wait for the default one."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        number = index(device)
        with cupy.cuda.Device(number):
            self._stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        self.device_index = number

    @property
    def cuda_stream(self) -> int:
        return self._stream.ptr

    def record_event(self) -> streams.Marker:
        return self.itself().mark()

    def wait_event(self, event: streams.Marker) -> None:
        self.itself().after(event)

    def itself(self) -> streams.Stream:
        return streams.find(self.cuda_stream, self.device_index)


class ExternalStream(Stream):
    """A stream that somebody else owns."""

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        self._stream = cupy.cuda.Stream.from_external(_Of(stream_ptr))
        self.device_index = index(device)


class _Default(Stream):
    def __init__(self, device: int) -> None:
        self._stream = cupy.cuda.Stream.null
        self.device_index = device


def _streams() -> dict[int, Stream]:
    return _local.__dict__.setdefault("streams", {})


def is_available() -> bool:
    return cupy.cuda.is_available()


def is_initialized() -> bool:
    return devices.has_current()


def set_device(device: Any) -> None:
    cupy.cuda.runtime.setDevice(index(device))


def current_device() -> int:
    return cupy.cuda.runtime.getDevice()


def index(device: Any) -> int:
    number = getattr(device, "index", device)
    return current_device() if number is None else number


def current_stream(device: Any = None) -> Stream:
    number = index(device)
    return _streams().get(number) or _Default(number)


@contextmanager
def stream(stream: Stream) -> Iterator[None]:
    """Make a stream the thread's current one."""
    before = _streams().get(stream.device_index)
    _streams()[stream.device_index] = stream
    try:
        yield
    finally:
        if before is None:
            del _streams()[stream.device_index]
        else:
            _streams()[stream.device_index] = before


class _Of:
    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@contextmanager
def entered(device: int) -> Iterator[None]:
    """Do with CuPy's arrays what PyTorch does on its own current stream."""
    pointer = current_stream(device).cuda_stream
    with cupy.cuda.Device(device), cupy.cuda.Stream.from_external(_Of(pointer)):
        yield
