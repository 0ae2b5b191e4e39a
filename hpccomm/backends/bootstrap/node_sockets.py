"""Questions and answers between the processes of one node, through abstract Unix sockets.

Such a socket is a name in the kernel without a file or port, and vanishes with its process. Each
process serves one socket in its service thread, beginning before MPI starts, and answers only processes of
the same user. A connection carries one question and its answer, both as JSON.

All processes are asked at the same time. For a silent process, the kernel tells whether it is stopped or gone.
`presence`, `shutdown` and `mpi` ask by it, and so does the side channel of `hpccomm.backends.mpi`.
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
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from hpccomm.backends.bootstrap.launch import job_key, launched
from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, STOPPED, Answer, Facts
from hpccomm.runtime.answering import answer
from hpccomm.runtime.service import Descriptors, after_fork, service

logger = logging.getLogger("hpccomm")

LARGEST = 64 * 2**20
"""Most bytes of a message that is accepted."""
IDLE_SECONDS = 30.0
"""Seconds after which an open connection is closed at the next question. No process waits that long for an answer."""
FULL_SECONDS = 0.1
"""Seconds for which a process that has too many open files accepts no question."""

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_PREFIX = "hpccomm"
_LISTENS = 0x10000  # __SO_ACCEPTCON, among the flags in /proc/net/unix


class Address(NamedTuple):
    """The socket at which one process answers.

    Attributes
    ----------
    name : str
        Name of the socket in the abstract namespace; empty without a socket.
    pid : int
        The process id.
    host : str
        Name of the host.
    network : str
        Names the kernel's namespaces of sockets and process ids. Only processes in the same namespaces can reach the
        socket and use the process id.
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


# Steps of both sides.


def user_of(connected: socket.socket) -> int:
    """Return the user at the other end of a connection, as the kernel tells."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return int(user)


def go_on(descriptors: Descriptors, connected: socket.socket, steps: Iterator[int]) -> None:
    """Run a side's steps, each as soon as the connection is ready for it; then close the connection. Never blocks.

    A step yields the event that the next step waits for, by its number in `selectors`.
    """
    try:
        events = next(steps)
    except (StopIteration, OSError, ValueError):  # done, or the other side is gone or foreign
        descriptors.forget(connected)
        connected.close()
    else:
        descriptors.hear(connected, partial(go_on, descriptors, connected, steps), events)


def send(connected: socket.socket, facts: Facts) -> Iterator[int]:
    """Yield the steps that send facts, and then close the sending direction."""
    unsent = memoryview(json.dumps(facts, default=repr).encode())
    while unsent:
        yield selectors.EVENT_WRITE
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[connected.send(unsent) :]
    connected.shutdown(socket.SHUT_WR)


def receive(connected: socket.socket) -> Generator[int, None, Facts]:
    """Yield the steps that receive facts, and return the facts.

    Raises
    ------
    ValueError
        If the other side closed early or sent something else.
    """
    received, part = bytearray(), b" "
    while part:
        yield selectors.EVENT_READ
        part = connected.recv(2**18)
        received += part
        if len(received) > LARGEST:
            raise ValueError("too long")
    facts = json.loads(received)
    if not isinstance(facts, dict):
        raise ValueError("no facts")
    return facts


# The side that answers.


class NodeServer:
    """Answers the questions of this node's processes, in the service thread.

    Parameters
    ----------
    start : str
        The beginning of the socket's name, with the job and the rank.

    Attributes
    ----------
    address : Address
        The address at which the server answers.
    """

    def __init__(self, start: str) -> None:
        name = f"{start}{os.getpid()}-{os.urandom(8).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + name)
        self._socket.listen(4096)
        self._opened: dict[socket.socket, float] = {}  # connections, and when
        self.address = Address(name, os.getpid(), platform.node(), network())
        service.hear(self._socket, self._accept)
        if not service.start():
            self.close()
            raise OSError("the answering thread could not be started")

    def close(self) -> None:
        """Refuse questions from now on, since no thread of Python will be able to answer."""
        service.forget(self._socket)
        self._socket.close()

    def disown(self) -> None:
        """Close a forked child's copies of its parent's sockets; the parent's server goes on."""
        for each in (self._socket, *self._opened):
            each.close()

    def _accept(self) -> None:
        now = time.monotonic()
        for each, opened in tuple(self._opened.items()):
            if each.fileno() < 0 or now - opened > IDLE_SECONDS:
                service.forget(each)
                each.close()
                del self._opened[each]
        try:
            connected, _ = self._socket.accept()
        except OSError as error:  # the asking process is gone, or this one ends
            if error.errno in (errno.EMFILE, errno.ENFILE):  # a file may be closed meanwhile
                time.sleep(FULL_SECONDS)
            return
        connected.setblocking(False)
        if user_of(connected) == os.geteuid():
            self._opened[connected] = now
            go_on(service, connected, self._answer(connected))
        else:
            connected.close()

    def _answer(self, connected: socket.socket) -> Iterator[int]:
        question = yield from receive(connected)
        yield from send(connected, answer(question))


