"""Facts of network interfaces and their networks, of RDMA adapters, and of what device memory needs for them.

Counters since the system's start are read twice: a rise between the two matters.
"""

import ipaddress
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpccomm.tools.doctor.reading import Reading
from hpccomm.tools.doctor.sources.pci import address

SECONDS = 0.5


def pause() -> None:
    """Wait between two readings."""
    time.sleep(SECONDS)


def counted(
    reading: Reading,
    of: str,
    folders: Sequence[Path],
    wait: Callable[[], None],
    about: Callable[[Reading, Path], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the facts about each folder, with its counters of ``files.tsv``, and those that rose (``rising``).

    The counters of ``network.losses`` are ``losses``.
    """
    before = [reading.below(of, folder) for folder in folders]
    wait()
    facts = []
    for folder, first in zip(folders, before, strict=True):
        after = reading.below(of, folder)
        rises = {name: value - first.get(name, value) for name, value in after.items()}
        rising = {name: rise for name, rise in rises.items() if rise > 0}
        facts.append(about(reading, folder) | {of.partition(".")[2]: after, "rising": rising})
    return facts


_DEVICES = "/sys/class/infiniband"


def rdma(reading: Reading, wait: Callable[[], None] = pause) -> None:
    """Read ``ports``, and ``gpudirect``: what lets an adapter reach the memory of a GPU.

    A port has its device, number, PCI address, own network interfaces, states, ``rate`` in Gb/s with lanes and
    generation, link layer, ``gids`` (index, type, network interface, IPv4 address or prefix), counters, and those that
    rose between two readings.
    """
    ports = list(reading.matches(_DEVICES, "*/ports/*"))
    reading.put("gpudirect", _gpudirect(reading))
    if not ports:
        reading.miss("ports", f"{_DEVICES} has no adapter")
        return
    reading.put("ports", counted(reading, "infiniband.counters", ports, wait, _port))


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
        gid = reading.optional_text(file)
        if not gid or not gid.replace(":", "").strip("0"):
            continue
        place = ipaddress.IPv6Address(gid)
        # The kernel refuses to read the attributes of some unused entries.
        kind = reading.optional_text(port / "gid_attrs/types" / file.name)
        ndev = reading.optional_text(port / "gid_attrs/ndevs" / file.name)
        if place.ipv4_mapped:
            where = {"address": str(place.ipv4_mapped)}
        else:
            where = {"prefix": str(ipaddress.IPv6Address(int(place) >> 64 << 64))}
        yield {"index": int(file.name), "type": kind, "ndev": ndev, **where}


def _gpudirect(reading: Reading) -> dict[str, Any]:
    """Return the versions of the modules for peer memory, and whether dma-buf can take their place."""
    facts = reading.below("infiniband.gpudirect", reading.root)
    driver = reading.optional_text(reading.path("/proc/driver/nvidia/version"))
    release = reading.optional_text(reading.path("/proc/sys/kernel/osrelease")) or ""
    kernel = re.match(r"(\d+)\.(\d+)", release)
    if driver and kernel:
        recent = (int(kernel[1]), int(kernel[2])) >= (5, 12)
        facts["dma_buf"] = recent and "Open Kernel Module" in driver
    return facts


_NET = "/sys/class/net"


def gather(reading: Reading, wait: Callable[[], None] = pause) -> None:
    """Read ``devices``, and ``routes``: the IPv4 ``networks`` of each interface, and the ``gateways``.

    Virtual interfaces are left out, except bonds, and containers' interfaces to a network. A device
    has its name, PCI address, speed in Mb/s, MTU, state, whether it is on USB, its losses, and
    those that rose between two readings. A bond has its ``members``.
    """
    reached = (reading.take("routes", lambda: _routes(reading)) or {}).get("networks", {})
    folders = [folder for folder in reading.matches(_NET, "*") if _matters(folder, reached)]
    if not folders:
        reading.miss("devices", f"{_NET} has no interface that reaches a network")
        return
    reading.put("devices", counted(reading, "network.losses", folders, wait, _device))


def _matters(folder: Path, reached: Collection[str]) -> bool:
    if (folder / "device").exists() or (folder / "bonding").exists():
        return True
    return folder.name in reached and not (folder / "bridge").exists()


def _device(reading: Reading, folder: Path) -> dict[str, Any]:
    places = {
        "pci": address(folder / "device"),
        "usb": "/usb" in str((folder / "device").resolve()),
        "bond": (folder / "master").resolve().name if (folder / "master").exists() else None,
    }
    facts = {"name": folder.name, **reading.below("network.device", folder)}
    return facts | {name: place for name, place in places.items() if place}


def _routes(reading: Reading) -> dict[str, Any]:
    """Read the kernel's table of IPv4 routes."""
    networks, gateways = defaultdict(list), []
    for line in reading.text("/proc/net/route").splitlines()[1:]:
        name, *words = line.split()
        target, gateway, mask = (
            ipaddress.ip_address(int(words[at], 16).to_bytes(4, "little")) for at in (0, 1, 6)
        )
        if int(gateway):
            gateways.append(str(gateway))
        elif int(mask):
            networks[name].append(str(ipaddress.ip_network(f"{target}/{mask}")))
    return {"networks": networks, "gateways": gateways}
