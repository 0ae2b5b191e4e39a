"""Healthy nodes that look faulty: no rule may warn about them.

Each row is the sound tree of planted_trees with what such a node has otherwise, and the rules that must be silent.
Sources: what Linux prints for such devices (drivers/infiniband/core/verbs.c and sysfs.c, drivers/net/usb, kernel/printk,
mm and drivers/acpi/apei), NVIDIA's user guides of DGX A100 and H100, Microsoft's page on accelerated networking.
"""

from planted_trees.wires import ROCE, device, port

GIB = 1 << 30
LINK_LOCAL = [{"index": 0, "type": "RoCE v2", "ndev": "enP1", "prefix": "fe80::"}]
OF_ETH0 = {"index": 2, "type": "RoCE v2", "ndev": "eth0", "address": "10.0.0.4"}
ACCELERATED = port(
    "mlx5_0", "0001:00:02.0", link_layer="Ethernet", type="MT4120", rate=50.0, interfaces=["enP1"],
    gids=[*LINK_LOCAL, OF_ETH0],
)  # fmt: skip
"""A virtual machine's adapter: the address is that of the interface above it."""

HEALTHY = {
    "unused ports that NetworkManager has switched on": (
        {
            "network.devices.0": {
                "name": "eno2", "state": "down", "on": True, "losses": {"carrier_changes": 1}, "rising": {},
            },
        },
        "network.link",
    ),
    "the USB interface of the board's controller": (
        {"network.devices.0.speed": 10, "network.devices.0.duplex": "half", "network.devices.0.usb": True},
        "network.speed network.duplex",
    ),
    "a neighbor that speaks LLDP": ({"network.devices.0.rising": {"rx_dropped": 2}}, "network.losses"),
    "RoCE of 25 Gb/s": (
        {"infiniband.ports.2": port("mlx5_4", "0000:61:00.0", link_layer="Ethernet", rate=25.0, width=1, gids=ROCE)},
        "infiniband.rate",
    ),
    "a network for storage that is slower than that for messages": (
        {"infiniband.ports.1.board": "MT_0000000225", "infiniband.ports.1.rate": 100.0},
        "infiniband.rate",
    ),
    "the second port of a card": (
        {
            "infiniband.ports.1": port(
                "mlx5_1", "0000:0c:00.1", state="DOWN", phys_state="Polling", counters={"link_downed": 0}
            )
        },
        "infiniband.link",
    ),
    "an Ethernet card for management": (
        {"infiniband.ports.2.gids": LINK_LOCAL, "network.devices.1.mtu": 1500, "network.routes.networks": {}},
        "roce.gid roce.packets",
    ),
    "a virtual machine with accelerated networking": (
        {
            "infiniband.ports": [ACCELERATED],
            "network.devices": [{"name": "eth0", "state": "up", "mtu": 1500, "losses": {}, "rising": {}}],
            "network.routes": {"networks": {"eth0": ["10.0.0.0/24"]}, "gateways": ["10.0.0.1"]},
            "limits.memlock.soft": 64 << 10,
            "slurm.config.PropagateResourceLimitsExcept": "(null)",
            "ranks.0.libraries": {},
            "ranks.1.libraries": {},
            "infiniband.gpudirect.nvidia_peermem": None,
        },
        "roce.gid roce.packets limits.memlock slurm.memlock mpi.fabric infiniband.gpudirect",
    ),
    "root, and a container with CAP_IPC_LOCK": (
        {"limits.memlock.soft": 8 << 20, "limits.may_lock_all": True},
        "limits.memlock",
    ),
    "a limit of locked memory as large as the memory": ({"limits.memlock.soft": 240 * GIB}, "limits.memlock"),
    "a virtual machine whose slots are made up": (
        {"host.virtual": True, "pci.devices.0.width": 8, "pci.devices.1.width": 1},
        "pcie.lanes pcie.adapter",
    ),
    "a laptop with a narrow slot": (
        {"pci.devices.0.width": 8, "pci.bridges.1.max_width": 8},
        "pcie.lanes",
    ),
    "a laptop whose processor draws pictures": (
        {
            "pci.devices": [device("0000:04:00.0", "0x030000", "0000:00:08.1", vendor="0x1002")],
            "pci.iommu.modes": ["DMA-FQ"],
        },
        "pcie.iommu pcie.acs",
    ),
    "ACS at the ports of the processor": ({"pci.bridges.0.acs": 0x1D}, "pcie.acs"),
    "one adapter for two sockets": (
        {
            "infiniband.ports": [port("mlx5_0", "0000:0c:00.0")],
            "pci.devices.0.node": 1,
            "pci.devices.0.path": ["pci0000:80", "0000:07:00.0"],
        },
        "pcie.near",
    ),
    "an adapter whose NUMA node the kernel does not know": (
        {"pci.devices.1.node": -1, "pci.devices.2.node": -1, "pci.devices.3.node": -1,
         "pci.devices.0.path": ["pci0000:80", "0000:07:00.0"]},
        "pcie.near",
    ),
    "Intel's driver without hardware states": (
        {"host.governors": {"powersave": 8}, "host.cpufreq_driver": "intel_pstate"},
        "host.governor",
    ),
    "a laptop with another driver": (
        {"pci.devices.0.driver": "nouveau", "gpus.module": False},
        "gpus.module",
    ),
    "a job of Slurm with some of the GPUs": (
        {"gpus.count": 0, "slurm.variables": {"SLURM_GPUS_ON_NODE": "0"}},
        "gpus.seen slurm.gpus",
    ),
    "a container with some of the GPUs": (
        {"gpus.count": 0, "host.container": ["/.dockerenv"], "slurm.variables": {}},
        "gpus.seen",
    ),
    "instances of a GPU": (
        {"gpus.devices.0.mig": [1, 1], "slurm.variables.SLURM_GPUS_ON_NODE": "7"},
        "slurm.gpus",
    ),
    "MPI without CUDA beside NCCL": ({"mpi.cuda_aware": False}, "mpi.cuda"),
    # The binding is the cause, and its finding is enough.
    "ranks that are bound to one core": (
        {"ranks.0.cores": "0", "ranks.1.cores": "0"}, "mpi.oversubscribed mpi.hardware_threads",
    ),
    "as many threads as processors": (
        {"ranks.0.variables": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "auto"}}, "mpi.openmp",
    ),
    "a launcher of Cray's that starts all ranks": ({"mpi.pmi": []}, "mpi.pmi"),
    "two ranks, bound to one core of 64 each": (
        {"slurm.variables.SLURM_CPUS_ON_NODE": "64", "ranks.0.cores": "0", "ranks.1.cores": "1"},
        "slurm.cpus",
    ),
    "nodes with IPv6 alone": ({"network.routes": {"networks": {}, "gateways": []}}, "network.reach"),
    "nodes with a network each, and routers": (
        {"network.routes": {"networks": {"ens1": ["10.1.3.0/31"]}, "gateways": ["10.1.3.1"]}},
        "network.rails",
    ),
    "two sizes of what the kernel keeps for itself": (
        {"host.memory": 256 * GIB - (120 << 20), "limits.shared_memory.bytes": 128 * GIB - (60 << 20)},
        "alike.memory alike.shared_memory",
    ),
    "Slurm that gives other processors on each node": ({"cpu.allowed": "8-15"}, "alike.allowed"),
}  # fmt: skip
