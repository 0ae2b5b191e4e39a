"""Facts of NVLink and the connected GPUs, from NVIDIA's library (package ``nvidia-ml-py``)."""

import contextlib
from collections.abc import Iterator
from typing import Any

from hpccomm.doctor.reading import Reading
from hpccomm.memory.cuda.nvml import nvlink_rate, nvlinks, opened


def gather(reading: Reading) -> None:
    """Read ``gpus``: name, PCI address, the ``rate`` of a link in GB/s, and ``links``, each with the device at its other end."""
    if reading.path("/proc/driver/nvidia/version").exists():
        reading.take("gpus", _gpus)
    else:
        reading.miss("gpus", "NVIDIA's driver is not loaded")


def _gpus() -> list[dict[str, Any]]:
    with opened() as nvml:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return [_gpu(nvml, handle) for handle in handles]


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "pci": address(nvml.nvmlDeviceGetPciInfo(handle)),
        "rate": nvlink_rate(nvml, handle),
        "links": list(_links(nvml, handle)),
    }


def _links(nvml: Any, handle: Any) -> Iterator[dict[str, Any]]:
    for number, up in nvlinks(nvml, handle):
        link: dict[str, Any] = {"link": number, "up": up}
        # A link that is down has no other end, and a virtual machine hides it.
        with contextlib.suppress(nvml.NVMLError):
            link["to"] = address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
        yield link


def address(info: Any) -> str:
    """Return a PCI address as sysfs spells it; NVML has more digits and capitals."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
