"""Facts of the node itself: kernel, processors, memory, clock, whether it is a container, and its Python packages."""

import collections
import ctypes
import os
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from hpccomm.tools.doctor.reading import ALL_USERS, Reading
from hpccomm.units import grouped, numbers, ranges

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
    reading.take("governors", lambda: _policies(reading, "scaling_governor"))
    reading.take("preferences", lambda: _policies(reading, "energy_performance_preference"))
    reading.take("clock_synchronised", _synchronised)
    reading.put("container", _container(reading))
    reading.take("own_address", lambda: _own_address(reading))


def _policies(reading: Reading, name: str) -> dict[str, int]:
    """Return the number of processors with each policy."""
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


def _own_address(reading: Reading) -> str:
    """Return the address that the table of hosts has first for this one; empty if it has none."""
    name = reading.text("/proc/sys/kernel/hostname")
    own = {name, name.partition(".")[0]}
    for line in reading.text("/etc/hosts").splitlines():
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


_CPUS, _NODES = "/sys/devices/system/cpu", "/sys/devices/system/node"


def processors(reading: Reading) -> None:
    """Read ``allowed`` and ``online`` (lists such as ``0-3,8``), ``number``, ``sockets``, ``cores`` and ``nodes``.

    ``number`` counts the allowed CPUs. A core is the list of its threads. A NUMA node has its CPUs, the bytes of its memory, and its distances to the
    nodes in their order.
    """
    reading.files("cpu")
    reading.take("number", lambda: len(numbers(reading.facts()["allowed"])))
    reading.take("cores", lambda: sorted(set(_each(reading, "thread_siblings_list")), key=numbers))
    reading.take("sockets", lambda: _sockets(reading))
    reading.take("nodes", lambda: _nodes(reading))


def _each(reading: Reading, file: str) -> list[str]:
    """Return a file of the topology of each CPU that is online."""
    cpus = numbers(reading.text(f"{_CPUS}/online"))
    return [reading.text(f"{_CPUS}/cpu{cpu}/topology/{file}") for cpu in cpus]


def _sockets(reading: Reading) -> list[dict[str, Any]]:
    sockets = map(int, _each(reading, "physical_package_id"))
    of = grouped(zip(sockets, numbers(reading.text(f"{_CPUS}/online")), strict=True))
    return [{"socket": socket, "cpus": ranges(of[socket])} for socket in sorted(of)]


def _nodes(reading: Reading) -> list[dict[str, Any]]:
    nodes = numbers(reading.text(f"{_NODES}/online"))
    folders = {node: reading.path(f"{_NODES}/node{node}") for node in nodes}
    return [{"node": node} | reading.below("cpu.node", folders[node]) for node in nodes]


_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(.*)")
_LOST = re.compile(r"NVRM: (?!Xid).*fallen off the bus.*")
_KILLED = re.compile(
    r"^\d+,\d+,(\d+),.*(?:Out of memory|Memory cgroup out of memory).*Killed process \d+ \(([^)]*)\)",
    re.MULTILINE,
)

DAY = 86_400
"""Seconds for which a killed process counts. Older ones say little about the node now."""
_MACHINE_CHECK = re.compile(
    r"\[Hardware Error\]: (?:Uncorrected.*|event severity: (?:fatal|recoverable).*|CPU \d+: Machine Check.* Bank \d+: [abef][\da-f]{15}.*)"
)
"""Errors that were not corrected: bit 61 of the bank's status."""


def kernel_log(reading: Reading) -> None:
    """Read the facts; ``xids`` by device and number, with their count and first text.

    ``killed`` processes are from the last day; machine checks are uncorrected ones.
    """
    try:
        text = _log(reading.path("/dev/kmsg"))
    except OSError as error:
        why = f"closed to this process ({error.strerror}): root of the host sees it"
        reading.miss("", f"the kernel's log, /dev/kmsg, is {why}")
        return
    xids: dict[tuple[str, int], dict[str, Any]] = {}
    for device, number, more in _XID.findall(text):
        new = {"device": device, "xid": int(number), "times": 0, "text": more.strip(", ")[:160]}
        xids.setdefault((device, int(number)), new)["times"] += 1
    reading.put("xids", list(xids.values()))
    reading.put("lost", sorted(set(_LOST.findall(text)))[:16])
    up = reading.take("up", lambda: float(reading.text("/proc/uptime").split()[0])) or 0.0
    late = [name for at, name in _KILLED.findall(text) if int(at) / 1e6 > up - DAY]
    reading.put("killed", sorted(late))
    reading.put("machine_checks", _MACHINE_CHECK.findall(text)[:16])


def _log(file: Path) -> str:
    """Return all records. The device gives one at each read, and an error for an overwritten one."""
    records: list[bytes] = []
    with file.open("rb", buffering=0) as log:
        os.set_blocking(log.fileno(), False)
        while True:
            with suppress(BrokenPipeError):  # it was overwritten
                if not (record := log.read(1 << 16)):  # the last one was read
                    return b"".join(records).decode(errors="replace")
                records.append(record)
