"""Nodes whose PCI tree and whose matrix by ``nvidia-smi topo`` were both published, as planted trees.

DGX-2: NVIDIA's GPUDirect Storage Configuration and Troubleshooting Guide, section on PCIe topology: ``lspci -tv`` of the
GPUs, and the first columns of ``nvidia-smi topo -mp``. ``mlx5_0`` stands on the free bus 35 of the switch that the
matrix puts it behind, and so on.

DGX A100: the same guide, ``lstopo`` of NUMA node 3; the matrix of all is in NVIDIA/DCGM issue 149. NVLink is that of
NVIDIA/nccl issue 1505: two links of each GPU to each of six switches.

A Threadripper board: noonghunna/club-3090 issue 1140, ``lspci -t`` and ``nvidia-smi topo -m``.
"""

from planted_sysfs import cpus, pci, plant, rdma

DGX2 = {  # the first of two sockets, and one GPU of the other
    "GPU0": ("0000:2b/2b:00.0/2c:00.0/2d:04.0/32:00.0/33:00.0/34:00.0", 0),
    "mlx5_0": ("0000:2b/2b:00.0/2c:00.0/2d:04.0/32:00.0/33:04.0/35:00.0", 0),
    "GPU1": ("0000:2b/2b:00.0/2c:00.0/2d:04.0/32:00.0/33:10.0/36:00.0", 0),
    "GPU2": ("0000:2b/2b:00.0/2c:00.0/2d:0c.0/37:00.0/38:00.0/39:00.0", 0),
    "mlx5_1": ("0000:2b/2b:00.0/2c:00.0/2d:0c.0/37:00.0/38:04.0/3a:00.0", 0),
    "GPU3": ("0000:2b/2b:00.0/2c:00.0/2d:0c.0/37:00.0/38:10.0/3b:00.0", 0),
    "GPU4": ("0000:4e/4e:00.0/4f:00.0/50:04.0/55:00.0/56:00.0/57:00.0", 0),
    "GPU5": ("0000:4e/4e:00.0/4f:00.0/50:04.0/55:00.0/56:10.0/59:00.0", 0),
    "GPU6": ("0000:b2/b2:00.0/b3:00.0/b4:04.0/b5:00.0/b6:00.0/b7:00.0", 1),
}
DGX2_MATRIX = """
GPU0   X    PIX  PXB  PXB  NODE NODE SYS PIX  PXB
GPU1   PIX  X    PXB  PXB  NODE NODE SYS PIX  PXB
GPU2   PXB  PXB  X    PIX  NODE NODE SYS PXB  PIX
GPU3   PXB  PXB  PIX  X    NODE NODE SYS PXB  PIX
GPU4   NODE NODE NODE NODE X    PIX  SYS NODE NODE
GPU5   NODE NODE NODE NODE PIX  X    SYS NODE NODE
GPU6   SYS  SYS  SYS  SYS  SYS  SYS  X   SYS  SYS
mlx5_0 PIX  PIX  PXB  PXB  NODE NODE SYS X    PXB
mlx5_1 PXB  PXB  PIX  PIX  NODE NODE SYS PXB  X
"""  # GPU6 is GPU8 there

DGX_A100 = {
    "GPU0": ("0000:00/00:01.1/01:00.0/02:00.0/03:00.0/04:00.0/05:00.0/06:00.0/07:00.0", 3),
    "mlx5_0": ("0000:00/00:01.1/01:00.0/02:04.0/0a:00.0/0b:00.0/0c:00.0", 3),
    "GPU1": ("0000:00/00:01.1/01:00.0/02:04.0/0a:00.0/0b:10.0/0d:00.0/0e:00.0/0f:00.0", 3),
    "GPU2": ("0000:40/40:01.1/41:00.0/42:00.0/43:00.0/44:00.0/45:00.0/46:00.0/47:00.0", 1),
    "mlx5_4": ("0000:60/60:03.2/61:00.0", 0),
    "mlx5_5": ("0000:60/60:03.2/61:00.1", 0),
}
DGX_A100_MATRIX = """
GPU0   X    NV12 NV12 PXB SYS SYS
GPU1   NV12 X    NV12 PXB SYS SYS
GPU2   NV12 NV12 X    SYS SYS SYS
mlx5_0 PXB  PXB  SYS  X   SYS SYS
mlx5_4 SYS  SYS  SYS  SYS X   PIX
mlx5_5 SYS  SYS  SYS  SYS PIX X
"""
DGX_A100_CPUS = [f"{at}-{at + 15},{at + 128}-{at + 143}" for at in range(0, 128, 16)]

BOARD = {
    "GPU0": ("0000:00/00:01.1/01:00.0", 0),
    "GPU1": ("0000:00/00:03.1/02:00.0", 0),
}
BOARD_MATRIX = """
GPU0 X   PHB
GPU1 PHB X
"""


def planted(root, parts, nodes, sockets=2):
    """Plant GPUs and RDMA adapters by their paths, and the processors of the NUMA nodes."""
    for name, (path, node) in parts.items():
        gpu = name.startswith("GPU")
        link = {"max_link_speed": "16.0 GT/s PCIe", "current_link_speed": "2.5 GT/s PCIe"}
        folder = pci(
            root, path, "0x030200" if gpu else "0x020700", node, vendor="0x10de", device="0x20b0",
            current_link_width="16", max_link_width="16", **link,
        )  # fmt: skip
        if not gpu:
            rdma(root, folder, name)
    cpus(root, nodes, sockets)
    plant(root, {"/proc/net/route": "Iface\tDestination"})
    return root


def matrix(text):
    """Names and letters of a matrix."""
    rows = [line.split() for line in text.strip().splitlines()]
    return [row[0] for row in rows], [row[1:] for row in rows]
