"""Facts of PCI devices: what is plugged in, and its path to the processor.

A device's real path in sysfs leads from its host bridge over all bridges to it. Bridges are
switches, in two parts each (the port towards the processor, and one port for each device), and the
processor's own ports.
"""

import re
import struct
from pathlib import Path
from typing import Any

from hpccomm.tools.doctor.reading import Reading, why

_DEVICES = "/sys/bus/pci/devices"
_KINDS = re.compile(r"0x(02|03|12|0680)")
"""Classes that are kept: networks, displays, accelerators, and other bridges, such as NVIDIA's switches."""

ACS = 0x000D
"""The extended capability Access Control Services (PCI Express Base Specification, 7.7.11)."""


def gather(reading: Reading) -> None:
    """Read ``devices`` and the ``bridges`` above them, and ``iommu``: units, mode and the kernel's words for it.

    A device has its ``address``, ``path`` (from the host bridge to itself), class, vendor, NUMA
    ``node`` (-1 if unknown) and CPUs; with PCI Express the speed in GT/s and the lanes of its link,
    and the most that it can have.
    """
    devices, above = [], set[str]()
    for link in reading.matches(_DEVICES, "*"):
        if _KINDS.match(reading.optional_text(link / "class") or ""):
            path = _path(link)
            devices.append({"path": path, **_device(reading, link)})
            above.update(path[:-1])
    if not devices:
        reading.miss("devices", f"{_DEVICES} has no network or accelerator")
    reading.put("devices", devices)
    bridges = [reading.path(f"{_DEVICES}/{name}") for name in sorted(above)]
    reading.miss("bridges.*.acs", "no bridge has Access Control Services")
    reading.put("bridges", [_bridge(reading, each) for each in bridges if each.exists()])
    reading.put("iommu", _iommu(reading))


def _path(link: Path) -> list[str]:
    return re.findall(r"(?<=/)(?:pci)?[0-9a-f]{4,}:[0-9a-f:.]+(?=/|$)", str(link.resolve()))


def _device(reading: Reading, folder: Path) -> dict[str, Any]:
    links = [name for name in ("driver", "iommu_group") if (folder / name).exists()]
    facts = reading.below("pci.device", folder) | {
        name: (folder / name).resolve().name for name in links
    }
    return {"address": folder.name, **facts, "virtual": (folder / "physfn").exists()}


def _bridge(reading: Reading, folder: Path) -> dict[str, Any]:
    facts = _device(reading, folder)
    try:
        acs = acs_control((folder / "config").read_bytes())
    except OSError as error:
        reading.miss("bridges.*.acs", why(error))
        return facts
    if acs is not None:
        facts["acs"] = acs
    elif (folder / "config").stat().st_size > 256:
        reading.miss("bridges.*.acs", "only root reads the extended configuration of a bridge")
    return facts


def acs_control(config: bytes) -> int | None:
    """Return the control register of Access Control Services; None if the bytes do not have it.

    Others than root read the first 64 bytes. Extended capabilities begin at 256, each with its number, version and
    the place of the next.
    """
    place = 256
    while 256 <= place <= len(config) - 8:
        (head,) = struct.unpack_from("<I", config, place)
        if head & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", config, place + 6)[0])
        place = head >> 20
    return None


def _iommu(reading: Reading) -> dict[str, Any]:
    kinds = [
        reading.optional_text(group)
        for group in reading.matches("/sys/kernel/iommu_groups", "*/type")
    ]
    words = (reading.optional_text(reading.path("/proc/cmdline")) or "").split()
    return {
        "units": [unit.name for unit in reading.matches("/sys/class/iommu", "*")],
        "modes": sorted({kind for kind in kinds if kind}),
        "kernel": [word for word in words if "iommu" in word],
    }


def address(link: Path) -> str | None:
    """Return the address of the PCI device to which a link of sysfs leads; or None."""
    path = _path(link) if link.exists() else []
    return path[-1] if path else None
