"""A device's links, from NVIDIA's management library. The package ``nvidia-ml-py`` is optional."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hpccomm.extras import install_command

LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane in one direction, by generation of PCI Express, after its line code."""


class Link(NamedTuple):
    """The connection of a device to others.

    Attributes
    ----------
    name : str
        Such as ``NVLink, 18 of 26.562 GB/s`` or ``PCI Express 5 x16``.
    peak : float
        Total bandwidth in one direction, in 1e9 B/s.
    """

    name: str
    peak: float


def fastest_link(uuid: str) -> Link | None:
    """Return a device's fastest link, or None if the library is missing or does not know.

    NVLink if any link is up, else PCI Express at the highest speed that device and slot support
    together (an idle device lowers its speed).

    Parameters
    ----------
    uuid : str
        The device's, as NVIDIA's tools print it. Device numbers depend on what the process sees.
    """
    try:
        with opened() as nvml:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            active = _active_nvlinks(nvml, handle)
            return _nvlink(nvml, handle, active) if active else _pci_express(nvml, handle)
    except LookupError:  # also a virtual device, or one that is too new for this library
        return None


@contextmanager
def opened() -> Iterator[Any]:
    """Give the module ``pynvml``, with its library up.

    Raises
    ------
    LookupError
        If there is none, or no driver, or if a call in the block fails (NVMLError).
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


def _active_nvlinks(nvml: Any, handle: Any) -> int:
    active = 0
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, number) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError:  # there are no more, or none at all
            break
    return active


def _nvlink(nvml: Any, handle: Any, active: int) -> Link | None:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    speed = field.value.uiVal / 1000 if field.nvmlReturn == nvml.NVML_SUCCESS else 0.0
    return Link(f"NVLink, {active} of {speed:g} GB/s", active * speed) if speed else None


def _pci_express(nvml: Any, handle: Any) -> Link | None:
    generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
    width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    lane = LANE.get(generation)
    return None if lane is None else Link(f"PCI Express {generation} x{width}", width * lane)
