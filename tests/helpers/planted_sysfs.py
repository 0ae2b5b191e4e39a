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
