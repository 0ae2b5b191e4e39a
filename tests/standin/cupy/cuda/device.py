"""Devices, as CuPy has them."""

import threading

from cupy.cuda import runtime

_local = threading.local()


class Device:
    """One device; a context in which it is the thread's current one."""

    def __init__(self, device=None):
        self.id = runtime.getDevice() if device is None else device

    def __enter__(self):
        _stack().append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *raised):
        runtime.setDevice(_stack().pop())

    __hash__ = None  # type: ignore[assignment]

    def use(self):
        runtime.setDevice(self.id)
        return self

    def synchronize(self):
        with self:
            runtime.deviceSynchronize()


def _stack():
    return _local.__dict__.setdefault("devices", [])
