"""What this process answers to the questions of other ranks.

Communicators register here; the side channels of all backends answer with `answer`. It runs in a thread
that serves the channel, so it may neither wait for a call nor communicate.
"""

import logging
import os
import platform
import threading
import weakref
from collections.abc import Callable, MutableMapping

from hpccomm.contracts.side import Facts
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.recorder import doing

logger = logging.getLogger("hpccomm")

Answerer = Callable[[Facts], Facts]

CLOSED = 256
"""Communicators that are no more and are still told of."""

_Key = tuple[str, int]  # uid and rank: ranks may be threads of one process
_answering: dict[_Key, "weakref.WeakMethod[Answerer]"] = {}
_closed: MutableMapping[_Key, Facts] = {}
_lock = threading.Lock()
_leaving = False
_making = False


def register(uid: str, rank: int, answerer: Answerer) -> None:
    """Answer questions to that rank of that communicator by a bound method, held weakly."""
    key = uid, rank
    with _lock:
        _closed.pop(key, None)
        _answering[key] = weakref.WeakMethod(answerer)


def withdraw(uid: str, rank: int, last: Facts) -> None:
    """Answer with these facts from now on: the communicator is closed. Idempotent."""
    key = uid, rank
    with _lock:
        _answering.pop(key, None)
        _closed[key] = last
        while len(_closed) > CLOSED:
            _closed.pop(next(iter(_closed)))


def note_exit() -> None:
    """Answer from now on that the program of this process has ended."""
    global _leaving
    _leaving = True


def note_making(making: bool) -> None:
    """Answer from now on whether this process waits for others to make a communicator with it."""
    global _making
    _making = making


def answer(question: Facts) -> Facts:
    """Return this process's answer. From any thread; never blocks for long, never raises.

    It has at least ``"host"``, ``"pid"``, and as ``"doing"`` where the main thread is. ``"leaving": True``
    says that the program has ended, ``"making": True`` that it waits for others to make a communicator,
    ``"unknown": True`` that no such communicator has been made here, or
    that it is gone.
    """
    process: dict[str, object] = {"host": platform.node(), "pid": os.getpid(), "doing": doing()}
    if _leaving:
        process["leaving"] = True
    if _making:
        process["making"] = True
    key = question.get("comm", ""), question.get("rank", -1)
    with _lock:
        method, closed = _answering.get(key), _closed.get(key)
    answerer = None if method is None else method()
    if answerer is None:
        return process | (dict(closed) if closed is not None else {"unknown": True})
    try:
        return process | dict(answerer(question))
    except Exception as error:  # who asks must hear something
        logger.exception("a question of another rank could not be answered")
        return process | {"error": f"{type(error).__name__}: {error}"}


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not here may have held it
    _answering.clear()
    _closed.clear()
