"""A sound node with two ranks and two GPUs under Slurm, InfiniBand and RoCE; a fault for each rule; odd nodes that are healthy.

``sound.json`` is what the doctor collects of the sound node, by source. A line of ``faults.tsv`` has the id of a rule, the
facts to plant, by their paths, and where it matters the facts that the sound nodes have as well. A node of
``healthy.json`` looks faulty and is not: those rules must be silent about its facts.

Formats: proc_pid_limits(5), Linux's Documentation/admin-guide (cgroup-v2, sysctl, transhuge) and Documentation/ABI
(sysfs-class-net, sysfs-class-infiniband, sysfs-bus-pci, sysfs-kernel-iommu_groups), slurm.conf(5), NVML's API reference
(nvmlClocksEventReasons, of which 72 is a slowdown by heat, and nvmlGpuP2PStatus_t), NVIDIA's catalogue of Xids, NCCL's
guide (Diagnostics), PCI Express Base Specification (7.7.11, ACS: 17 checks, 29 redirects too). Paths and addresses are
those of the DGX A100 in tests/tools/doctor/published. Healthy nodes are what Linux prints for such devices
(drivers/infiniband/core/verbs.c and sysfs.c, drivers/net/usb, kernel/printk, mm and drivers/acpi/apei), and of NVIDIA's
user guides of DGX A100 and H100, and Microsoft's page on accelerated networking.
"""

import json
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

_FOLDER = Path(__file__).parent


def _faults() -> dict[str, tuple[Facts, Facts]]:
    _, *lines = (_FOLDER / "faults.tsv").read_text("utf-8").splitlines()
    rows = [(*line.split("\t"), "{}")[:3] for line in lines]
    return {rule: (json.loads(both), json.loads(fault)) for rule, fault, both in rows}


SOUND: Facts = json.loads((_FOLDER / "sound.json").read_text("utf-8"))
FAULTS = _faults()
"""By the id of a rule: what both nodes have beyond the sound one, and the fault of the second."""
HEALTHY: dict[str, tuple[Facts, str]] = {
    name: (node["facts"], node["silent"])
    for name, node in json.loads((_FOLDER / "healthy.json").read_text("utf-8")).items()
}
"""By what a node is: its facts, and the rules that must be silent, with spaces between them."""
