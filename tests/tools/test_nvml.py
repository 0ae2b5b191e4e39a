"""A device's links from NVIDIA's management library: what its links and slots add up to, and data sheets.

In GB/s, one direction: PCI Express 5 x16 has 63.0, 4 x16 31.5. NVIDIA's data sheets of the memories give the sum of
reads and writes; clocks are nvidia-smi's (``clocks.max.mem``).
"""

from types import SimpleNamespace

import pytest
from nvml_double import DOWN, UP

from hpccomm.tools.nvml import path

UUID = "GPU-5f3c2b1a-0000-1111-2222-333344445555"
SWITCH = object()


def gpu(links=(), speed=None, generation=5, chips=None, ends=(), uuid=UUID, **more):
    """A GPU whose links lead to the GPUs of those UUIDs, or to a switch."""
    fields = {
        "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON": speed,
        "NVML_FI_DEV_C2C_LINK_COUNT": chips,
    }
    return {
        "UUID": uuid,
        "NvLinkState": list(links).__getitem__,
        "MaxPcieLinkGeneration": generation,
        "MaxPcieLinkWidth": 16,
        "PciInfo": SimpleNamespace(busId=uuid.encode()),
        "NvLinkRemoteDeviceType": lambda link: 2 if ends[link] is SWITCH else 0,
        "NvLinkRemotePciInfo": lambda link: SimpleNamespace(busId=ends[link].encode()),
        "fields": {name: value for name, value in fields.items() if value is not None},
        **{name: answer if name != "MaxClockInfo" else {2: answer}.get for name, answer in more.items()},
    }  # fmt: skip


SXM = gpu([UP] * 18, speed=26562)
MESH = gpu([UP, UP, UP, DOWN], speed=25781, ends=["near", "near", "far", SWITCH])
SWITCHED = gpu([UP] * 4, speed=25781, ends=[SWITCH] * 4)
BESIDE = [gpu(uuid="near"), gpu(uuid="far", generation=4), gpu(uuid="none")]
PCIE_5 = ("PCI Express 5 x16", 63.0)


def memory(clock, bits):
    return gpu(MaxClockInfo=clock, MemoryBusWidth=bits)


@pytest.mark.parametrize(
    ("gpus", "other", "expected"),
    [
        ([gpu([UP] * 17 + [DOWN], speed=26562)], "", ("NVLink, 17 of 26.562 GB/s", 451.55)),
        ([gpu()], "", PCIE_5),
        ([gpu([DOWN, DOWN])], "", PCIE_5),
        (None, "", None),
        ([gpu([UP])], "", None),  # a link that is up and does not tell its speed
        ([gpu(generation=99)], "", None),
        ([gpu(uuid="another")], "", None),
        ([SXM], None, PCIE_5),
        ([gpu([UP] * 18, speed=26562, chips=10)], None, ("NVLink-C2C", 0.0)),  # its peak is unknown
        ([memory(2619, 5120)], UUID, ("memory, 5120 bits at 2619 MHz", 3350)),  # H100 SXM
        ([memory(1215, 5120)], UUID, ("memory, 5120 bits at 1215 MHz", 1555)),  # A100 40GB
        ([memory(6251, 192)], UUID, ("memory, 192 bits at 6251 MHz", 300)),  # L4
        ([MESH, *BESIDE], "near", ("NVLink, 2 of 25.781 GB/s", 51.562)),
        ([MESH, *BESIDE], "far", ("NVLink, 1 of 25.781 GB/s", 25.781)),
        ([MESH, *BESIDE], "none", PCIE_5),
        ([SWITCHED, *BESIDE], "far", ("NVLink, 4 of 25.781 GB/s", 103.124)),
        ([gpu(), *BESIDE], "far", ("PCI Express 4 x16", 31.5)),  # the slower slot of the two
        ([gpu(), *BESIDE], "another", None),
    ],
)
def test_the_link_to_a_device_the_host_or_the_own_memory(nvml, gpus, other, expected):
    nvml.gpus = gpus
    found = path(UUID, other)
    assert found == (expected and (expected[0], pytest.approx(expected[1], rel=1e-3)))
    if other == "":
        assert path(UUID) == found


def test_without_the_library_nothing_is_known(nvml):
    nvml.take_away()
    assert path(UUID) is None
