"""The versions of what is installed for Python."""

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

_NAMES = re.compile(
    r"hpccomm|mpi4py|numpy|h5py|torch|nvidia-ml-py|cupy(-cuda\d+x)?|nvidia-nccl-cu\d+"
)


def gather(root: Path = Path("/")) -> dict[str, Any]:  # noqa: ARG001 (of this interpreter, wherever its files are)
    """Return the version of each package that is installed by its name, and Python's."""
    installed = {
        each.name.lower().replace("_", "-"): each.version
        for each in metadata.distributions()
        if each.name
    }
    named = {name: installed[name] for name in sorted(installed) if _NAMES.fullmatch(name)}
    return {"python": platform.python_version(), **named}
