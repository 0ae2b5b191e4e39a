"""The links of GPUs, from NVIDIA's management library: for ``hpccomm perf`` and the doctor.

The package ``nvidia-ml-py`` is optional.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

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


def path(one: str, other: str | None = "") -> GpuLink | None:
    """Return the link that data of a device pass, or None if the library is missing or does not know.

    To all other devices that is NVLink if any link is up, else PCI Express at the highest speed that device and slot
    support together (an idle device lowers its speed). To one device that is the NVLinks that lead to it or to a switch,
    and without any the slower one of their slots. The peak of a memory is that of reads and writes together; that of
    NVLink-C2C is not known.

    Parameters
    ----------
    one : str
        The device's UUID, as NVIDIA's tools print it. Device numbers depend on what the process sees.
    other : str or None
        Where the data go: another device, or the same one, its own memory; the host (None); by default any device.
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
