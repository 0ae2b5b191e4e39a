"""The versions of what is installed for Python."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

NAMES = (
    *("hpccomm", "mpi4py", "numpy", "h5py", "torch", "nvidia-ml-py"),
    *("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    *("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)


def gather(root: Path = Path("/")) -> dict[str, Any]:  # noqa: ARG001 (of this interpreter, wherever its files are)
    """Return the version of each package that is installed by its name, and Python's."""
    found = {"python": platform.python_version()}
    for name in NAMES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
