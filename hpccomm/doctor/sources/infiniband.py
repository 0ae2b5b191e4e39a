"""Facts of RDMA adapters: InfiniBand, RoCE and others, and what device memory needs for them."""

import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading
from hpccomm.doctor.sources import twice
from hpccomm.doctor.sources.pci import address

_DEVICES = "/sys/class/infiniband"


def gather(reading: Reading, wait: Callable[[], None] = twice.pause) -> None:
    """Read ``ports``, and ``gpudirect``: what lets an adapter reach the memory of a GPU.

    A port has its device, number, PCI address, own network interfaces, states, ``rate`` in Gb/s with lanes and generation, link layer,
    ``gids`` (index, type, network interface, IPv4 address or prefix), counters, and which of them rose between two
    readings.
    """
    ports = list(reading.matches(_DEVICES, "*/ports/*"))
    reading.put("gpudirect", _gpudirect(reading))
    if not ports:
        reading.miss("ports", f"{_DEVICES} has no adapter")
        return
    reading.put("ports", twice.counted(reading, "infiniband.counters", ports, wait, _port))


def _port(reading: Reading, port: Path) -> dict[str, Any]:
    device = port.parents[1]
    facts = reading.below("infiniband.port", port)
    if "width" in facts:
        facts.setdefault("generation", "SDR")
    places = {
        "pci": address(device / "device"),
        "interfaces": list(_interfaces(device / "device/net")),
    }
    return {
        "device": device.name,
        "port": int(port.name),
        "gids": list(_gids(reading, port)),
        **facts,
        **{name: place for name, place in places.items() if place},
    }


def _interfaces(folder: Path) -> Iterator[str]:
    """Yield the adapter's own interfaces, and the bonds that have them as members."""
    for each in sorted(folder.glob("*")):
        yield each.name
        if (each / "master/bonding").exists():
            yield (each / "master").resolve().name


def _gids(reading: Reading, port: Path) -> Any:
    for file in sorted((port / "gids").glob("*"), key=lambda each: int(each.name)):
        gid = reading.line(file)
        if not gid or not gid.replace(":", "").strip("0"):
            continue
        place = ipaddress.IPv6Address(gid)
        # The kernel refuses to read the attributes of some unused entries.
        kind = reading.line(port / "gid_attrs/types" / file.name)
        ndev = reading.line(port / "gid_attrs/ndevs" / file.name)
        if place.ipv4_mapped:
            where = {"address": str(place.ipv4_mapped)}
        else:
            where = {"prefix": str(ipaddress.IPv6Address(int(place) >> 64 << 64))}
        yield {"index": int(file.name), "type": kind, "ndev": ndev, **where}


def _gpudirect(reading: Reading) -> dict[str, Any]:
    """Return the versions of the modules for peer memory, and whether dma-buf can take their place."""
    facts = reading.below("infiniband.gpudirect", reading.root)
    driver = reading.line(reading.path("/proc/driver/nvidia/version"))
    release = reading.line(reading.path("/proc/sys/kernel/osrelease")) or ""
    kernel = re.match(r"(\d+)\.(\d+)", release)
    if driver and kernel:
        recent = (int(kernel[1]), int(kernel[2])) >= (5, 12)
        facts["dma_buf"] = recent and "Open Kernel Module" in driver
    return facts
