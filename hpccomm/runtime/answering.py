"""The answers of this process to other ranks' questions.

Communicators register here (`engine`). The side channels of the backends and of the bootstrap (`presence`,
`node_sockets`) call `answer` in the thread that serves the channel, so `answer` must not wait for a call or
communicate. `deadlock`, `raised` and the exits read and set the facts of the process.
"""

import json
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from hpccomm.contracts.backend import Facts
from hpccomm.runtime import dump
from hpccomm.runtime.recorder import doing, frames, lingering
from hpccomm.runtime.service import ServiceThread, after_fork, weak_method

logger = logging.getLogger("hpccomm")

Answerer = Callable[[Facts], Facts]

CLOSED = 64
"""Number of closed communicators about which questions are still answered."""

_Key = tuple[str, int]  # uid and rank: ranks may be threads of one process
_answering: dict[_Key, Callable[[], Answerer | None]] = {}
_closed: MutableMapping[_Key, str] = {}  # as JSON, which takes a fifth of the memory
_services: dict[str, Callable[[], Answerer | None]] = {}
_lock = threading.Lock()
_about: dict[str, object] = {}
_said: dict[str, tuple[float, int]] = {}
_ended = ""


def register(uid: str, rank: int, answerer: Answerer) -> None:
    """Answer questions to a rank of a communicator by `answerer`, a bound method that is held weakly.

    It also drops a noted exception: a program that makes a communicator has caught the exception.
    """
    key = uid, rank
    note(raised=None)
    with _lock:
        _closed.pop(key, None)
        _answering[key] = weak_method(answerer, lambda _: _answering.pop(key, None))


def withdraw(uid: str, rank: int, last: Facts) -> None:
    """Answer with these facts from now on: the communicator is closed. Idempotent."""
    with _lock:
        _answering.pop((uid, rank), None)
        _closed[uid, rank] = json.dumps(last, default=repr)
        while len(_closed) > CLOSED:
            _closed.pop(next(iter(_closed)))


def serve(service: str, answerer: Answerer) -> None:
    """Answer questions to the named service of this process by `answerer`, a bound method that is held weakly."""
    _services[service] = weak_method(answerer, lambda _: _services.pop(service, None))


def note(**facts: object) -> None:
    """Add these facts to each answer from now on; a fact that is None is removed. Takes no lock."""
    _about.update(facts)


def noted(fact: str) -> Any:
    """Return a fact that was given to `note`; None without one."""
    return _about.get(fact)


def say(what: str) -> tuple[float, int]:
    """Return when this process first said `what`, which one rank should say for all, and the process's number.

    The first call sets that time. Where the hosts' clocks differ, two ranks may both say it, but one always does.
    """
    return _said.setdefault(what, (time.time(), os.getpid()))


def ended() -> str:
    """Return another rank's reason to end the job; empty if none has been received."""
    return _ended


def communicators() -> list[Any]:
    """Return the `CallEngine` of each communicator that answers here."""
    with _lock:
        methods = [each() for each in list(_answering.values())]
    return [method.__self__ for method in methods if method is not None]  # type: ignore[attr-defined]


def of_rank(calls: Any) -> list[Any]:
    """Return the `CallEngine`s of the rank that has this one: all of the process, unless ranks share the process."""
    shared = calls.backend.shares_process
    return [each for each in communicators() if not shared or each.thread == calls.thread]


def across(calls: Any) -> Facts:
    """Return what the rank of a `CallEngine` does in all its communicators (``"across"``).

    ``"alone"`` says whether only one thread runs the rank's program.
    """
    # Threads that C or C++ has started, such as autograd's, are not in `threading.enumerate`, but have frames.
    own = {each.ident for each in threading.enumerate() if isinstance(each, ServiceThread)}
    if calls.backend.shares_process:  # ranks are threads, and the main one waits for them
        own |= {each.thread for each in communicators()} - {calls.thread}
        own |= {threading.main_thread().ident} - {calls.thread}
    told = [each.answer({"across": True}) for each in of_rank(calls)]
    return {"across": told, "alone": len(frames().keys() - own) == 1}


def answer(question: Facts) -> Facts:
    """Return this process's answer. From any thread; never blocks for long, never raises.

    It has at least ``"host"``, ``"pid"`` and ``"doing"``, the place of the main thread. It may have:

    - ``"leaving": True``: the program has ended.
    - ``"making": True``: the process waits for others to make a communicator.
    - ``"over"``: the thread that still runs after the end of the main program.
    - ``"raised"``: the exception that was not caught.
    - ``"said"``: when this process said what the question names.
    - ``"unknown": True``: no such communicator has been made here, or it is gone.
    """
    global _ended
    if "service" in question:
        served = _services.get(question["service"], lambda: None)()
        return {"unknown": True} if served is None else served(question)
    process: dict[str, object] = {"host": platform.node(), "pid": os.getpid(), "doing": doing()}
    process |= {name: fact for name, fact in _about.items() if fact is not None}
    if thread := lingering():
        process["over"] = thread
    if "said" in question:
        process["said"] = _said.get(question["said"])
    if "at" in question:  # names a communicator that the asking rank may not be in
        for each in communicators():
            if [each.origin.uid, each.origin.rank] == question["at"]:
                each.inquiry.accusation = question["accuse"]
        return process
    if "end" in question:
        _ended = question["end"]
        dump.process.reason = dump.process.reason or _ended
    key = question.get("comm", ""), question.get("rank", -1)
    with _lock:
        answerer, closed = _answering.get(key, lambda: None)(), _closed.get(key)
    if answerer is None:
        return process | ({"unknown": True} if closed is None else json.loads(closed))
    try:
        across_all = "across" in question
        calls: Any = getattr(answerer, "__self__", None)
        return process | dict(across(calls) if across_all else answerer(question))
    except Exception as error:  # the asking rank needs an answer
        logger.exception("a question of another rank could not be answered")
        return process | {"error": f"{type(error).__name__}: {error}"}


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not here may have held it
    for each in (_answering, _closed, _services, _about, _said):
        each.clear()
