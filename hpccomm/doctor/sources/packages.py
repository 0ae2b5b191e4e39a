"""Facts of the installed Python packages: their versions."""

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

_NAMES = re.compile(
    r"hpccomm|mpi4py|numpy|h5py|torch|nvidia-ml-py|cupy(-cuda\d+x)?|nvidia-nccl-cu\d+"
)


def gather(root: Path = Path("/")) -> dict[str, Any]:  # noqa: ARG001 (for any root)
    """Return the version of each package that is installed by its name, and Python's."""
    installed = {
        each.name.lower().replace("_", "-"): each.version
        for each in metadata.distributions()
        if each.name
    }
    named = {name: installed[name] for name in sorted(installed) if _NAMES.fullmatch(name)}
    return {"python": platform.python_version(), **named}
