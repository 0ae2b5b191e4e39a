"""CuPy, imported on first need, and what identifies and connects the devices.

- `cupy` returns CuPy. All code that uses devices gets it here.
- `identify` returns a device's name, address and drivers, for NCCL's facts and perf's header.
- `fastest_link` and `nvlinks` read the links of a device from NVIDIA's management library, for ``hpccomm perf`` and the
  doctor. The package ``nvidia-ml-py`` is optional.
"""

import ctypes
import importlib
import importlib.util
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from hpccomm.errors import BackendUnavailable, UsageError
from hpccomm.spelling import install_command

LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane in one direction, by generation of PCI Express, after its line code."""


class GpuLink(NamedTuple):
    """The link that data of a device pass.

    Attributes
    ----------
    name : str
        Such as ``NVLink, 18 of 26.562 GB/s`` or ``PCI Express 5 x16``.
    peak : float
        Total bandwidth in one direction, in 1e9 B/s; 0 if unknown.
    """

    name: str
    peak: float


def fastest_link(uuid: str) -> GpuLink | None:
    """Return a device's fastest link, or None if the library is missing or does not know.

    NVLink if any link is up, else PCI Express at the highest speed that device and slot support
    together (an idle device lowers its speed).

    Parameters
    ----------
    uuid : str
        The device's, as NVIDIA's tools print it. Device numbers depend on what the process sees.
    """
    return path(uuid, "")


def path(one: str, other: str | None) -> GpuLink | None:
    """Return the link from a device to another one, to the host (None), or within its own memory.

    To another device that is the NVLinks that lead to it or to a switch, and without any the slower one of their slots.
    The peak of a memory is that of reads and writes together; that of NVLink-C2C is not known. See `fastest_link`.
    """
    with suppress(LookupError), opened() as nvml:
        ends = [nvml.nvmlDeviceGetHandleByUUID(each) for each in (one, other) if each]
        if other == one:
            clock = nvml.nvmlDeviceGetMaxClockInfo(ends[0], nvml.NVML_CLOCK_MEM)
            bits = nvml.nvmlDeviceGetMemoryBusWidth(ends[0])
            # A line of the bus carries two bits a cycle; the clock is in MHz.
            return GpuLink(f"memory, {bits} bits at {clock} MHz", 2 * clock * bits / 8 / 1000)
        if other is None and _field(nvml, ends[0], "NVML_FI_DEV_C2C_LINK_COUNT"):
            return GpuLink("NVLink-C2C", 0.0)
        peer = nvml.nvmlDeviceGetPciInfo(ends[1]).busId if other else None
        active = 0 if other is None else _active_nvlinks(nvml, ends[0], peer)
        if active:
            speed = nvlink_rate(nvml, ends[0])
            return GpuLink(f"NVLink, {active} of {speed:g} GB/s", active * speed) if speed else None
        slots = filter(None, (_pci_express(nvml, end) for end in ends))
        return min(slots, key=lambda slot: slot.peak, default=None)
    return None


@contextmanager
def opened() -> Iterator[Any]:
    """Give the module ``pynvml``, with its library up.

    Raises
    ------
    LookupError
        If the library or the driver is missing, or if a call in the block fails (NVMLError).
    """
    if importlib.util.find_spec("pynvml") is None:
        raise LookupError(f"NVML is not to be had: {install_command('nvml')}")
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise LookupError(f"NVML does not start: {error}") from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise LookupError(f"NVML: {error}") from error
    finally:
        nvml.nvmlShutdown()


def nvlinks(nvml: Any, handle: Any) -> Iterator[tuple[int, bool]]:
    """Yield the numbers of a device's NVLinks, and whether each is up."""
    with suppress(nvml.NVMLError):  # no further one exists
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = nvml.nvmlDeviceGetNvLinkState(handle, number)
            yield number, state == nvml.NVML_FEATURE_ENABLED


def _active_nvlinks(nvml: Any, handle: Any, peer: object) -> int:
    """Return how many links are up, or how many of them lead to a switch or to a peer's address."""
    active = [number for number, up in nvlinks(nvml, handle) if up]
    if peer is not None:
        end, switch = nvml.nvmlDeviceGetNvLinkRemoteDeviceType, nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        address = nvml.nvmlDeviceGetNvLinkRemotePciInfo
        active = [
            each
            for each in active
            if end(handle, each) == switch or address(handle, each).busId == peer
        ]
    return len(active)


def nvlink_rate(nvml: Any, handle: Any) -> float:
    """Return the rate of one NVLink in one direction, in 1e9 B/s; 0 if unknown."""
    return _field(nvml, handle, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON") / 1000


def _field(nvml: Any, handle: Any, name: str) -> int:
    """Return a field's value; 0 if the device, or an older package, does not tell it."""
    number = getattr(nvml, name, None)
    fields = [] if number is None else nvml.nvmlDeviceGetFieldValues(handle, [number])
    return sum(each.value.uiVal for each in fields if each.nvmlReturn == nvml.NVML_SUCCESS)


def _pci_express(nvml: Any, handle: Any) -> GpuLink | None:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    lane = LANE.get(generation)
    return None if lane is None else GpuLink(f"PCI Express {generation} x{width}", width * lane)


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
def driver_library() -> ctypes.CDLL | None:
    """Return CUDA's driver library, or None."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


__all__ = ["choose", "visible_devices"]


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
