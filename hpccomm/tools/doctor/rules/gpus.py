"""Rules about PCI Express, NVLink and NVIDIA's GPUs: connections, driver, memory errors, clocks, kernel log; and about NCCL."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpccomm.tools.doctor.hardware import hardware, is_gpu
from hpccomm.tools.doctor.rule import Facts, Faults, List, Texts, rules
from hpccomm.tools.doctor.rules.mpi import one_library
from hpccomm.tools.explain.meanings import XIDS
from hpccomm.units import counted, few, grouped, ranges

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
    """Whether a node has a GPU that can reach another GPU, or an adapter for RDMA."""
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
    for gpu in node.of_kind("gpu") if several else ():  # one adapter cannot be near to all GPUs
        near = [nic for nic in node.nearest(gpu, "nic") if nic.rate and nic.domain is not None]
        if near and node.between(gpu, near[0]) == "SYS" and gpu.domain is not None:
            yield f"the GPU at {gpu.address} (NUMA {gpu.domain}) reaches {near[0].name} by another NUMA node only"


def _nvlink(gpus: List) -> Faults:
    for gpu in gpus:
        down = [link["link"] for link in gpu["links"] if not link["up"]]
        if 0 < len(down) < len(gpu["links"]):  # with all of them down, nothing is plugged in
            count = f"{len(down)} of {len(gpu['links'])}"
            yield f"{count} NVLinks of the GPU at {gpu['pci']} are down: {ranges(down)}"


CHECKS = {
    "nccl.says_p2p": "p2p",
    "nccl.says_net_bw": "net bw",
    "nccl.says_inventory": "GPU inventory",
    "nccl.says_driver": "CUDA driver version",
    "nccl.says_ecc": "ECC",
    "nccl.says_nvlink": "NVLink",
    "nccl.says_environment": "NCCL environment",
}
"""NCCL's checks by the rules that translate them (NCCL's guide, Diagnostics and RAS)."""


def _one_version(versions: Texts) -> Faults:
    if len(set(versions)) > 1:
        yield f"ranks of this node have NCCL {', '.join(sorted(set(versions)))}"


def _stack(versions: Texts, soft: int | None) -> Faults:
    for version in sorted(set(versions)):
        if soft is None and [*map(int, re.findall(r"\d+", version))][:2] < [2, 28]:
            yield f"the stack is unlimited; NCCL {version} then gives its threads a small one"


SLOWED = {
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReason*; the power cap (4) is usual at work."""

PEERS = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "their PCI topology does not support it",
    4: "it is switched off in the driver",
    5: "it is not supported",
}
"""NVML's nvmlGpuP2PStatus_t."""


OTHERS = {"nouveau", "nova", "vfio-pci"}
"""Drivers that use a GPU for pictures, or for virtual machines."""


def on_bus(devices: List) -> list[Facts]:
    """Return NVIDIA's GPUs among the devices on PCI."""
    return [each for each in devices if is_gpu(each) and each["vendor"] == "0x10de"]


def _module(devices: List, module: bool) -> Faults:
    count = sum(each.get("driver") not in OTHERS for each in on_bus(devices))
    if count and not module:
        yield f"{count} NVIDIA devices are on the bus, and there is no /proc/driver/nvidia"


def _seen(
    devices: List,
    count: int,
    lost: Texts | None,
    container: Texts,
    variables: Facts | None,
) -> Faults:
    # A container, and a job of Slurm that confines devices, have some of them.
    some = container or "SLURM_GPUS_ON_NODE" in (variables or {})
    gpus = len(on_bus(devices))
    if lost or (count < gpus and not some):
        why = f" ({'; '.join(lost)})" if lost else ""
        yield f"{counted(gpus, 'GPU')} on the bus, and the driver shows {count - len(lost or ())}{why}"


def _cuda(begins: str, packages: Facts, cuda: int) -> Faults:
    for name, version in packages.items():
        wheel = re.fullmatch(begins + r"(\d+)x?", name)
        if wheel and int(wheel[1]) > cuda // 1000:
            yield f"{name} {version} needs CUDA {wheel[1]}, and the driver has CUDA {cuda // 1000}.{cuda % 1000 // 10}"


def _one_cupy(packages: Facts) -> Faults:
    names = [name for name in packages if name == "cupy" or name.startswith("cupy-cuda")]
    if len(names) > 1:
        yield f"{' and '.join(names)} are installed over each other, into one folder cupy"


def _ecc(devices: Facts) -> Faults:
    states = {index: device["ecc"] for index, device in devices.items() if "ecc" in device}
    off = [index for index, (now, _) in states.items() if not now]
    if 0 < len(off) < len(states):
        yield f"ECC is off on GPU {', '.join(off)}, and on with the others"
    for index, (now, then) in states.items():
        if now != then:
            yield f"ECC of GPU {index} goes {'on' if then else 'off'} when it is reset"


def _slowed(devices: Facts) -> Faults:
    for index, device in devices.items():
        if why := [name for bit, name in SLOWED.items() if device.get("clock_reasons", 0) & bit]:
            yield f"GPU {index} lowers its clock for: {', '.join(why)}"


