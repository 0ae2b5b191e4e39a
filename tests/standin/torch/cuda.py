"""Devices and streams of PyTorch: a thread's current stream is not CuPy's."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import cupy
from standin import devices, streams

_local = threading.local()


class Stream:
    """A stream that does not wait for the default one."""

    def __init__(self, device=None, priority=0):
        number = index(device)
        with cupy.cuda.Device(number):
            self._stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        self.device_index = number

    @property
    def cuda_stream(self):
        return self._stream.ptr

    def record_event(self):
        return self.itself().mark()

    def wait_event(self, event):
        self.itself().after(event)

    def itself(self):
        return streams.find(self.cuda_stream, self.device_index)


class ExternalStream(Stream):
    """A stream that somebody else owns."""

    def __init__(self, stream_ptr, device=None):
        self._stream = _external(stream_ptr)
        self.device_index = index(device)


class _Default(Stream):
    def __init__(self, device):
        self._stream = cupy.cuda.Stream.null
        self.device_index = device


def _streams():
    return _local.__dict__.setdefault("streams", {})


def is_available():
    return cupy.cuda.is_available()


def is_initialized():
    return devices.has_current()


def set_device(device):
    cupy.cuda.runtime.setDevice(index(device))


def current_device():
    return cupy.cuda.runtime.getDevice()


def index(device):
    number = getattr(device, "index", device)
    return current_device() if number is None else number


def current_stream(device=None):
    number = index(device)
    return _streams().get(number) or _Default(number)


@contextmanager
def stream(stream):
    """Make a stream the thread's current one."""
    before = current_stream(stream.device_index)
    _streams()[stream.device_index] = stream
    try:
        yield
    finally:
        _streams()[stream.device_index] = before


def _external(pointer):
    owner = SimpleNamespace(__cuda_stream__=lambda: (0, pointer))
    return cupy.cuda.Stream.from_external(owner)


@contextmanager
def entered(device):
    """Do with CuPy's arrays what PyTorch does on its own current stream."""
    pointer = current_stream(device).cuda_stream
    with cupy.cuda.Device(device), _external(pointer):
        yield
