"""Asks the processes of this node, all at the same time, and judges silent ones.

Arrivals, the side channel and the exits ask by it; `node_sockets` carries the questions.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hpccomm.backends.bootstrap.node_sockets import Address, go_on, receive, send, user_of
from hpccomm.contracts.side import ANSWERED, GONE, SILENT, STOPPED, Answer, Facts
from hpccomm.runtime.service import service

PAUSE_SECONDS = 0.002
"""How long who also waits for answers from other nodes waits between two looks."""

RETRY_SECONDS = 0.01
"""When a process that had too many questions at once is asked again."""


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
    descriptors, until = service.descriptors(), time.monotonic() + seconds
    connections: dict[int, socket.socket] = {}
    answers: dict[int, Answer] = {}

    def steps(rank: int, connected: socket.socket) -> Iterator[int]:
        try:
            yield from send(connected, {**question, "rank": rank})
            answers[rank] = Answer(ANSWERED, (yield from receive(connected)))
        except (OSError, ValueError):  # it has ended by now
            answers[rank] = _refused(addresses[rank])

    while True:
        pause = seconds if others is None else PAUSE_SECONDS
        for rank in addresses.keys() - connections.keys() - answers.keys():
            try:
                connections[rank] = connected = _connected(addresses[rank])
            except BlockingIOError:  # it has not accepted those before
                pause = min(pause, RETRY_SECONDS)
            except ConnectionError:
                answers[rank] = _refused(addresses[rank])
            except OSError:  # no answer can come
                answers[rank] = _unanswered(addresses[rank])
            else:
                go_on(descriptors, connected, steps(rank, connected))
        over = others is None or others()
        left = until - time.monotonic()
        if left <= 0 or (over and len(answers) == len(addresses)):
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
        If there is none: the process has too many questions at once (`BlockingIOError`) or refuses
        (`ConnectionError`), this one has too many files open, or somebody else has the name.
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
    """Return them where it refuses: if it still exists, it ends or runs another program."""
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
    """Return the state of a process of this node as the kernel's letter; empty without one.

    A question mark says that the kernel did not tell.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except (OSError, IndexError):  # too many open files, say: nothing is known of it
        return "?"
