"""What this machine says for verdicts: devices, and the version of NCCL that is installed."""

import os
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from hpccomm.variables.judging import Surroundings
from hpccomm.variables.tables import version_code

_FOLDERS = {"NCCL_IB_HCA": "sys/class/infiniband", "NCCL_SOCKET_IFNAME": "sys/class/net"}
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def here(
    nccl: int | None = None, options: Collection[str] = (), root: Path = Path("/")
) -> Surroundings:
    """Return what is known of this machine. Local; loads no library.

    Parameters
    ----------
    nccl : int, optional
        Version of NCCL; by default that of the wheel, if one is installed.
    options : collection of str
        Fields of ncclConfig_t that the program sets.
    root : Path
        Of the file system.
    """
    devices = {}
    for variable, folder in _FOLDERS.items():
        if (root / folder).is_dir():
            devices[variable] = tuple(sorted(each.name for each in (root / folder).iterdir()))
    return Surroundings(_installed() if nccl is None else nccl, devices, options, os.path.exists)


def _installed() -> int:
    for wheel in _WHEELS:
        try:
            return version_code(metadata.version(wheel))
        except metadata.PackageNotFoundError:
            continue
    return 0
