"""GPUs of AMD and what links them, as their driver lists them."""

import re
from pathlib import Path
from typing import Any

from hpccomm.doctor.reading import Reading

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_LINKS = {"2": "PCIe", "11": "XGMI"}


def gather(root: Path = Path("/")) -> dict[str, Any]:
    """Return ``gpus``: each with its PCI address and ``links``: the kind, and the address of the GPU at its other end."""
    reading = Reading(root)
    nodes = {
        folder.name: _values(reading, folder / "properties")
        for folder in reading.matches(_NODES, "*")
    }
    gpus = {
        name: _address(node) for name, node in nodes.items() if node.get("simd_count", "0") != "0"
    }
    if not gpus:
        reading.miss("gpus", f"{_NODES} has no GPU")
        return reading.facts()
    found = []
    for name, at in gpus.items():
        folder = reading.path(_NODES) / name
        files = [*folder.glob("io_links/*/properties"), *folder.glob("p2p_links/*/properties")]
        links = [_values(reading, file) for file in sorted(files)]
        ends = {
            gpus[to]: _LINKS.get(link["type"], "other")
            for link in links
            if (to := link.get("node_to")) in gpus
        }
        found.append({"pci": at, "links": [{"kind": kind, "to": to} for to, kind in ends.items()]})
    reading.put("gpus", found)
    return reading.facts()


def _values(reading: Reading, file: Path) -> dict[str, str]:
    """Return the words and numbers of a file of properties."""
    return dict(re.findall(r"^(\w+) (\d+)$", reading.line(file) or "", re.MULTILINE))


def _address(node: dict[str, str]) -> str:
    place = int(node.get("location_id", "0"))
    domain, bus, device = int(node.get("domain", "0")), place >> 8, place >> 3 & 31
    return f"{domain:04x}:{bus:02x}:{device:02x}.{place & 7}"
