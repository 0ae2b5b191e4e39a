"""The sources of processors, PCI, networks and links, on planted trees.

Formats: Linux, Documentation/ABI (sysfs-class-net, sysfs-class-infiniband, sysfs-bus-pci, sysfs-devices-system-cpu)
and Documentation/networking/statistics.rst.
"""

import struct

import pytest
from planted_sysfs import cpus, pci, plant, rdma

from hpccomm.tools.doctor.reading import read
from hpccomm.tools.doctor.sources import host, network
from hpccomm.tools.doctor.sources import pci as pci_source


def test_sockets_nodes_cores_and_what_is_allowed(tmp_path):
    cpus(tmp_path, ["0-3,8-11", "4-7,12-15"], sockets=2, threads=2, allowed="0-1,8-9")
    facts = read(host.processors, tmp_path)
    assert facts["allowed"] == "0-1,8-9"
    assert facts["cores"][:2] == ["0,8", "1,9"]
    assert len(facts["cores"]) == 8
    assert facts["sockets"] == [
        {"socket": 0, "cpus": "0-3,8-11"},
        {"socket": 1, "cpus": "4-7,12-15"},
    ]
    assert facts["nodes"][1]["distances"] == [32, 10]
    assert facts["nodes"][0]["bytes"] == 65536000 * 1024
    assert "unread" not in facts


def acs(control):
    """A configuration space with an extended capability before that of Access Control Services."""
    head = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)
    own = struct.pack("<IHH", 0x000D | 1 << 16, 0x5F, control)
    return bytes(256) + head + bytes(0x44) + own + bytes(8)


