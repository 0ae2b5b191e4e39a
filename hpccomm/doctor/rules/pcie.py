"""Rules about PCI Express and NVLink: widths of connections, and paths between GPUs."""

from collections.abc import Sequence

from hpccomm.doctor.rule import Faults, List, rules
from hpccomm.hardware.facts import hardware, is_gpu
from hpccomm.units import ranges

MELLANOX = "0x15b3"
"""The vendor of adapters that speak RDMA over Ethernet too."""


REDIRECT = 0x0C
"""Bits of ACS that send what one peer writes to another up to the processor (P2P Request and Completion Redirect)."""


def _adapter(ports: List, devices: List, virtual: bool | None) -> Faults:
    if virtual:  # its links are virtual
        return
    by_address = {each["address"]: each for each in devices}
    rates: dict[str, float] = {}
    for port in ports:
        if port.get("state") == "ACTIVE" and port.get("pci") in by_address:
            rates[port["pci"]] = rates.get(port["pci"], 0.0) + port.get("rate", 0.0)
    for address, rate in rates.items():
        link = by_address[address]
        speed, width = link.get("speed", 0.0), link.get("width", 0)
        # From the third generation on 128 of 130 bits are data, before 8 of 10.
        room = speed * width * (128 / 130 if speed >= 8 else 0.8)
        if 0 < room < rate:
            yield f"{address} has ports of {rate:g} Gb/s on {width} lanes of {speed:g} GT/s, which carry {room:.0f} Gb/s"


def _lanes(devices: List, bridges: List, virtual: bool | None) -> Faults:
    slots = {each["address"]: each.get("max_width") for each in bridges}
    for each in filter(is_gpu, () if virtual else devices):
        most = each.get("max_width", 0)
        most = min(most, slots.get(each["path"][-2]) or most)
        if 0 < each.get("width", 0) < most:
            yield f"the GPU at {each['address']} has {each['width']} of {most} lanes"


def _has_peers(devices: List) -> bool:
    """Whether a node has a GPU with another one, or an adapter for RDMA, to reach."""
    gpus = sum(map(is_gpu, devices))
    rdma = sum(each["class"].startswith("0x0207") or each["vendor"] == MELLANOX for each in devices)
    return gpus > 0 and gpus + rdma > 1


def _acs(bridges: List, devices: List, _: Sequence[int]) -> Faults:
    # Peers' messages pass the ports of a switch. The processor's ports come first on a path.
    switches = {bridge for each in devices for bridge in each["path"][2:-1]}
    ports = [each["acs"] for each in bridges if "acs" in each and each["address"] in switches]
    count = sum(bool(control & REDIRECT) for control in ports)
    if count and _has_peers(devices):
        yield f"{count} of {len(ports)} ports of switches send what peers exchange up to the processor (ACS redirect)"


def _iommu(modes: Sequence[str], devices: List) -> Faults:
    translated = [mode for mode in modes if mode.startswith("DMA")]
    if translated and _has_peers(devices):
        yield f"the IOMMU translates addresses of devices ({', '.join(translated)})"


def _near(devices: List, nodes: List, ports: List) -> Faults:
    tree = {"pci": {"devices": devices}, "cpu": {"nodes": nodes}, "infiniband": {"ports": ports}}
    node = hardware("", tree)
    several = len([nic for nic in node.of_kind("nic") if nic.rate and nic.domain is not None]) > 1
    for gpu in node.of_kind("gpu") if several else ():  # one cannot be near to all
        near = [nic for nic in node.nearest(gpu, "nic") if nic.rate and nic.domain is not None]
        if near and node.between(gpu, near[0]) == "SYS" and gpu.domain is not None:
            yield f"the GPU at {gpu.address} (NUMA {gpu.domain}) reaches {near[0].name} by another NUMA node only"


def _nvlink(gpus: List) -> Faults:
    for gpu in gpus:
        down = [link["link"] for link in gpu["links"] if not link["up"]]
        if 0 < len(down) < len(gpu["links"]):  # with all of them down, nothing is plugged in
            count = f"{len(down)} of {len(gpu['links'])}"
            yield f"{count} NVLinks of the GPU at {gpu['pci']} are down: {ranges(down)}"


RULES = rules({
    "nvlink.lanes": (_nvlink, "nvlink.gpus"),
    "pcie.adapter": (_adapter, "infiniband.ports", "pci.devices", "host.virtual?"),
    "pcie.lanes": (_lanes, "pci.devices", "pci.bridges", "host.virtual?"),
    "pcie.acs": (_acs, "pci.bridges", "pci.devices", "pci.bridges.*.acs"),
    "pcie.iommu": (_iommu, "pci.iommu.modes", "pci.devices"),
    "pcie.near": (_near, "pci.devices", "cpu.nodes", "infiniband.ports"),
})  # fmt: skip
