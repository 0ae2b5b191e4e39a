"""Network interfaces of the kernel, and the networks that they reach."""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading, whole
from hpccomm.doctor.sources.pci import address
from hpccomm.doctor.sources.twice import pause, rising

_NET = "/sys/class/net"

LOSSES = (
    *("rx_dropped", "tx_dropped", "rx_errors", "tx_errors", "rx_missed_errors", "rx_crc_errors"),
    *("rx_fifo_errors", "tx_carrier_errors"),
)
"""Counters of packets that did not arrive (Documentation/networking/statistics.rst of Linux)."""

IFF_UP = 1
"""The flag of an interface that is switched on (linux/if.h)."""


def gather(root: Path = Path("/"), wait: Callable[[], None] = pause) -> dict[str, Any]:
    """Return ``devices``, and ``routes``: the IPv4 ``networks`` of each interface, and the ``gateways``.

    Virtual interfaces are left out, but for bonds and those that reach a network, as in containers. A device has its name, PCI address, speed in Mb/s,
    MTU, state, whether it is on USB, its losses, and which of them rose between two readings. A bond has its ``members``.
    """
    reading = Reading(root)
    reached = (reading.take("routes", lambda: _routes(reading)) or {}).get("networks", {})
    folders = [folder for folder in reading.matches(_NET, "*") if _matters(folder, reached)]
    if not folders:
        reading.miss("devices", f"{_NET} has no interface that reaches a network")
        return reading.facts()
    before = [_losses(reading, folder) for folder in folders]
    wait()
    devices = []
    for folder, first in zip(folders, before, strict=True):
        after = _losses(reading, folder)
        losses = {"losses": after, "rising": rising(first, after)}
        devices.append({**_device(reading, folder), **losses})
    reading.put("devices", devices)
    return reading.facts()


def _matters(folder: Path, reached: Collection[str]) -> bool:
    if (folder / "device").exists() or (folder / "bonding").exists():
        return True
    return folder.name in reached and not (folder / "bridge").exists()


def _device(reading: Reading, folder: Path) -> dict[str, Any]:
    speed = whole(reading.line(folder / "speed"))
    flags = int(reading.line(folder / "flags") or "0", 16)
    facts = {
        "name": folder.name,
        "pci": address(folder / "device"),
        "speed": speed if speed and speed > 0 else None,  # -1: the driver does not say
        "mtu": whole(reading.line(folder / "mtu")),
        "duplex": reading.line(folder / "duplex"),
        "state": reading.line(folder / "operstate"),
        "on": bool(flags & IFF_UP),
        "usb": "/usb" in str((folder / "device").resolve()) or None,
        "bond": (folder / "master").resolve().name if (folder / "master").exists() else None,
        "members": (reading.line(folder / "bonding/slaves") or "").split() or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _losses(reading: Reading, folder: Path) -> dict[str, int]:
    files = {name: folder / "statistics" / name for name in LOSSES}
    files["carrier_changes"] = folder / "carrier_changes"
    read = {name: whole(reading.line(file)) for name, file in files.items()}
    return {name: value for name, value in read.items() if value is not None}


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
