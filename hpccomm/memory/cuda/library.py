"""CuPy, imported on first need, and what identifies and connects the devices.

- `cupy` returns CuPy. All code that uses devices gets it here.
- `identify` returns a device's name, address and drivers, for NCCL's facts and perf's header.
"""

import ctypes
import importlib.util
import re
import uuid
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from hpccomm.errors import BackendUnavailable, UsageError

INSTALL = "pip install cupy-cuda12x nvidia-nccl-cu12 (or cupy-cuda13x nvidia-nccl-cu13)"

SINCE = (14, 0, 1)
"""CuPy's first version that can be used. 13 promotes scalars by their value, and cannot take another
library's stream. 14.0.0 makes no float8 array."""


@cache
def _found() -> tuple[ModuleType | None, int, str]:
    """Return CuPy, the number of visible devices, and why device arrays cannot be used (or '')."""
    if importlib.util.find_spec("cupy") is None:
        return None, 0, f"CuPy is not installed; {INSTALL}"
    try:
        import cupy
        from cupy.cuda import runtime
    except Exception as error:  # noqa: BLE001 (it warns at import: any class under "-W error")
        why = f"{type(error).__name__}: {error}"
        return None, 0, f"CuPy cannot be imported ({why}); {INSTALL}, for this machine's CUDA"
    if tuple(int(part) for part in re.findall(r"\d+", cupy.__version__)[:3]) < SINCE:
        least = ".".join(map(str, SINCE))
        why = f"CuPy {cupy.__version__} is too old; pip install 'cupy-cuda12x>={least}' (or cupy-cuda13x)"
        return None, 0, why
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        why = f"CUDA finds no device ({error}); run on a machine with an NVIDIA GPU and its driver"
        return None, 0, f"{why}, and let CUDA_VISIBLE_DEVICES leave it visible"
    if not count:
        why = "this process sees no CUDA device; let CUDA_VISIBLE_DEVICES leave one visible"
        return None, 0, why
    return cupy, count, ""


def unavailable() -> str:
    """Return why device arrays cannot be used here, and the remedy; empty if they can."""
    return _found()[2]


def visible_devices() -> int:
    """Return the number of CUDA devices that this process sees; 0 without CuPy or a driver."""
    return _found()[1]


def cupy() -> Any:
    """Return the module ``cupy``.

    Raises
    ------
    BackendUnavailable
        If device arrays cannot be used here.
    """
    module, _, why = _found()
    if module is None:
        raise BackendUnavailable(why)
    return module


@cache
def driver_library() -> ctypes.CDLL:
    """Return CUDA's driver library, which is there if CuPy finds a device. Its functions release the interpreter."""
    return ctypes.CDLL("libcuda.so.1")


def choose(requested: int | None, local_rank: int, visible: int) -> int | None:
    """Return the device of a rank, or None without one.

    Parameters
    ----------
    requested : int or None
        The user's ``device=``.
    local_rank : int
        The rank's number on its node. By default, devices are assigned by it round robin.
    visible : int
        Devices that the process sees.

    Raises
    ------
    UsageError
        If the requested device is not among them.
    """
    if requested is None:
        return local_rank % visible if visible else None
    if isinstance(requested, bool) or not isinstance(requested, int):
        raise UsageError(f"device is {requested!r}; give a CUDA device number or None")
    if not 0 <= requested < visible:
        fits = f"give one from 0 to {visible - 1}" if visible else f"there is none: {unavailable()}"
        raise UsageError(f"device is {requested}; {fits}")
    return requested


class Identity(NamedTuple):
    """One CUDA device.

    Attributes
    ----------
    number : int
        Its number among the devices that this process sees.
    name : str
        Such as ``NVIDIA H100 80GB HBM3``.
    uuid : str
        ``GPU-`` and 32 hexadecimal digits in five groups; the same in every process.
    pci : str
        Address on the node's PCI bus, such as ``0000:65:00.0``.
    driver, runtime : str
        Versions of CUDA that the driver supports and that CuPy runs on, such as ``12.8``.
    """

    number: int
    name: str
    uuid: str
    pci: str
    driver: str
    runtime: str


def identify(device: int) -> Identity:
    """Return the identity of a device. Local; does not start CUDA on it.

    Raises
    ------
    BackendUnavailable
        If device arrays cannot be used here.
    """
    runtime = cupy().cuda.runtime
    properties = runtime.getDeviceProperties(device)
    return Identity(
        device,
        properties["name"].decode(),
        _uuid_of(device),
        str(runtime.deviceGetPCIBusId(device)).lower(),
        version(runtime.driverGetVersion()),
        version(runtime.runtimeGetVersion()),
    )


def version(number: int) -> str:
    """Return CUDA's number for a version as text: ``12.8`` for 12080."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _uuid_of(device: int) -> str:
    """Return a device's UUID by the driver: CuPy reads it like a C string, which ends at a zero byte."""
    driver, handle, number = driver_library(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    # Drivers before CUDA 11.4 only have the first version, which supports whole devices only.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    if driver.cuDeviceGet(ctypes.byref(handle), device) or ask(ctypes.byref(number), handle):
        raise BackendUnavailable(f"CUDA's driver does not tell the UUID of device {device}")
    return f"GPU-{uuid.UUID(bytes=bytes(number))}"
