"""Facts about runs beside their columns: user, host and versions, whether a run is still being written, and busy nodes.

A writer locks a byte far behind the end of the file while it lives. The use of the cores by other processes is stored with a
run. If nodes were busy, times say nothing about nodes, network or libraries, and verdicts are undecided. Two runs can be
compared if they have the same `fingerprint`.
"""

import contextlib
import fcntl
import getpass
import os
import platform
import socket
import struct
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hpccomm
from hpccomm.results.files import as_utf8
from hpccomm.results.schema import Row, RunInfo
from hpccomm.settings import BUSY
from hpccomm.units import grouped


def host() -> str:
    """Return this node's name, without its domain."""
    return as_utf8(socket.gethostname()).split(".")[0]


def user() -> str:
    """Return the name of the user of this process."""
    try:
        return as_utf8(getpass.getuser())
    except (KeyError, OSError):  # a user id without a name, as in containers
        return str(os.getuid())


def versions() -> dict[str, str]:
    """Return the versions of the libraries that every program needs."""
    own = hpccomm.__version__
    return {"hpccomm": own, "python": platform.python_version(), "numpy": np.__version__}


RUNNING = "running"
"""Status of a run that is being written."""

INTERRUPTED = "interrupted"
"""Status of a run without an end that nothing writes any more."""

UNCERTAIN = "interrupted or running"
"""Status of a run without an end, if it cannot be seen whether its writer lives."""

_BYTE = 1 << 62

_FORM = "hhqqi"  # struct flock: type, whence, start, length, process


def hold(descriptor: int, kind: int = fcntl.F_RDLCK) -> None:
    """Mark a file as being written, while it is open or until ``F_UNLCK``.

    If the file system has no such locks, this does nothing.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(kind))


def held(descriptor: int, path: Path) -> bool | None:
    """Return whether a file is being written. None if the file system has no locks.

    Call this before the file is read: if the writer ends in between, the reader may not see the end.

    Parameters
    ----------
    descriptor : int
        The file, open for reading.
    path : Path
        The path of the file. If it now names another file, a writer has replaced this one.
    """
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK))
    except OSError:
        return None
    if struct.unpack(_FORM, answer[: struct.calcsize(_FORM)])[0] != fcntl.F_UNLCK:
        return True
    try:
        return not os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # removed
        return False


def without_end(held: bool | None, there: str) -> str:
    """Return the status of a run that has no end.

    Parameters
    ----------
    held : bool or None
        The result of `held`.
    there : str
        The host of its writer, without the domain. Empty if it is not known.
    """
    if held:
        return RUNNING
    return INTERRUPTED if held is not None and there == host() else UNCERTAIN


def in_words(status: str, done: str, host: str) -> str:
    """Return a status as a text. Without an end, it has the meaning of the status and `done`, such as ``3 rows``."""
    where = f", it was on {host}" if host else ""
    return {
        RUNNING: f"{RUNNING}: {done} so far",
        INTERRUPTED: f"{INTERRUPTED}: what wrote it was killed, or did not end it; {done}",
        UNCERTAIN: f"{UNCERTAIN}: what wrote it cannot be seen from here{where}; {done} so far",
    }.get(status, status)


def _lock(kind: int) -> bytes:
    return struct.pack(_FORM, kind, os.SEEK_SET, _BYTE, 1, 0).ljust(32, b"\0")


ENTRY = "others"
"""The name of the entry with `Others` in a run's facts."""


class Others(NamedTuple):
    """The use of the cores by other processes, if it is known. It is not known for runs of older versions.

    Attributes
    ----------
    hosts : sequence of str
        The host of each rank.
    before, during : sequence of float
        For each rank, the fraction of its cores that other processes used: during the rest before the run, and from then
        until the end of the run. -1 if unknown.
    limit : float
        The fraction during a run above which a node is busy.
    """

    hosts: Sequence[str] = ()
    before: Sequence[float] = ()
    during: Sequence[float] = ()
    limit: float = BUSY

    @property
    def busy(self) -> list[int]:
        """The ranks with busy cores."""
        return [rank for rank, part in enumerate(self.during) if part > self.limit]

    @property
    def most(self) -> float:
        """The largest fraction during the run. -1 if nothing is known."""
        return max(self.during, default=-1.0)

    @property
    def failed(self) -> str:
        """The word in a verdict on times that are too long."""
        return "undecided: busy" if self.busy else "FAILED"

    @property
    def line(self) -> str:
        """A line of comment about the rank with the largest fraction. Empty if nothing is known."""
        if self.most < 0:
            return ""
        rank = self.during.index(self.most)
        verdict = f"; busy, above {self.limit:.0%}" if self.busy else ""
        took = f"{self.most:.0%} of the cores of {self.hosts[rank]}, {self.before[rank]:.0%} before"
        return f"# {'Other processes':20s} : {took}{verdict}\n"

    def store(self, writer: Any) -> None:
        """Add it to the entries of a run. `writer` is the `hpccomm.results.writer.Writer` of the run, or None."""
        if writer is not None:
            writer.add_entry(ENTRY, self._asdict())


