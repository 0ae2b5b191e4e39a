"""Facts of the node itself: kernel, processors, memory, clock, whether it is a container, and its Python packages."""

import collections
import ctypes
import os
import platform
import re
from contextlib import suppress
from functools import partial
from importlib import metadata

from hpccomm.doctor.reading import ALL_USERS, Reading

_SCALING = {"governors": "scaling_governor", "preferences": "energy_performance_preference"}

_TIME_ERROR = 5
"""Of adjtimex(2): the clock is not synchronised."""

_MARKS = ("/.dockerenv", "/run/.containerenv", "/singularity", "/.singularity.d")
_VARIABLES = ("container", "APPTAINER_NAME", "SINGULARITY_NAME", "KUBERNETES_SERVICE_HOST")
"""Files and variables that containers have."""

_PACKAGES = re.compile(
    r"hpccomm|mpi4py|numpy|h5py|torch|nvidia-ml-py|cupy(-cuda\d+x)?|nvidia-nccl-cu\d+"
)


def gather(reading: Reading) -> None:
    """Read the facts of the host."""
    reading.files("host")
    for fact, name in _SCALING.items():
        reading.take(fact, partial(_policies, reading, name))
    reading.take("clock_synchronised", _synchronised)
    reading.put("container", _container(reading))
    reading.file("own_address", "/etc/hosts", _own_address)


def _policies(reading: Reading, name: str) -> dict[str, int]:
    """Return how many processors have which policy."""
    files = list(reading.matches("/sys/devices/system/cpu", f"cpu[0-9]*/cpufreq/{name}"))
    if not files:
        raise LookupError("the kernel does not scale the processors' clock here")
    return dict(collections.Counter(file.read_text().strip() for file in files))


def _synchronised() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    state: int = libc.adjtimex(ctypes.create_string_buffer(512))  # without a mode it only reads
    if state < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return state != _TIME_ERROR


def _own_address(hosts: str) -> str:
    """Return the address that the table of hosts has first for this one; empty if it has none."""
    own = {os.uname().nodename, os.uname().nodename.partition(".")[0]}
    for line in hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if own & {*names}:
            return address
    return ""


def _container(reading: Reading) -> list[str]:
    """Return the signs of a container around this process."""
    marks = [mark for mark in _MARKS if reading.path(mark).exists()]
    marks += [f"variable {name}" for name in _VARIABLES if name in os.environ]
    with suppress(OSError):  # a kernel without them
        if reading.text("/proc/self/uid_map").split() != ALL_USERS:
            marks.append("a user namespace")
    return marks


def packages(reading: Reading) -> None:
    """Read the version of each package that is installed by its name, and Python's."""
    installed = {
        each.name.lower().replace("_", "-"): each.version
        for each in metadata.distributions()
        if each.name
    }
    reading.put("python", platform.python_version())
    for name in filter(_PACKAGES.fullmatch, sorted(installed)):
        reading.put(name, installed[name])