def test_the_way_to_a_device_and_its_link(tmp_path):
    gpu = pci(
        tmp_path, "0000:17/17:01.0/18:00.0/19:04.0/1a:00.0", "0x030200", 1,
        vendor="0x10de", current_link_speed="16.0 GT/s PCIe", max_link_speed="32.0 GT/s PCIe",
        current_link_width="16", max_link_width="16", local_cpulist="4-7",
    )  # fmt: skip
    plant(tmp_path, {f"{gpu.rpartition('/')[0]}/config": acs(0x1D)})
    plant(
        tmp_path, {"/proc/cmdline": "quiet iommu=pt", "/sys/kernel/iommu_groups/3/type": "identity"}
    )
    plant(tmp_path, {f"{gpu}/iommu_group": "-> /sys/kernel/iommu_groups/3"})
    pci(tmp_path, "0000:17/17:02.0/20:00.0", "0x010802")  # an NVMe drive
    facts = read(pci_source.gather, tmp_path)
    (device,) = facts["devices"]
    assert device["path"] == [
        *("pci0000:17", "0000:17:01.0", "0000:18:00.0", "0000:19:04.0", "0000:1a:00.0"),
    ]
    assert (device["speed"], device["max_speed"], device["width"]) == (16.0, 32.0, 16)
    assert device["iommu_group"] == "3"
    assert (device["node"], device["cpus"], device["vendor"]) == (1, "4-7", "0x10de")
    assert [bridge["address"] for bridge in facts["bridges"]] == device["path"][1:-1]
    assert [bridge.get("acs") for bridge in facts["bridges"]] == [None, None, 0x1D]
    assert facts["iommu"] == {"units": [], "modes": ["identity"], "kernel": ["iommu=pt"]}
    assert facts["unread"]["bridges.*.acs"].endswith("No such file or directory")


ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0"""


def test_interfaces_bonds_and_losses_that_rise(tmp_path):
    one, two = (pci(tmp_path, f"0000:00/00:03.1/01:00.{number}", "0x020000") for number in (0, 1))
    for name, device in (("eth0", one), ("eth1", two)):
        plant(tmp_path, {
            f"{device}/net/{name}/device": f"-> {device}",
            f"{device}/net/{name}/speed": "25000", f"{device}/net/{name}/mtu": "9000",
            f"{device}/net/{name}/operstate": "up", f"{device}/net/{name}/flags": "0x1003",
            f"{device}/net/{name}/statistics/rx_dropped": "7",
            f"/sys/class/net/{name}": f"-> {device}/net/{name}",
        })  # fmt: skip
    plant(tmp_path, {
        "/sys/devices/virtual/net/bond0/bonding/slaves": "eth0 eth1",
        "/sys/devices/virtual/net/bond0/speed": "-1",
        "/sys/class/net/bond0": "-> /sys/devices/virtual/net/bond0",
        f"{one}/net/eth0/master": "-> /sys/devices/virtual/net/bond0",
        "/sys/devices/virtual/net/lo/mtu": "65536",
        "/sys/class/net/lo": "-> /sys/devices/virtual/net/lo",
        "/proc/net/route": ROUTES,
    })  # fmt: skip
    file = tmp_path / f"{two}/net/eth1/statistics/rx_dropped".lstrip("/")
    facts = read(network.gather, tmp_path, wait=lambda: file.write_text("12\n"))
    bond, eth0, eth1 = facts["devices"]
    assert (bond["name"], bond["members"]) == ("bond0", ["eth0", "eth1"])
    assert "speed" not in bond
    assert eth0["on"]
    assert "usb" not in eth0
    assert (eth0["pci"], eth0["bond"], eth0["rising"]) == ("0000:01:00.0", "bond0", {})
    assert (eth1["speed"], eth1["mtu"], eth1["rising"]) == (25000, 9000, {"rx_dropped": 5})
    assert facts["routes"] == {"networks": {"eth0": ["192.0.2.0/24"]}, "gateways": ["192.0.2.1"]}


def test_adapters_for_rdma(tmp_path):
    device = pci(tmp_path, "0000:9b/9b:01.0/9c:00.0", "0x020700")
    rdma(tmp_path, device, "mlx5_0", **{
        "gids/0": "fe80:0000:0000:0000:a288:c203:00f1:1234", "gid_attrs/types/0": "IB/RoCE v1",
        "../../../../net/ens1/mtu": "9000", "../../../../net/ens1/master/bonding/slaves": "ens1",
        "gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0203", "gid_attrs/types/3": "RoCE v2",
        "gid_attrs/ndevs/3": "ens1", "gids/4": ":".join(["0000"] * 8),
    })  # fmt: skip
    plant(tmp_path, {
        "/sys/module/nvidia_peermem/version": "570.124",
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124",
        "/proc/sys/kernel/osrelease": "5.15.0-105-generic",
    })  # fmt: skip
    error = tmp_path / f"{device}/infiniband/mlx5_0/ports/1/counters/symbol_error".lstrip("/")
    facts = read(network.rdma, tmp_path, wait=lambda: error.write_text("2\n"))
    (port,) = facts["ports"]
    assert (port["device"], port["port"], port["pci"]) == ("mlx5_0", 1, "0000:9c:00.0")
    assert (port["state"], port["phys_state"], port["link_layer"]) == (
        "ACTIVE",
        "LinkUp",
        "InfiniBand",
    )
    assert (port["rate"], port["width"], port["generation"]) == (400.0, 4, "NDR")
    assert port["counters"] == {"link_downed": 3, "symbol_error": 2}
    assert port["rising"] == {"symbol_error": 2}
    assert port["interfaces"] == ["ens1", "master"]
    assert port["gids"] == [
        {"index": 0, "type": "IB/RoCE v1", "ndev": None, "prefix": "fe80::"},
        {"index": 3, "type": "RoCE v2", "ndev": "ens1", "address": "10.1.2.3"},
    ]
    assert facts["gpudirect"] == {"nvidia_peermem": "570.124", "dma_buf": True}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10 Gb/sec (4X)", (10.0, 4, "SDR")),
        ("40 Gb/sec (4X QDR)", (40.0, 4, "QDR")),
        ("100 Gb/sec (2X HDR)", (100.0, 2, "HDR")),
        ("2.5 Gb/sec (1X)", (2.5, 1, "SDR")),
    ],
)
def test_rates_with_their_lanes(tmp_path, text, rate):
    # rate_show in drivers/infiniband/core/sysfs.c of Linux prints these.
    rdma(tmp_path, pci(tmp_path, "0000:00/00:03.0", "0x020700"), "mlx5_0", rate=text)
    (port,) = read(network.rdma, tmp_path, wait=lambda: None)["ports"]
    assert (port["rate"], port["width"], port["generation"]) == rate