_server: NodeServer | None = None
_lock = threading.Lock()


def serve(rank: int | None = None) -> Address:
    """Answer questions from now on, and return the address. Idempotent; from any thread.

    If there can be no such socket, the address has no name, and other processes cannot ask.

    Parameters
    ----------
    rank : int, optional
        This process's rank in the job, as MPI gives it; by default, before MPI starts, as the launcher gives it.
    """
    global _server
    with _lock:
        launch = launched()
        start = f"{_base()}{rank if rank is not None else launch.rank if launch else 0}/"
        if _server is None or (rank is not None and not _server.address.name.startswith(start)):
            refuse()  # the socket has another name
            try:
                _server = NodeServer(start)
            except OSError as error:
                logger.debug("no side channel on this node: %s", error)
                return Address("", os.getpid(), platform.node(), "")
        return _server.address


def refuse() -> None:
    """Refuse questions from now on. That tells other processes that this one is ending."""
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

    Local; waits for no other process, since the kernel lists the sockets. A missing rank has not started
    yet, is on another node, or is gone.
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


PAUSE_SECONDS = 0.002
"""Seconds between two calls of `ask`'s `others`, while answers from other nodes are awaited."""

RETRY_SECONDS = 0.01
"""Seconds until a process that had too many questions at once is asked again."""


def ask(
    addresses: Mapping[int, Address],
    question: Facts,
    seconds: float,
    others: Callable[[], bool] | None = None,
) -> dict[int, Answer]:
    """Ask processes of this node, all at the same time; blocks at most `seconds`.

    Parameters
    ----------
    addresses : mapping of int to Address
        The addresses of the processes to ask, by rank.
    question : mapping
        The question; each process gets it with its own rank added.
    seconds : float
        Seconds to wait for answers.
    others : callable, optional
        Moves questions over another channel on, and returns whether these are all answered. It is called
        repeatedly.

    Returns
    -------
    dict of int to Answer
        The answers, by rank. For a silent process it is the kernel's state of that process. One that is stopped is
        not waited for.
    """
    descriptors, until = service.descriptors(), time.monotonic() + seconds
    connections: dict[int, socket.socket] = {}
    answers: dict[int, Answer] = {}
    # They read the question when they go on.
    stopped = {rank for rank, each in addresses.items() if state_of(each) == STOPPED}

    def steps(rank: int, connected: socket.socket) -> Iterator[int]:
        try:
            yield from send(connected, {**question, "rank": rank})
            answers[rank] = Answer(ANSWERED, (yield from receive(connected)))
        except (OSError, ValueError):  # the process has ended meanwhile
            answers[rank] = _refused(addresses[rank])

    while True:
        pause = seconds if others is None else PAUSE_SECONDS
        for rank in addresses.keys() - connections.keys() - answers.keys():
            try:
                connections[rank] = connected = _connected(addresses[rank])
            except BlockingIOError:  # its queue of connections is full
                pause = min(pause, RETRY_SECONDS)
            except ConnectionError:
                answers[rank] = _refused(addresses[rank])
            except OSError:  # no answer is possible
                answers[rank] = _unanswered(addresses[rank])
            else:
                go_on(descriptors, connected, steps(rank, connected))
        over = others is None or others()
        left = until - time.monotonic()
        if left <= 0 or (over and answers.keys() | stopped == addresses.keys()):
            break
        descriptors.turn(min(left, pause))
    for each in connections.values():
        descriptors.forget(each)
        each.close()
    missing = addresses.keys() - answers.keys()
    return answers | {rank: _unanswered(addresses[rank]) for rank in missing}


def _connected(address: Address) -> socket.socket:
    """Return a connection to a process. Never blocks.

    Raises
    ------
    OSError
        If there is no connection: the process has too many questions at once (`BlockingIOError`) or refuses
        (`ConnectionError`), this process has too many open files, or another user has the name.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        connected.connect("\0" + address.name)
        if user_of(connected) != os.geteuid():
            raise PermissionError("another user's")
    except OSError:
        connected.close()
        raise
    return connected


def _unanswered(address: Address) -> Answer:
    """Return the kernel's facts of a silent process."""
    return Answer(state_of(address), {"host": address.host, "pid": address.pid})


def _refused(address: Address) -> Answer:
    """Return the kernel's facts of a process that refuses. If it still exists, it is ending or runs another program."""
    silent = _unanswered(address)
    return (
        Answer(silent.state, {**silent.facts, "ending": True}) if silent.state == SILENT else silent
    )


def state_of(near: Address) -> str:
    """Return the kernel's state of a silent process; `SILENT` if it runs."""
    letter = process_state(near.pid)
    if letter in ("", "Z", "X"):
        return GONE
    return STOPPED if letter in ("T", "t") else SILENT


def process_state(pid: int) -> str:
    """Return the state of a process of this node as the kernel's letter; empty if there is no such process.

    A question mark means that the state could not be read.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except (OSError, IndexError):  # for example too many open files
        return "?"
