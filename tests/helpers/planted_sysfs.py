"""Planted trees of files that look like /sys and /proc, as Linux lays them out (Documentation/ABI)."""

import os
from pathlib import Path


def plant(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below a root. A text ``-> TARGET`` is a link to an absolute path below the root."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.startswith("-> "):
            target = root / content[3:].lstrip("/")
            path.symlink_to(os.path.relpath(target, path.parent))
        else:
            path.write_text(content + "\n")
    return root


def pci(root: Path, path: str, kind: str, node: int = 0, **files: str | bytes) -> str:
    """Plant a PCI device and the bridges above it; return its folder, as the kernel names it.

    `path` leads from the host bridge, such as ``0000:00``, over the bridges to the device, each as in ``01:00.0``.
    """
    host, *parts = path.split("/")
    folder = f"/sys/devices/pci{host}"
    for at, part in enumerate(parts):
        folder += f"/{part}" if part.count(":") == 2 else f"/{host[:4]}:{part}"
        link = f"/sys/bus/pci/devices/{folder.rpartition('/')[2]}"
        if not (root / link.lstrip("/")).exists():
            own = {"class": kind, **files} if at == len(parts) - 1 else {"class": "0x060400"}
            facts = {f"{folder}/{name}": text for name, text in own.items()}
            plant(root, {**facts, f"{folder}/numa_node": str(node), link: f"-> {folder}"})
    return folder


def rdma(root: Path, device: str, name: str, ports: int = 1, **files: str) -> None:
    """Plant an RDMA adapter on a PCI device, with active ports of NDR InfiniBand."""
    folder = f"{device}/infiniband/{name}"
    port = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "counters/link_downed": "3",
        "counters/symbol_error": "0",
        **files,
    }
    for number in range(1, ports + 1):
        plant(root, {f"{folder}/ports/{number}/{file}": text for file, text in port.items()})
    links = {f"{folder}/device": f"-> {device}", f"/sys/class/infiniband/{name}": f"-> {folder}"}
    plant(root, links)


def cpus(
    root: Path, nodes: list[str], sockets: int = 1, threads: int = 1, allowed: str = ""
) -> None:
    """Plant processors: the CPUs of each NUMA node. The nodes are shared out among the sockets in their order."""
    from hpccomm.units import numbers, ranges

    every = sorted(cpu for node in nodes for cpu in numbers(node))
    cores = len(every) // threads
    files = {
        "/sys/devices/system/cpu/online": ranges(every),
        "/sys/devices/system/node/online": ranges(range(len(nodes))),
        "/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed or ranges(every)}",
    }
    for number, node in enumerate(nodes):
        folder = f"/sys/devices/system/node/node{number}"
        distances = [10 if other == number else 32 for other in range(len(nodes))]
        files |= {
            f"{folder}/cpulist": node,
            f"{folder}/distance": " ".join(map(str, distances)),
            f"{folder}/meminfo": f"Node {number} MemTotal:       65536000 kB",
        }
        for cpu in numbers(node):
            topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
            siblings = [cpu % cores + thread * cores for thread in range(threads)]
            files[f"{topology}/thread_siblings_list"] = ranges(siblings)
            files[f"{topology}/physical_package_id"] = str(number * sockets // len(nodes))
    plant(root, files)
