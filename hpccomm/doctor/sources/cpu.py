"""Facts of processors: sockets, NUMA nodes, cores, threads, and this process's share of them."""

import re
from collections.abc import Iterable
from typing import Any

from hpccomm.doctor.reading import Reading
from hpccomm.units import grouped, numbers, ranges

_CPUS, _NODES = "/sys/devices/system/cpu", "/sys/devices/system/node"


def gather(reading: Reading) -> None:
    """Read ``allowed`` and ``online`` (lists such as ``0-3,8``), the ``number`` that is allowed, ``sockets``, ``cores`` and ``nodes``.

    A core is the list of its threads. A NUMA node has its CPUs, the bytes of its memory, and its distances to the
    nodes in their order.
    """
    reading.files("cpu")
    reading.take("number", lambda: len(numbers(reading.facts()["allowed"])))
    reading.take("cores", lambda: sorted(set(_each(reading, "thread_siblings_list")), key=numbers))
    reading.take("sockets", lambda: _sockets(reading))
    reading.take("nodes", lambda: list(_nodes(reading)))


def _each(reading: Reading, file: str) -> list[str]:
    """Return a file of the topology of each CPU that is online."""
    cpus = numbers(reading.text(f"{_CPUS}/online"))
    return [reading.text(f"{_CPUS}/cpu{cpu}/topology/{file}") for cpu in cpus]


def _sockets(reading: Reading) -> list[dict[str, Any]]:
    sockets = map(int, _each(reading, "physical_package_id"))
    of = grouped(zip(sockets, numbers(reading.text(f"{_CPUS}/online")), strict=True))
    return [{"socket": socket, "cpus": ranges(of[socket])} for socket in sorted(of)]


def _nodes(reading: Reading) -> Iterable[dict[str, Any]]:
    for node in numbers(reading.text(f"{_NODES}/online")):
        folder = f"{_NODES}/node{node}"
        memory = re.search(r"MemTotal:\s*(\d+) kB", reading.text(f"{folder}/meminfo"))
        yield {
            "node": node,
            "cpus": reading.text(f"{folder}/cpulist"),
            "bytes": int(memory[1]) * 1024 if memory else 0,
            "distances": [int(word) for word in reading.text(f"{folder}/distance").split()],
        }
