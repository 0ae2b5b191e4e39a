"""Messages between ranks, which may be threads of one process or processes of one machine."""

import os
import pickle
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Hashable

_HEADER = struct.Struct("<QQ")


class Stopped(Exception):
    """Waiting was given up, since the communicator was aborted."""


class Mailbox:
    """What came for one rank of one communicator, by kind."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._came: dict[Hashable, deque[bytes]] = {}

    def put(self, kind: Hashable, data: bytes) -> None:
        """Leave a message."""
        with self._condition:
            self._came.setdefault(kind, deque()).append(data)
            self._condition.notify_all()

    def take(self, kind: Hashable, stopped: Callable[[], bool]) -> bytes:
        """Return a message of a kind; block until it is there.

        Raises
        ------
        Stopped
            Once `stopped` is true; `wake` has it asked.
        """
        with self._condition:
            self._condition.wait_for(lambda: stopped() or self._came.get(kind))
            if stopped():
                raise Stopped
            waiting = self._came[kind]
            data = waiting.popleft()
            if not waiting:
                del self._came[kind]
            return data

    def wake(self) -> None:
        """Have those that wait ask whether they still should."""
        with self._condition:
            self._condition.notify_all()


class Post:
    """The mailboxes of a process, and its connections to others."""

    def __init__(self) -> None:
        self.address = f"\0standin-{os.getpid()}-{secrets.token_hex(8)}"
        self._lock = threading.RLock()
        self._boxes: dict[Hashable, Mailbox] = {}
        self._out: dict[str, tuple[socket.socket, threading.Lock]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen(1024)
        threading.Thread(target=self._accept, name="stand-in post", daemon=True).start()

    def box(self, name: Hashable) -> Mailbox:
        """Return a mailbox by its name; there is no message that comes too early."""
        with self._lock:
            return self._boxes.setdefault(name, Mailbox())

    def send(self, address: str, name: Hashable, kind: Hashable, data: bytes) -> None:
        """Leave a message in a mailbox of a process."""
        if address == self.address:
            self.box(name).put(kind, data)
            return
        connection, lock = self._connection(address)
        head = pickle.dumps((name, kind))
        with lock:
            connection.sendall(_HEADER.pack(len(head), len(data)) + head)
            connection.sendall(data)

    def _connection(self, address: str) -> tuple[socket.socket, threading.Lock]:
        with self._lock:
            if address not in self._out:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(address)
                self._out[address] = connection, threading.RLock()
            return self._out[address]

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection:
            while True:
                header = read(connection, _HEADER.size)
                if header is None:
                    return  # the process ended
                head_size, size = _HEADER.unpack(header)
                head, data = read(connection, head_size), read(connection, size)
                if head is None or data is None:
                    return
                name, kind = pickle.loads(head)
                self.box(name).put(kind, bytes(data))


def read(connection: socket.socket, size: int) -> bytearray | None:
    """Return exactly `size` bytes, or None where the connection ended before."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError:
            return None
        if not count:
            return None
        view = view[count:]
    return data


_lock = threading.RLock()
_posts: dict[int, Post] = {}


def post() -> Post:
    """Return this process's."""
    with _lock:
        process = os.getpid()
        if process not in _posts:
            _posts[process] = Post()
        return _posts[process]
