"""Facts of the installed Python packages: their versions."""

import platform
import re
from importlib import metadata

from hpccomm.doctor.reading import Reading

_NAMES = re.compile(
    r"hpccomm|mpi4py|numpy|h5py|torch|nvidia-ml-py|cupy(-cuda\d+x)?|nvidia-nccl-cu\d+"
)


def gather(reading: Reading) -> None:
    """Read the version of each package that is installed by its name, and Python's."""
    installed = {
        each.name.lower().replace("_", "-"): each.version
        for each in metadata.distributions()
        if each.name
    }
    reading.put("python", platform.python_version())
    for name in filter(_NAMES.fullmatch, sorted(installed)):
        reading.put(name, installed[name])
