"""The identity of a CUDA device: name, address, drivers. NCCL's facts and perf's header use it."""

import ctypes
import uuid
from typing import NamedTuple

from hpccomm.memory.cuda.library import cupy, driver_library

_UUID_BYTES = 16


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
    pci = str(runtime.deviceGetPCIBusId(device)).lower()
    return Identity(
        device,
        properties["name"].decode(),
        spelled(_uuid_of(device) or _padded(properties.get("uuid", b""), pci)),
        pci,
        version(runtime.driverGetVersion()),
        version(runtime.runtimeGetVersion()),
    )


def spelled(number: bytes) -> str:
    """Return the 16 bytes of a UUID as NVIDIA's tools print it."""
    return f"GPU-{uuid.UUID(bytes=number)}"


def version(number: int) -> str:
    """Return CUDA's number for a version as text: ``12.8`` for 12080."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _uuid_of(device: int) -> bytes:
    """Return the driver's UUID of a device; empty if the driver cannot be called.

    CuPy reads the UUID like a C string, which truncates it at a zero byte.
    """
    driver = driver_library()
    if driver is None:
        return b""
    handle = ctypes.c_int()
    uuid = (ctypes.c_ubyte * _UUID_BYTES)()
    if driver.cuDeviceGet(ctypes.byref(handle), device) != 0:
        return b""
    # Drivers before CUDA 11.4 only have the first version, which supports whole devices only.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    return bytes(uuid) if ask(ctypes.byref(uuid), handle) == 0 else b""


def _padded(uuid: bytes, pci: str) -> bytes:
    """Return CuPy's UUID, filled up to 16 bytes from the address, which also differs by device."""
    bits = uuid[:_UUID_BYTES]
    return (bits + pci.replace(":", "").encode())[:_UUID_BYTES].ljust(_UUID_BYTES, b"\0")
