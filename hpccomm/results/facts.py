"""Facts of runs and recordings as JSON, and back.

They are dataclasses of texts, numbers, times and each other. The writers store them as such JSON,
and `reader` reads them.

The placement of a run's ranks, as nccl-tests prints it, or folded for many ranks.

The table's header shows it.

The user, host and versions of a run, as results files name them; and whether it is still being written.

A writer locks a byte far behind the end of the file for as long as it lives. All programs that store a run ask it.

The part of the cores that processes of others took while a run was measured, as it is stored with the run.

`hpccomm.tools.doctor.sources.others` counts it. A verdict that drains, fails or compares is undecided where
nodes were busy: times say nothing there about the nodes, the network or the libraries.
"""

import contextlib
import dataclasses
import fcntl
import functools
import getpass
import os
import platform
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

import hpccomm
from hpccomm.results.regular import as_utf8
from hpccomm.results.schema import DeviceInfo, RankInfo, RunInfo
from hpccomm.settings import BUSY
from hpccomm.units import counted

ENTRY = "others"
"""The entry of a run's facts that holds it."""


class Others(NamedTuple):
    """What other processes took, as far as it is known: nothing is of runs of older versions.

    Attributes
    ----------
    hosts : sequence of str
        Of each rank.
    before, during : sequence of float
        For each rank, the part of the cores that it may use: while the ranks rested before the run, and from then until its
        end; -1 if unknown.
    limit : float
        The part, during a run, above which a node is busy.
    """

    hosts: Sequence[str] = ()
    before: Sequence[float] = ()
    during: Sequence[float] = ()
    limit: float = BUSY

    @property
    def busy(self) -> list[int]:
        """The ranks that others kept busy."""
        return [rank for rank, part in enumerate(self.during) if part > self.limit]

    @property
    def failed(self) -> str:
        """The word for what takes too long."""
        return "undecided: busy" if self.busy else "FAILED"

    @property
    def line(self) -> str:
        """A line of comment about the rank that has most of them; empty if nothing is known."""
        if (most := max(self.during, default=-1.0)) < 0:
            return ""
        rank, verdict = self.during.index(most), f"; busy, above {self.limit:.0%}" * bool(self.busy)
        took = f"{most:.0%} of the cores of {self.hosts[rank]}, {self.before[rank]:.0%} before"
        return f"# {'Other processes':20s} : {took}{verdict}\n"

    def store(self, writer: Any) -> None:
        """Add it to the entries of a run that is being written; `writer` is a `hpccomm.results.writer.Writer` or None."""
        if writer is not None:
            writer.add_entry(ENTRY, self._asdict())


UNKNOWN = Others()


def host() -> str:
    """Return this node's name, without its domain."""
    return as_utf8(socket.gethostname()).split(".")[0]


def user() -> str:
    """Return who runs this process."""
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
"""Status of a run that has no end, and whose writer is gone."""

UNCERTAIN = "interrupted or running"
"""Status of a run that has no end, where it cannot be seen whether its writer is there."""

_BYTE = 1 << 62
_FORM = "hhqqi"  # struct flock: type, whence, start, length, process


def hold(descriptor: int, kind: int = fcntl.F_RDLCK) -> None:
    """Show that a file is being written, for as long as it is open or until ``F_UNLCK``.

    Does nothing without such locks.
    """
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(kind))


def held(descriptor: int, path: Path) -> bool | None:
    """Say whether a file is being written. None if the file system has no locks.

    Ask before the file is read: a writer that ends afterwards may leave it without an end in what was
    read.

    Parameters
    ----------
    descriptor : int
        The file, open for reading.
    path : Path
        Its name. If that names another file by now, a writer has replaced this one.
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
        What `held` said.
    there : str
        Where its writer runs, without the domain; empty if that is not known.
    """
    if held:
        return RUNNING
    return INTERRUPTED if held is not None and there == host() else UNCERTAIN


def in_words(status: str, done: str, host: str) -> str:
    """Return a status with the amount done, such as ``3 rows``, and its meaning without an end."""
    where = f", it was on {host}" if host else ""
    return {
        RUNNING: f"{RUNNING}: {done} so far",
        INTERRUPTED: f"{INTERRUPTED}: what wrote it was killed, or did not end it; {done}",
        UNCERTAIN: f"{UNCERTAIN}: what wrote it cannot be seen from here{where}; {done} so far",
    }.get(status, status)


def _lock(kind: int) -> bytes:
    return struct.pack(_FORM, kind, os.SEEK_SET, _BYTE, 1, 0).ljust(32, b"\0")


MOST_RANKS = 64
"""More are folded, a line for each node."""

MOST_NODES = 16
"""Of more nodes the first and the last ones are shown."""


def lines(info: RunInfo) -> list[str]:
    """Return a line for each rank."""
    devices: Sequence[DeviceInfo | None] = info.devices or (None,) * len(info.ranks)
    return [
        f"#  Rank {rank.rank:2d} Group {rank.group:2d} Pid {rank.pid:6d} on {rank.host:>10s} "
        f"device {rank.device:2d} [{rank.device_hex or 'none'}] {rank.device_info}, "
        + ("" if device is None else f"{device.uuid}, ")
        + f"node {rank.node}, cores {rank.cores}"
        for rank, device in zip(info.ranks, devices, strict=True)
    ]


def folded(info: RunInfo) -> list[str]:
    """Return a line for each rank, or for many ranks how many there were, and a line for each node."""
    if len(info.ranks) <= MOST_RANKS:
        return lines(info)
    nodes = [list(ranks) for _, ranks in groupby(info.ranks, key=lambda rank: rank.node)]
    shown = [_node(ranks) for ranks in nodes]
    if len(shown) > MOST_NODES:
        few = MOST_NODES // 2
        between = f"#  ... {len(shown) - MOST_NODES} more lines like these"
        shown = [*shown[:few], between, *shown[-few:]]
    return [f"#  {len(info.ranks)} ranks on {counted(info.nodes, 'node')}", *shown]


def _node(ranks: Sequence[RankInfo]) -> str:
    devices = Counter(rank.device_info for rank in ranks)
    named = ", ".join(f"{count} x {name}" for name, count in devices.items())
    return f"#  Ranks {ranks[0].rank} to {ranks[-1].rank} on {ranks[0].host}: {named}"


def as_json(value: Any) -> Any:
    """Return a fact as JSON; a dataclass becomes an object of its fields."""
    match value:
        case str():
            return as_utf8(value)
        case datetime():
            return value.isoformat()
        case Mapping():
            return {as_utf8(key): as_json(each) for key, each in value.items()}
        case tuple() | list():
            return [as_json(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {name: as_json(getattr(value, name)) for name in _hints(type(value))}  # type: ignore[arg-type]
    return value


def of_json(kind: Any, value: Any) -> Any:
    """Return the fact of a type that `as_json` has made this of. A field that lacks has its default.

    Raises
    ------
    TypeError, ValueError, AttributeError
        If it has another form.
    """
    if kind is datetime:
        return datetime.fromisoformat(value)
    if hints := _hints(kind):
        given = {name: of_json(hints[name], each) for name, each in value.items() if name in hints}
        return kind(**given)
    if get_origin(kind) is tuple:
        return tuple(of_json(get_args(kind)[0], each) for each in value)
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; nothing for another type."""
    return get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
