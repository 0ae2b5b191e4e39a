"""Networks and PCI of a sound node with a GPU, an InfiniBand and a RoCE adapter, and a fault for each rule.

Formats: Linux, Documentation/ABI (sysfs-class-net, sysfs-class-infiniband, sysfs-bus-pci, sysfs-kernel-iommu_groups); PCI
Express Base Specification (7.7.11, ACS). Paths and addresses are those of a DGX A100 in tests/helpers/published_nodes.py.
"""


def port(device: str, pci: str, **more: object) -> dict:
    return {
        "device": device,
        "port": 1,
        "pci": pci,
        "firmware": "20.41.1000",
        "type": "MT4123",
        "board": "MT_0000000223",
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "link_layer": "InfiniBand",
        "rate": 200.0,
        "width": 4,
        "generation": "HDR",
        "gids": [{"index": 0, "type": "IB/RoCE v1", "ndev": None, "prefix": "fe80::"}],
        "counters": {"link_downed": 4, "symbol_error": 0},
        "rising": {},
    } | more


def device(address: str, kind: str, *bridges: str, **more: object) -> dict:
    return {
        "address": address,
        "path": ["pci0000:00", *bridges, address],
        "class": kind,
        "vendor": "0x15b3" if kind.startswith("0x02") else "0x10de",
        "device": "0x20b0",
        "node": 0,
        "speed": 16.0,
        "max_speed": 16.0,
        "width": 16,
        "max_width": 16,
    } | more


ROCE = [
    {"index": 1, "type": "RoCE v2", "ndev": "ens1", "prefix": "fe80::"},
    {"index": 3, "type": "RoCE v2", "ndev": "ens1", "address": "10.1.2.3"},
]

SOUND = {
    "network": {
        "devices": [
            {
                "name": name, "pci": pci, "speed": speed, "mtu": 9000, "duplex": "full",
                "state": "up", "on": True, "losses": {"rx_dropped": 12}, "rising": {},
            }
            for name, pci, speed in (("eno1", "0000:e1:00.0", 1000), ("ens1", "0000:61:00.0", 200000))
        ],
        "routes": {
            "networks": {"eno1": ["192.0.2.0/24"], "ens1": ["10.1.2.0/24"]},
            "gateways": [],
        },
    },
    "infiniband": {
        "ports": [
            port("mlx5_0", "0000:0c:00.0"),
            port("mlx5_1", "0000:12:00.0"),
            port("mlx5_4", "0000:61:00.0", link_layer="Ethernet", gids=ROCE),
        ],
        "gpudirect": {"nvidia_peermem": "580.65.06", "nv_mem": None, "dma_buf": False},
    },
    "nvlink": {
        "gpus": [
            {
                "name": "NVIDIA A100-SXM4-40GB",
                "pci": "0000:07:00.0",
                "links": [{"link": number, "up": True} for number in range(12)],
            }
        ]
    },
    "pci": {
        "devices": [
            device("0000:07:00.0", "0x030200", "0000:01:00.0", "0000:02:00.0"),
            device("0000:0c:00.0", "0x020700", "0000:01:00.0", "0000:02:04.0"),
            device("0000:12:00.0", "0x020700", "0000:01:00.0", "0000:02:08.0"),
            device("0000:61:00.0", "0x020000"),
        ],
        "bridges": [
            {"address": "0000:01:00.0"},
            {"address": "0000:02:00.0", "acs": 0x11},
            {"address": "0000:02:04.0", "acs": 0x11},
        ],
        "iommu": {"units": ["ivhd0"], "modes": ["identity"], "kernel": ["iommu=pt"]},
    },
}  # fmt: skip

FAULTS = {
    "network.link": {"network.devices.1.state": "down"},
    "network.speed": {"network.devices.0.speed": 100},
    "network.duplex": {"network.devices.0.duplex": "half"},
    "network.losses": {"network.devices.0.rising": {"rx_missed_errors": 3}},
    "network.reach": {
        "network.routes": {"networks": {"eno1": ["198.51.100.0/24"]}, "gateways": []},
    },
    "network.rails": {"network.routes.networks.ens1": ["10.1.3.0/24"]},
    "infiniband.state": {"infiniband.ports.1.state": "INIT"},
    "infiniband.link": {
        "infiniband.ports.1.state": "DOWN",
        "infiniband.ports.1.phys_state": "Polling",
    },
    "infiniband.rate": {
        "infiniband.ports.1.rate": 50.0,
        "infiniband.ports.1.width": 1,
    },
    "infiniband.errors": {"infiniband.ports.1.rising": {"symbol_error": 2}},
    "infiniband.went_down": {"infiniband.ports.1.counters.link_downed": 60},
    "infiniband.resent": {"infiniband.ports.2.rising": {"packet_seq_err": 9}},
    "infiniband.gpudirect": {"infiniband.gpudirect.nvidia_peermem": None},
    "roce.gid": {"infiniband.ports.2.gids": ROCE[:1]},
    "roce.packets": {"network.devices.1.mtu": 1500},
    "nvlink.lanes": {"nvlink.gpus.0.links.4.up": False},
    "pcie.adapter": {"pci.devices.1.width": 8},
    "pcie.lanes": {"pci.devices.0.width": 8},
    "pcie.acs": {"pci.bridges.1.acs": 0x1D},
    "pcie.iommu": {"pci.iommu.modes": ["DMA-FQ"]},
    "pcie.near": {"pci.devices.0.node": 1, "pci.devices.0.path": ["pci0000:80", "0000:07:00.0"]},
    "alike.gpudirect": {"infiniband.gpudirect.nvidia_peermem": None},
}
