"""Devices, as CuPy has them."""

import threading
from typing import Any

from cupy.cuda import runtime

_local = threading.local()


class Device:
    """One device; a context in which it is the thread's current one."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> "Device":
        _stack().append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *raised: object) -> None:
        runtime.setDevice(_stack().pop())

    __hash__ = None  # type: ignore[assignment]

    def use(self) -> "Device":
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        with self:
            runtime.deviceSynchronize()


def _stack() -> list[int]:
    return _local.__dict__.setdefault("devices", [])
