"""Questions and answers between the processes of one node, through abstract Unix sockets.

Such a socket is a name in the kernel without a file or port, and vanishes with its process. Each
process serves one from its service thread, from before MPI starts, and answers only processes of
the same user. A connection carries one question and its answer, each as JSON after its length.

`node_asking` asks through it.
"""

import contextlib
import errno
import json
import logging
import os
import platform
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from hpccomm.backends.bootstrap.launch import job_key, launched
from hpccomm.contracts.side import Facts
from hpccomm.runtime.answering import answer
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.service import service

logger = logging.getLogger("hpccomm")

LARGEST = 64 * 2**20
"""Bytes of the longest message that is taken."""
IDLE_SECONDS = 30.0
"""A connection that has been open for so long is closed at the next question: who asks waits no longer than that."""
FULL_SECONDS = 0.1
"""How long a process that has too many open files leaves questions unanswered before it tries again."""

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PREFIX = "hpccomm"
_LISTENS = 0x10000  # __SO_ACCEPTCON, among the flags in /proc/net/unix


class Address(NamedTuple):
    """Where one process answers.

    Attributes
    ----------
    name : str
        Of its socket in the abstract namespace; empty without one.
    pid : int
        Its process id.
    host : str
        Its host's name.
    network : str
        Names the kernel's namespaces: only processes of the same ones reach the socket, and know the
        process id.
    """

    name: str
    pid: int
    host: str
    network: str

    def near(self) -> bool:
        """Whether this process reaches the socket."""
        return bool(self.name) and self.network == network()


@cache
def network() -> str:
    """Return the name of this process's socket and process-id namespaces, on this host."""
    spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    return f"{_text('/proc/sys/kernel/random/boot_id')} {spaces}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return platform.node()


def _base() -> str:
    return f"{_PREFIX}/{job_key()}/"


# What both sides do.


class Credentials(NamedTuple):
    """A process and its user."""

    pid: int
    uid: int
    gid: int


def credentials(connected: socket.socket) -> Credentials:
    """Return the process at the other end of a connection, as the kernel tells."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(raw))


def packed(facts: Facts) -> bytes:
    """Return facts as they are sent."""
    text = json.dumps(facts, default=repr).encode()
    return _LENGTH.pack(len(text)) + text


def receive(connected: socket.socket, received: bytearray) -> Facts | None:
    """Return the facts that came, or None while some of them are missing.

    Raises
    ------
    ValueError
        If the other side closed early or sent something else.
    """
    part = connected.recv(2**18)
    received += part
    if len(received) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(received)
        if length > LARGEST:
            raise ValueError("too long")
        if len(received) >= _LENGTH.size + length:
            facts = json.loads(received[_LENGTH.size :])
            if not isinstance(facts, dict):
                raise ValueError("no facts")
            return facts
    if not part:
        raise ValueError("closed early")
    return None


# The side that answers.


@dataclass(slots=True, eq=False)
class _Connection:
    """One question under way, as who answers sees it."""

    wire: socket.socket
    opened: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview | None = None


class NodeServer:
    """Answers the questions of this node's processes, in the service thread.

    Parameters
    ----------
    start : str
        Of its name: the job and the rank.

    Attributes
    ----------
    address : Address
        Where it answers.
    """

    def __init__(self, start: str) -> None:
        name = f"{start}{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + name)
        self._socket.listen(4096)
        self._connections: set[_Connection] = set()
        self.address = Address(name, os.getpid(), platform.node(), network())
        service.hear(self._socket, self._accept)
        if not service.start():
            self.close()
            raise OSError("the answering thread could not be started")

    def close(self) -> None:
        """Refuse questions from now on: soon no thread of Python's can answer."""
        service.forget(self._socket)
        self._socket.close()

    def disown(self) -> None:
        """Close what a forked child has of its parent's server; the parent's continues."""
        self._socket.close()
        for each in self._connections:
            each.wire.close()

    def _accept(self) -> None:
        now = time.monotonic()
        for each in tuple(self._connections):
            if now - each.opened > IDLE_SECONDS:
                self._close(each)
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # who asked is gone, or this process ends
            if error.errno in (
                errno.EMFILE,
                errno.ENFILE,
            ):  # it waits on, and may have a place later
                time.sleep(FULL_SECONDS)
            return
        connected.setblocking(False)
        if credentials(connected)[1] != os.geteuid():
            connected.close()
            return
        connection = _Connection(connected)
        self._connections.add(connection)
        service.hear(connected, partial(self._serve, connection))

    def _serve(self, connection: _Connection) -> None:
        """Read the question, or write the answer, as far as it goes."""
        wire = connection.wire
        try:
            if connection.unsent is None:
                question = receive(wire, connection.received)
                if question is None:
                    return
                connection.unsent = memoryview(packed(answer(question)))
                service.hear(wire, partial(self._serve, connection), selectors.EVENT_WRITE)
            connection.unsent = connection.unsent[wire.send(connection.unsent) :]
        except BlockingIOError:
            return
        except (OSError, ValueError):  # who asked is gone, or is not one of us
            self._close(connection)
            return
        if not connection.unsent:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        service.forget(connection.wire)
        connection.wire.close()
        self._connections.discard(connection)


_server: NodeServer | None = None
_lock = threading.Lock()


def serve(rank: int | None = None) -> Address:
    """Answer from now on; return where. Idempotent; from any thread.

    Without such sockets the address has no name, and other processes cannot ask.

    Parameters
    ----------
    rank : int, optional
        Of this process in the job, from MPI; before that, and by default, from the launcher.
    """
    global _server
    with _lock:
        launch = launched()
        start = f"{_base()}{rank if rank is not None else launch.rank if launch else 0}/"
        if _server is None or (rank is not None and not _server.address.name.startswith(start)):
            refuse()  # under another name
            try:
                _server = NodeServer(start)
            except OSError as error:
                logger.debug("no side channel on this node: %s", error)
                return Address("", os.getpid(), platform.node(), "")
        return _server.address


def refuse() -> None:
    """Refuse questions from now on, which tells that this process ends: no thread can answer any more."""
    if _server is not None:
        _server.close()


@after_fork
def _after_fork() -> None:
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.disown()
        _server = None


def present() -> dict[int, Address]:
    """Return the processes of this job on this node that answer, by their rank in the job.

    Local; waits for no other process: the kernel lists the sockets. Missing ranks have not come
    yet, are on other nodes, or are gone.
    """
    base, addresses = "@" + _base(), {}
    for line in _text("/proc/net/unix").splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith(base) and int(fields[3], 16) & _LISTENS:
            rank, _, process = fields[7].removeprefix(base).partition("/")
            with contextlib.suppress(ValueError):
                pid = int(process.partition("-")[0])
                addresses[int(rank)] = Address(fields[7][1:], pid, platform.node(), network())
    return addresses
