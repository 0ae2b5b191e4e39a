"""The devices that this process sees, and which of them is a thread's current one."""

import os
import sys
import threading
import traceback

from standin import control
from standin.errors import CUDARuntimeError

_local = threading.local()
_lock = threading.RLock()
_found: list["Device"] = []
_process = 0  # in which CUDA has begun


class Device:
    """One device as this process has it.

    Attributes
    ----------
    number : int
        Its CUDA number in this process.
    error : int
        Status of the error by which all of it was lost; 0 while there is none.
    streams : list
        Those that are alive, the legacy default stream first.
    context : bool
        Whether this process has a context on it, which takes some hundred MiB of its memory.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.error = 0
        self.streams: list = []
        self.context = False

    @property
    def uuid(self) -> bytes:
        """16 bytes that tell it from all others. The first is a zero: CuPy reads them as a C string."""
        return b"\0STANDIN" + str(self.number).encode().rjust(8, b"0")

    @property
    def bus(self) -> str:
        """Its address on the PCI bus."""
        return f"0000:{self.number + 16:02X}:00.0"

    def lose(self, status: int, what: str) -> None:
        """Record an error that no later call recovers from, and say what it was."""
        print(f"stand-in, device {self.number}: {what}", file=sys.stderr)
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        self.error = self.error or status

    def check(self) -> None:
        """Raise if all of it was lost."""
        if self.error:
            raise CUDARuntimeError(self.error)


def _all() -> list[Device]:
    with _lock:
        if not _found:
            _found.extend(map(Device, range(control.devices())))
        return _found


def count() -> int:
    """Return how many devices this process sees."""
    global _process
    _process = _process or os.getpid()
    if os.getpid() != _process:
        raise CUDARuntimeError(3)  # after a fork
    if not _all():
        raise CUDARuntimeError(100)
    return len(_all())


def device(number: int | None = None) -> Device:
    """Return a device by its number, by default the calling thread's current one."""
    if number is None:
        number = touch()
    if not 0 <= number < count():
        raise CUDARuntimeError(101)
    return _all()[number]


def touch() -> int:
    """Make a context on the calling thread's current device, as most calls of the runtime do.

    In a thread that never set a device that is device 0. Return its number.
    """
    number = current()
    _all()[number].context = _local.touched = True
    return number


def has_current() -> bool:
    """Tell whether the calling thread has a context, which it has after its first call of the runtime."""
    return hasattr(_local, "touched")


def contexts() -> list[int]:
    """Return the devices on which this process has a context."""
    return [each.number for each in _all() if each.context]


def current() -> int:
    """Return the number of the calling thread's current device."""
    count()
    return getattr(_local, "device", 0)


def used(number: int) -> bool:
    """Tell whether a device has been the calling thread's current one."""
    return number in _local.__dict__.get("used", {0})


def use(number: int) -> None:
    """Make a device the calling thread's current one, with a context, as from CUDA 12 on."""
    _local.__dict__.setdefault("used", {0}).add(number)
    _local.device = number
    touch()
