"""Messages between ranks, which may be threads of one process or processes of one machine."""

import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener


class Stopped(Exception):
    """Waiting was given up, since the communicator was aborted."""


class Mailbox:
    """What came for one rank of one communicator, by kind."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._came: dict[Hashable, list[bytes]] = defaultdict(list)

    def put(self, kind: Hashable, data: bytes) -> None:
        """Leave a message."""
        with self._condition:
            self._came[kind].append(data)
            self._condition.notify_all()

    def take(self, kind: Hashable, stopped: Callable[[], bool] = bool) -> bytes:
        """Return a message of a kind; block until it is there.

        Raises
        ------
        Stopped
            Once `stopped` is true; `wake` has it asked.
        """
        with self._condition:
            self._condition.wait_for(lambda: stopped() or self._came[kind])
            if stopped():
                raise Stopped
            return self._came[kind].pop(0)

    def wake(self) -> None:
        """Have those that wait ask whether they still should."""
        with self._condition:
            self._condition.notify_all()


class Post:
    """The mailboxes of a process, and its connections to others."""

    def __init__(self) -> None:
        self.address = f"\0standin-{os.getpid()}-{secrets.token_hex(8)}"
        self._boxes_lock, self._out_lock = threading.Lock(), threading.Lock()
        self._boxes: dict[Hashable, Mailbox] = {}
        self._out: dict[str, Connection] = {}
        self._listener = Listener(self.address, "AF_UNIX", backlog=1024)
        threading.Thread(target=self._accept, name="stand-in post", daemon=True).start()

    def box(self, name: Hashable) -> Mailbox:
        """Return a mailbox by its name; there is no message that comes too early."""
        with self._boxes_lock:
            return self._boxes.setdefault(name, Mailbox())

    def send(self, address: str, name: Hashable, kind: Hashable, data: bytes) -> None:
        """Leave a message in a mailbox of a process."""
        if address == self.address:
            self.box(name).put(kind, data)
            return
        with self._out_lock:
            if address not in self._out:
                self._out[address] = Client(address, "AF_UNIX")
            self._out[address].send((name, kind, data))

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # until its process ends
            while True:
                name, kind, data = connection.recv()
                self.box(name).put(kind, data)


_lock = threading.RLock()
_posts: dict[int, Post] = {}


def post() -> Post:
    """Return this process's."""
    with _lock:
        process = os.getpid()
        if process not in _posts:
            _posts[process] = Post()
        return _posts[process]
