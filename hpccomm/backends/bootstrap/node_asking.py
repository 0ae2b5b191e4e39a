"""Asks the processes of this node, all at the same time, and judges silent ones.

Arrivals, the side channel and the exits ask by it; `node_sockets` carries the questions.
"""

import errno
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpccomm.backends.bootstrap.node_sockets import Address, credentials, packed, receive
from hpccomm.contracts.side import ANSWERED, GONE, SILENT, STOPPED, Answer, Facts

RETRY_SECONDS = 0.01
"""When a process that had too many questions at once is asked again."""


@dataclass(slots=True, eq=False)
class _Asked:
    """One question under way, as who asks sees it."""

    rank: int
    address: Address
    unsent: memoryview
    wire: socket.socket | None = None
    received: bytearray = field(default_factory=bytearray)


class Asking:
    """Questions to several processes of this node at the same time.

    Parameters
    ----------
    addresses : mapping
        Whom to ask, by rank.
    question : mapping
        What to ask; each gets its own rank with it.

    Attributes
    ----------
    answers : dict
        The answers so far, by rank.
    """

    def __init__(self, addresses: Mapping[int, Address], question: Facts) -> None:
        self.answers: dict[int, Answer] = {}
        self._selector = selectors.PollSelector()  # which needs no file of its own
        self._unconnected = [
            _Asked(rank, address, memoryview(packed({**question, "rank": rank})))
            for rank, address in addresses.items()
        ]
        self._connected: dict[int, _Asked] = {}

    def turn(self, seconds: float) -> bool:
        """Move on as far as it goes, waiting at most so long for something to move.

        Returns
        -------
        bool
            Whether all have answered, or cannot.
        """
        retried, self._unconnected = self._unconnected, []
        for asked in retried:
            self._connect(asked)
        if self._unconnected:
            seconds = min(seconds, RETRY_SECONDS)
        if self._connected:
            for key, _ in self._selector.select(seconds):
                self._move(key.data)
        elif self._unconnected:
            time.sleep(seconds)
        return not self._connected and not self._unconnected

    def end(self) -> dict[int, Answer]:
        """Stop waiting for the others; return the outcome of each rank."""
        for asked in (*self._unconnected, *self._connected.values()):
            self.answers[asked.rank] = _unanswered(asked)
            if asked.wire is not None:
                asked.wire.close()
        self._selector.close()
        self._unconnected, self._connected = [], {}
        return self.answers

    def _connect(self, asked: _Asked) -> None:
        try:
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:  # this process has too many files open
            self.answers[asked.rank] = _unanswered(asked)
            return
        connecting.setblocking(False)
        try:
            connecting.connect("\0" + asked.address.name)
        except OSError as error:
            connecting.close()
            if error.errno == errno.EAGAIN:  # it has not accepted those before
                self._unconnected.append(asked)
            else:
                self.answers[asked.rank] = _unanswered(asked, refused=True)
            return
        if credentials(connecting).uid != os.geteuid():  # somebody else has taken the name
            connecting.close()
            self.answers[asked.rank] = _unanswered(asked)
            return
        asked.wire = connecting
        self._connected[asked.rank] = asked
        self._selector.register(connecting, selectors.EVENT_READ | selectors.EVENT_WRITE, asked)

    def _move(self, asked: _Asked) -> None:
        assert asked.wire is not None
        try:
            if asked.unsent:
                asked.unsent = asked.unsent[asked.wire.send(asked.unsent) :]
                if not asked.unsent:
                    self._selector.modify(asked.wire, selectors.EVENT_READ, asked)
                return
            facts = receive(asked.wire, asked.received)
            if facts is None:
                return
            answered = Answer(ANSWERED, facts)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # it has ended by now
            answered = _unanswered(asked, refused=True)
        self.answers[asked.rank] = answered
        self._selector.unregister(asked.wire)
        asked.wire.close()
        del self._connected[asked.rank]


def ask(addresses: Mapping[int, Address], question: Facts, seconds: float) -> dict[int, Answer]:
    """Ask processes of this node, all at the same time; blocks at most `seconds`."""
    asking, deadline = Asking(addresses, question), time.monotonic() + seconds
    while not asking.turn(max(0.0, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            break
    return asking.end()


def _unanswered(asked: _Asked, *, refused: bool = False) -> Answer:
    """Return the kernel's facts of a silent process.

    A process that refuses and still exists is in the last steps of its exit, or runs another
    program.
    """
    known = {"host": asked.address.host, "pid": asked.address.pid}
    state = state_of(asked.address)
    return Answer(state, known | {"ending": True} if refused and state == SILENT else known)


def state_of(near: Address) -> str:
    """Return the kernel's state of a silent process; `SILENT` if it runs."""
    letter = process_state(near.pid)
    if letter in ("", "Z", "X"):
        return GONE
    return STOPPED if letter in ("T", "t") else SILENT


def process_state(pid: int) -> str:
    """Return the state of a process of this node as the kernel's letter; empty without one.

    A question mark says that the kernel did not tell.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except (OSError, IndexError):  # too many open files, say: nothing is known of it
        return "?"
