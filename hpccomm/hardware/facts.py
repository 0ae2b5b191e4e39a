"""From the facts of a node, as `hpccomm.doctor` reads them, to its hardware.

`hpccomm topo` and some rules of the doctor use it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpccomm.hardware.node import Component, NodeHardware, NumaDomain, connected
from hpccomm.units import numbers

SOURCES = ("cpu", "pci", "network", "infiniband", "nvlink")
"""Sources of the doctor that are needed."""

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}

_ACCELERATOR = re.compile(r"0x(0302|0380|12)")
_DISPLAY = ("0x10de", "0x1002")
"""Makers whose displays compute; that of a server's management controller does not."""

NVLINK, NVLINK_5, XGMI = 25.0, 50.0, 50.0
"""1e9 B/s of one link in one direction: NVLink 2 to 4, NVLink 5, and AMD's of an MI200 (their data sheets)."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Of PCI Express, by GT/s."""


def hardware(name: str, tree: Mapping[str, Any]) -> NodeHardware:
    """Return the hardware of a node.

    Parameters
    ----------
    name : str
        The host's.
    tree : mapping
        Its facts, by source.
    """
    domains = tuple(_domains(tree.get("cpu", {})))
    gpus = tuple(_gpus(tree, domains))
    names = {gpu.address: gpu.name for gpu in gpus}
    nvidia = [gpu for gpu in tree.get("nvlink", {}).get("gpus", ()) if gpu["pci"] in names]
    # What has no GPU of this node at its other end leads to a switch, which a virtual machine may hide.
    links, switched = connected(
        (names[gpu["pci"]], names.get(link.get("to")), 1)
        for gpu in nvidia
        for link in gpu["links"]
        if link["up"]
    )
    rate = max((gpu.get("rate", 0.0) for gpu in nvidia), default=0.0) or NVLINK
    return NodeHardware(
        name, domains, (*gpus, *_nics(tree, domains)), links, switched, "NV", rate,
        tuple(_unread(tree, gpus)),
    )  # fmt: skip


def _domains(cpu: Mapping[str, Any]) -> Iterator[NumaDomain]:
    sockets = {
        each: socket["socket"]
        for socket in cpu.get("sockets", ())
        for each in numbers(socket["cpus"])
    }
    firsts = {numbers(core)[0] for core in cpu.get("cores", ())}
    whole = [{"node": 0, "cpus": cpu.get("online", "")}]
    for node in cpu.get("nodes", whole):
        cpus = tuple(numbers(node["cpus"]))
        socket = sockets.get(cpus[0]) if cpus else None
        distances = tuple(node.get("distances", ()))
        cores, memory = len(firsts & set(cpus)), node.get("bytes", 0)
        yield NumaDomain(node["node"], cpus, socket, cores, memory, distances)


def _domain(device: Mapping[str, Any], domains: Sequence[NumaDomain]) -> int | None:
    """Return the NUMA node of a device; the kernel says -1 in virtual machines, and if there is only one."""
    if device.get("node", -1) >= 0:
        return int(device["node"])
    return domains[0].number if len(domains) == 1 else None


def _gpus(tree: Mapping[str, Any], domains: Sequence[NumaDomain]) -> Iterator[Component]:
    names = {gpu["pci"]: gpu["name"] for gpu in tree.get("nvlink", {}).get("gpus", ())}
    for number, device in enumerate(filter(is_gpu, tree.get("pci", {}).get("devices", ()))):
        vendor, at = device["vendor"], device["address"]
        words = names.get(at) or f"{VENDORS.get(vendor, vendor)} {device['device']}"
        yield Component(
            f"GPU{number}", "gpu", at, tuple(device["path"]), _domain(device, domains), words, lanes(device)
        )  # fmt: skip


def is_gpu(device: Mapping[str, Any]) -> bool:
    """Whether a device on PCI computes: an accelerator, or a display of a maker whose displays do."""
    kind = device["class"]
    shows = kind.startswith("0x03") and device["vendor"] in _DISPLAY
    return shows or _ACCELERATOR.match(kind) is not None


def lanes(device: Mapping[str, Any]) -> str:
    """Return the best connection that a device can have: an idle one lowers its speed."""
    generation = GENERATIONS.get(device.get("max_speed", 0.0))
    return f"PCIe {generation} x{device['width']}" if generation and device.get("width") else ""


def _nics(tree: Mapping[str, Any], domains: Sequence[NumaDomain]) -> Iterator[Component]:
    devices = {device["address"]: device for device in tree.get("pci", {}).get("devices", ())}
    ports = tree.get("infiniband", {}).get("ports", ())
    interfaces = tree.get("network", {}).get("devices", ())
    several = Counter(port["device"] for port in ports)
    adapters = [
        (
            f"{port['device']}:{port['port']}" if several[port["device"]] > 1 else port["device"],
            port.get("pci"),
            port.get("rate", 0.0) if port.get("state") == "ACTIVE" else 0.0,
            f"{port.get('link_layer', 'RDMA')} {port.get('generation', '')} {port.get('state', '')}",
        )
        for port in ports
    ]
    rdma = {port.get("pci") for port in ports}
    adapters += [
        (
            each["name"],
            each.get("pci"),
            each.get("speed", 0) / 1000 if each.get("state") == "up" else 0.0,
            f"interface {each.get('state', '')}",
        )
        for each in interfaces
        if each.get("pci") not in rdma
    ]
    for name, at, rate, words in adapters:
        device = devices.get(at)
        if device is not None and not device.get("virtual"):
            yield Component(
                name, "nic", at, tuple(device["path"]), _domain(device, domains),
                " ".join(words.split()), lanes(device), rate,
            )  # fmt: skip


def _unread(tree: Mapping[str, Any], gpus: Sequence[Component]) -> Iterator[str]:
    for source in ("cpu", "pci", "network"):
        for fact, why in tree.get(source, {}).get("unread", {}).items():
            if fact in ("", "cores", "sockets", "nodes", "devices"):
                yield f"{source} {fact}: {why}".replace(" :", ":")
    why = tree.get("nvlink", {}).get("unread", {}).get("gpus")
    if why and any(gpu.words.startswith("NVIDIA") for gpu in gpus):
        yield f"NVLink: {why}"
