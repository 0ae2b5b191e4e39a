"""Asks the processes of this node, all at the same time, and judges silent ones.

Arrivals, the side channel and the exits ask by it; `node_sockets` carries the questions.
"""

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpccomm.backends.bootstrap.node_sockets import Address, credentials, packed, receive
from hpccomm.contracts.side import ANSWERED, GONE, SILENT, STOPPED, Answer, Facts
from hpccomm.runtime.service import service

PAUSE_SECONDS = 0.002
"""How long who waits for answers from other nodes too waits between two looks."""

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


class _Asking:
    """Questions to several processes of this node at the same time."""

    def __init__(self, addresses: Mapping[int, Address], question: Facts) -> None:
        self.answers: dict[int, Answer] = {}
        self._descriptors = service.descriptors()
        self._unconnected = [
            _Asked(rank, address, memoryview(packed({**question, "rank": rank})))
            for rank, address in addresses.items()
        ]
        self._connected: dict[int, _Asked] = {}

    def over(self) -> bool:
        """Begin what has not begun; return whether all have answered, or cannot."""
        retried, self._unconnected = self._unconnected, []
        for asked in retried:
            self._connect(asked)
        return not self._connected and not self._unconnected

    def wait(self, seconds: float) -> None:
        """Wait at most so long for something to move, and move it."""
        self._descriptors.turn(min(seconds, RETRY_SECONDS) if self._unconnected else seconds)

    def end(self) -> dict[int, Answer]:
        """Stop waiting for the others; return the outcome of each rank."""
        for asked in (*self._unconnected, *self._connected.values()):
            self.answers[asked.rank] = _unanswered(asked)
            if asked.wire is not None:
                self._close(asked.wire)
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
        self._descriptors.hear(
            connecting, partial(self._move, asked), selectors.EVENT_READ | selectors.EVENT_WRITE
        )

    def _move(self, asked: _Asked) -> None:
        assert asked.wire is not None
        try:
            if asked.unsent:
                asked.unsent = asked.unsent[asked.wire.send(asked.unsent) :]
                if not asked.unsent:
                    self._descriptors.hear(asked.wire, partial(self._move, asked))
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
        self._close(asked.wire)
        del self._connected[asked.rank]

    def _close(self, wire: socket.socket) -> None:
        self._descriptors.forget(wire)
        wire.close()


def ask(
    addresses: Mapping[int, Address],
    question: Facts,
    seconds: float,
    others: Callable[[], bool] | None = None,
) -> dict[int, Answer]:
    """Ask processes of this node, all at the same time; blocks at most `seconds`.

    Parameters
    ----------
    addresses : mapping
        Whom to ask, by rank.
    question : mapping
        What to ask; each gets its own rank with it.
    seconds : float
        How long to wait for answers.
    others : callable, optional
        Moves questions on that go another way; returns whether these are answered. It is called
        again and again.

    Returns
    -------
    dict of int to Answer
        The answers, by rank. Of a silent process it has what the kernel knows.
    """
    asking, until = _Asking(addresses, question), time.monotonic() + seconds
    while True:
        over = asking.over(), others is None or others()
        left = until - time.monotonic()
        if all(over) or left <= 0:
            return asking.end()
        asking.wait(left if others is None else min(left, PAUSE_SECONDS))


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
