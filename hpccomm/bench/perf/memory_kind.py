"""The common part of host memory and device memory, and how a device is described.

`HostMemory` of `sources` and `DeviceMemory` of `device_memory` are a `MemoryKind`; all of perf measures
through it.
"""

from typing import Any, NamedTuple

from hpccomm.results.schema import DeviceInfo

AUTO, HOST, DEVICE = "auto", "host", "device"
"""Where arrays may lie, as ``--arrays`` has it."""

NCCL = "nccl"
"""The backend that device arrays are for."""

Array = Any
"""A 1-D array of NumPy or CuPy."""


class DeviceDescription(NamedTuple):
    """One rank's device in the header: the fields of `RankInfo`, and more."""

    device: int
    device_hex: str
    device_info: str
    driver: str
    more: DeviceInfo | None


ON_HOST = DeviceDescription(-1, "", "host memory", "", None)
"""Of a rank whose arrays are in host memory."""
