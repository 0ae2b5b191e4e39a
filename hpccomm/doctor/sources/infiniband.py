"""Adapters for RDMA: InfiniBand, RoCE and others that the kernel lists as such, and what device memory needs."""

import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading, whole
from hpccomm.doctor.sources.pci import address
from hpccomm.doctor.sources.twice import pause, rising

_DEVICES = "/sys/class/infiniband"

COUNTERS = {
    "counters": (
        *("link_downed", "symbol_error", "link_error_recovery", "port_rcv_errors"),
        *("port_xmit_discards", "local_link_integrity_errors", "port_xmit_wait"),
    ),
    "hw_counters": (
        *("local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "implied_nak_seq_err"),
        *("rnr_nak_retry_err", "out_of_buffer", "roce_adp_retrans", "np_cnp_sent"),
        *("rp_cnp_handled", "np_ecn_marked_roce_packets"),
    ),
}
"""Counters by their folder (Documentation/ABI/stable/sysfs-class-infiniband of Linux, and NVIDIA's of mlx5)."""


def gather(root: Path = Path("/"), wait: Callable[[], None] = pause) -> dict[str, Any]:
    """Return ``ports``, and ``gpudirect``: what lets an adapter reach the memory of a GPU.

    A port has its device, number, PCI address, own network interfaces, states, ``rate`` in Gb/s with lanes and generation, link layer,
    ``gids`` (index, type, network interface, IPv4 address or prefix), counters, and which of them rose between two
    readings.
    """
    reading = Reading(root)
    ports = list(reading.matches(_DEVICES, "*/ports/*"))
    reading.put("gpudirect", _gpudirect(reading))
    if not ports:
        reading.miss("ports", f"{_DEVICES} has no adapter")
        return reading.facts()
    before = [_counters(reading, port) for port in ports]
    wait()
    found = []
    for port, first in zip(ports, before, strict=True):
        after = _counters(reading, port)
        found.append({**_port(reading, port), "counters": after, "rising": rising(first, after)})
    reading.put("ports", found)
    return reading.facts()


def _port(reading: Reading, port: Path) -> dict[str, Any]:
    device = port.parents[1]
    facts = {
        "device": device.name,
        "port": whole(port.name),
        "pci": address(device / "device"),
        "firmware": reading.line(device / "fw_ver"),
        "type": reading.line(device / "hca_type"),
        "board": reading.line(device / "board_id"),
        "interfaces": list(_interfaces(device / "device/net")) or None,
        "state": _name(reading.line(port / "state")),
        "phys_state": _name(reading.line(port / "phys_state")),
        "link_layer": reading.line(port / "link_layer"),
        "gids": list(_gids(reading, port)),
        **_rate(reading.line(port / "rate")),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _interfaces(folder: Path) -> Iterator[str]:
    """Yield the adapter's own interfaces, and the bonds of which they are members."""
    for each in sorted(folder.glob("*")):
        yield each.name
        if (each / "master/bonding").exists():
            yield (each / "master").resolve().name


def _name(state: str | None) -> str | None:
    """Return ``ACTIVE`` of ``4: ACTIVE``."""
    return state and state.partition(": ")[2]


def _rate(text: str | None) -> dict[str, Any]:
    """Return Gb/s, lanes and generation of ``400 Gb/sec (4X NDR)``."""
    found = re.match(r"([\d.]+) Gb/sec(?: \((\d+)X ?(\w*)\))?", text or "")
    if found is None:
        return {}
    lanes = {"width": int(found[2]), "generation": found[3] or "SDR"} if found[2] else {}
    return {"rate": float(found[1]), **lanes}


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


def _counters(reading: Reading, port: Path) -> dict[str, int]:
    read = {
        name: whole(reading.line(port / folder / name))
        for folder, names in COUNTERS.items()
        for name in names
    }
    return {name: value for name, value in read.items() if value is not None}


def _gpudirect(reading: Reading) -> dict[str, Any]:
    """Return the versions of the modules for peer memory, and whether dma-buf can take their place."""
    modules = {
        "nvidia_peermem": "/sys/module/nvidia_peermem",
        "nv_mem": "/sys/kernel/mm/memory_peers/nv_mem",
    }
    facts: dict[str, Any] = {
        name: reading.line(reading.path(folder) / "version") for name, folder in modules.items()
    }
    driver = reading.line(reading.path("/proc/driver/nvidia/version"))
    kernel = re.match(
        r"(\d+)\.(\d+)", reading.line(reading.path("/proc/sys/kernel/osrelease")) or ""
    )
    if driver and kernel:
        recent = (int(kernel[1]), int(kernel[2])) >= (5, 12)
        facts["dma_buf"] = recent and "Open Kernel Module" in driver
    return facts
