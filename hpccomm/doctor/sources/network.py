"""Facts of the kernel's network interfaces, and of the networks that they reach."""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading
from hpccomm.doctor.sources import twice
from hpccomm.doctor.sources.pci import address

_NET = "/sys/class/net"


def gather(reading: Reading, wait: Callable[[], None] = twice.pause) -> None:
    """Read ``devices``, and ``routes``: the IPv4 ``networks`` of each interface, and the ``gateways``.

    Virtual interfaces are left out, except bonds, and containers' interfaces to a network. A device
    has its name, PCI address, speed in Mb/s, MTU, state, whether it is on USB, its losses, and
    which of them rose between two readings. A bond has its ``members``.
    """
    reached = (reading.take("routes", lambda: _routes(reading)) or {}).get("networks", {})
    folders = [folder for folder in reading.matches(_NET, "*") if _matters(folder, reached)]
    if not folders:
        reading.miss("devices", f"{_NET} has no interface that reaches a network")
        return
    reading.put("devices", twice.counted(reading, "network.losses", folders, wait, _device))


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
