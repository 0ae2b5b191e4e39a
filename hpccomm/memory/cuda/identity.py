"""Which device a number of CUDA's stands for: its name, address and drivers."""

import ctypes
import uuid
from typing import NamedTuple

from hpccomm.memory.cuda.library import cupy

_UUID_BYTES = 16


class Identity(NamedTuple):
    """One CUDA device.

    Attributes
    ----------
    number : int
        As this process counts the devices that it sees.
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
    """Return which device `device` is. Local; starts CUDA on no device.

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
    """Ask the driver for the UUID of a device; empty where it cannot be asked.

    CuPy's is read like a C string: one with a zero byte in it comes cut short.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return b""
    handle = ctypes.c_int()
    found = (ctypes.c_ubyte * _UUID_BYTES)()
    if driver.cuDeviceGet(ctypes.byref(handle), device) != 0:
        return b""
    # The first version, all that drivers of before CUDA 11.4 have, knows whole devices alone.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    return bytes(found) if ask(ctypes.byref(found), handle) == 0 else b""


def _padded(told: bytes, pci: str) -> bytes:
    """Return 16 bytes of CuPy's UUID; what it lacks is made of the address, which differs as well."""
    kept = told[:_UUID_BYTES]
    return (kept + pci.replace(":", "").encode())[:_UUID_BYTES].ljust(_UUID_BYTES, b"\0")
