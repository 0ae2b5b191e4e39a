"""The user, host and versions of a run, as results files name them; and whether it is still being written.

A writer locks a byte far behind the end of the file for as long as it lives. All programs that store a run ask it.
"""

import contextlib
import fcntl
import getpass
import os
import platform
import socket
import struct
from pathlib import Path

import numpy as np

import hpccomm
from hpccomm.results.regular import as_utf8


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