STATES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "memory_errors": ("uncorrected", bool, "uncorrected memory errors since the last reset: GPU {}"),
    "remap_failed": ("remapped", lambda rows: rows[3], "a row of memory could not be replaced: GPU {}"),
    "remap_pending": ("remapped", lambda rows: rows[2], "a row of memory is replaced at the next reset: GPU {}"),
    "persistence": ("persistence", lambda on: not on, "persistence mode is off on GPU {}"),
    "mig": ("mig", any, "MIG is on, or will be after a reset, on GPU {}"),
    "prohibited": ("compute_mode", lambda mode: mode == 2, "the compute mode is Prohibited on GPU {}"),
    "in_use": ("processes", bool, "other processes compute on GPU {}"),
}  # fmt: skip
"""Rules about one fact of each device: what in it is a fault, and the sentence for the devices that have it."""


def _state(fact: str, bad: Callable[[Any], Any], sentence: str, devices: Facts) -> Faults:
    faulty = [index for index, device in devices.items() if fact in device and bad(device[fact])]
    if faulty:
        yield sentence.format(", ".join(faulty))


def _models(devices: Facts) -> Faults:
    names = {device["name"] for device in devices.values() if "name" in device}
    if len(names) > 1:
        yield f"the node has {', '.join(sorted(names))}"


def _link(devices: Facts, _: Any) -> Faults:
    for index, device in devices.items():
        if link := device.get("link"):
            now = (link["generation"], link["width"])
            most = (link["most_generation"], link["most_width"])
            if now != most:
                yield f"GPU {index} is at work by PCI Express {now[0]} x{now[1]}, and can have {most[0]} x{most[1]}"


def _peers(peers: Facts) -> Faults:
    kinds = grouped(
        (f"{way}: {PEERS.get(status, f'status {status}')}", pair)
        for pair, ways in peers.items()
        for way, status in ways.items()
        if status
    )
    for why, pairs in kinds.items():
        yield f"between GPUs {few(pairs, 4)}, {why}"


def _visible(variables: List, count: int) -> Faults:
    name = "CUDA_VISIBLE_DEVICES"
    for value in sorted({each[name] for each in variables if name in each}):
        words = value.split(",")
        if bad := [word for word in words if word.strip().isdigit() and int(word) >= count]:
            yield f"{name}={value} names {', '.join(bad)}, and there are {count} GPUs: those listed after it are invisible"


_UNKNOWN_XID = {
    "whose": "program",
    "meaning": "not in hpccomm's table; NVIDIA's catalogue of Xids has it",
    "remedy": "",
}


def _xids(whose: str, xids: List) -> Faults:
    for each in xids:
        row = XIDS.get(each["xid"], _UNKNOWN_XID)
        if row["whose"] == whose:
            what = f"; {row['remedy']}" if row["remedy"] else ""
            yield f"Xid {each['xid']} of {each['device']}, {each['times']} times: {row['meaning']}{what}"


RULES = rules({
    "nvlink.lanes": (_nvlink, "nvlink.gpus"),
    "pcie.adapter": (_adapter, "infiniband.ports", "pci.devices", "host.virtual?"),
    "pcie.lanes": (_lanes, "pci.devices", "pci.bridges", "host.virtual?"),
    "pcie.acs": (_acs, "pci.bridges", "pci.devices", "pci.bridges.*.acs"),
    "pcie.iommu": (_iommu, "pci.iommu.modes", "pci.devices"),
    "pcie.near": (_near, "pci.devices", "cpu.nodes", "infiniband.ports"),
    "gpus.module": (_module, "pci.devices", "gpus.module"),
    "gpus.seen": (_seen, "pci.devices", "gpus.count", "gpus.lost?", "host.container", "slurm.variables?"),
    "gpus.cupy": (partial(_cuda, "cupy-cuda"), "packages", "gpus.cuda"),
    "gpus.nccl": (partial(_cuda, "nvidia-nccl-cu"), "packages", "gpus.cuda"),
    "gpus.one_cupy": (_one_cupy, "packages"),
    **{f"gpus.{name}": (partial(_state, *state), "gpus.devices") for name, state in STATES.items()},
    "gpus.ecc": (_ecc, "gpus.devices"),
    "gpus.slowed": (_slowed, "gpus.devices"),
    "gpus.models": (_models, "gpus.devices"),
    "gpus.link": (_link, "gpus.devices", "gpus.devices.*.link"),
    "gpus.peers": (_peers, "gpus.peers"),
    "gpus.visible": (_visible, "ranks.*.variables", "gpus.count"),
    "gpus.xid": (partial(_xids, "gpu"), "kernel_log.xids"),
    "gpus.xid_program": (partial(_xids, "program"), "kernel_log.xids"),
    "gpus.lost": (tuple, "kernel_log.lost"),
    "nccl.one_library": (one_library, "ranks.*.nccl", "ranks.*.libraries.libnccl"),
    "nccl.one_version": (_one_version, "ranks.*.nccl"),
    "nccl.stack": (_stack, "ranks.*.nccl", "limits.stack.soft"),
    **{name: (tuple, f"nccl.says.{check}") for name, check in CHECKS.items()},
})  # fmt: skip