UNKNOWN = Others()

_OF_MACHINE = ("processor", "cores", "memory", "fabric")
"""Facts of nodes that belong to the fingerprint. The kernel does not: a new one does not make another machine."""


def fingerprint(info: RunInfo) -> dict[str, str]:
    """Return the facts that must be equal in two runs, so that their times can be compared.

    Parameters
    ----------
    info : RunInfo
        Facts of a run.

    Returns
    -------
    dict of str to str
        Facts by name: the number of ranks, the ranks of nodes and groups, the nodes' processors, cores, memory and fabric,
        the devices, and the network of a simulation. Unknown facts are absent.
    """
    sizes = Counter(Counter(rank.node for rank in info.ranks).values())
    largest_first = sorted(sizes.items(), reverse=True)
    groups = grouped((rank.group, rank.node) for rank in info.ranks)
    on_nodes = _counted(f"{len(on)} ranks on {len({*on})} nodes" for on in groups.values())
    facts = {
        "ranks": str(len(info.ranks)),
        "ranks of nodes": ", ".join(f"{number} x {ranks}" for ranks, number in largest_first),
        "groups": "1" if len(groups) == 1 else on_nodes,
        "devices": _counted(rank.device_info for rank in info.ranks),
        **{name: info.machine[name] for name in _OF_MACHINE if name in info.machine},
    }
    if "network" in info.simulation:
        facts["simulated network"] = info.simulation["network"]
    return facts


UNKNOWN_LAUNCHER = "unknown"
"""The launcher of a run that was imported from a log. Its start may be the time of the log's file."""


def identity(info: RunInfo, rows: Sequence[Row]) -> Hashable:
    """Return the facts that identify a measurement: figures, ranks and versions.

    So a log that was imported twice does not count as two launches, and neither does a copy of a results file.
    """
    started = None if info.launcher == UNKNOWN_LAUNCHER else info.started
    return tuple(rows), info.ranks, started, frozenset(_circumstances(info).items())


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items()))


def differences(one: RunInfo, other: RunInfo, *, ranks: bool = True) -> list[str]:
    """Return a sentence for each fact of the `fingerprint` that both runs have and that differs.

    Without `ranks`, the numbers of ranks and nodes are not compared.
    """
    facts = [fingerprint(info) for info in (one, other)]
    for info, facts_of in zip((one, other), () if ranks else facts, strict=False):
        devices = ", ".join(sorted({rank.device_info for rank in info.ranks}))
        facts_of |= {"ranks": "", "ranks of nodes": "", "devices": devices}
    return _different(facts[0], facts[1])


def circumstances(one: RunInfo, other: RunInfo) -> list[str]:
    """Return a sentence for each other fact that differs: hosts and their ranks, versions, environment, launcher, kernel.

    Such a difference is often the reason for a comparison, such as a new library or another setting.
    """
    return _different(_circumstances(one), _circumstances(other), absent="not set")


def _circumstances(info: RunInfo) -> dict[str, str]:
    return {
        "hosts": ", ".join(info.hosts),
        "launcher": info.launcher,
        "ranks of nodes": fingerprint(info)["ranks of nodes"],
        **({"kernel": info.machine["kernel"]} if "kernel" in info.machine else {}),
        **{f"version of {name}": text for name, text in info.versions.items()},
        **info.environment,
    }


def _different(
    one: Mapping[str, str], other: Mapping[str, str], absent: str | None = None
) -> list[str]:
    """Return the differences. A fact that one side lacks counts only if there is a text for `absent` ones."""
    both = {name: (one.get(name, absent), other.get(name, absent)) for name in [*one, *other]}
    return [
        f"{name}: {a} and {b}" for name, (a, b) in both.items() if a != b and None not in (a, b)
    ]
