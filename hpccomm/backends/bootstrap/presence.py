"""Which ranks of the job are on this node, have ended or come to their end, and what they say of it."""

import os
import time
import weakref
from collections.abc import Mapping

from hpccomm.backends.bootstrap.node_asking import ask
from hpccomm.backends.bootstrap.node_sockets import Address, present
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.side import ANSWERED, SILENT, STOPPED, Answer, Facts
from hpccomm.runtime.answering import ended, say

ANSWER_SECONDS = 0.5
LOOK_SECONDS = 0.05
MOST_WORDS = 8
"""Ranks that say where a signal has found them."""

_seen: set[int] = set()
_widest: "weakref.ref[Backend] | None" = (
    None  # of the communicators that were made the one of most ranks
)


def note(backend: Backend) -> None:
    """Remember who is here, and a backend. Local; ranks that have made a communicator together see each other."""
    global _widest
    _seen.update(present())
    widest = None if _widest is None else _widest()
    if widest is None or backend.size > widest.size:
        _widest = weakref.ref(backend)


def gone() -> set[int]:
    """Return the ranks that were here and have ended."""
    return _seen.difference(present()) if _seen else set()


def not_at_their_end() -> str:
    """Return in words which ranks of this node have not come to their exit, and where they are."""
    return "; ".join(_lingering()) or "other ranks have not come to their end"


def all_leave(seconds: float) -> bool:
    """Return whether all ranks of this node come to their exit within so many seconds."""
    until = time.monotonic() + seconds
    while lingering := bool(_lingering()):
        if time.monotonic() > until:
            break
        time.sleep(LOOK_SECONDS)
    return not lingering


def stuck(seconds: float) -> str:
    """Return in words which ranks of this node neither answer nor end within so many seconds; '' if none."""
    until = time.monotonic() + seconds
    found = _stuck()
    while found and time.monotonic() <= until:
        time.sleep(LOOK_SECONDS)
        again = _stuck()  # one that was slow once is not
        found = [each for each in found if each in again]
    return "; ".join(found)


def said_before(what: str, seconds: float = ANSWER_SECONDS, *, end: str = "") -> int:
    """Return how many ranks have said something before this one, which says it now.

    Those that do not answer within so many seconds are not counted. One that ends the job has said all. In less than
    the usual time, as in handlers of signals, those of this node alone are asked. With `end` they are told why this
    rank ends the job, as by `tell_end`.
    """
    mine = say(what)
    if ended():
        return MOST_WORDS
    question = {"said": what} | ({"end": end} if end else {})
    near = seconds < ANSWER_SECONDS
    answers = (ask(_others(), question, seconds) if near else _ask_all(question)).values()
    return sum(tuple(each.facts.get("said") or mine) < mine for each in answers)


def raised(seconds: float) -> dict[int, Facts]:
    """Return what was raised on other ranks, and nobody caught, by rank.

    They are waited for so many seconds, or until all have raised something.
    """
    until = time.monotonic() + seconds
    while True:
        answers = _ask_all({})
        found = {
            rank: each.facts["raised"] for rank, each in answers.items() if each.facts.get("raised")
        }
        if len(found) == len(answers) or time.monotonic() > until:
            return found
        time.sleep(LOOK_SECONDS)


def tell_end(why: str) -> None:
    """Tell the other ranks that this one ends the job, and why: they need not say that they end."""
    _ask_all({"end": why})


def _ask_all(question: Facts) -> dict[int, Answer]:
    """Ask the other ranks; those on other nodes by the side channel of the communicator of most ranks."""
    near, widest = _others(), None if _widest is None else _widest()
    if widest is None or widest.side is None or len(near) >= widest.size - 1:
        return ask(near, question, ANSWER_SECONDS)
    others = [rank for rank in range(widest.size) if rank != widest.rank]
    answers = widest.side.ask(others, question, ANSWER_SECONDS)
    return {widest.members[rank]: each for rank, each in answers.items()}


def others_go_on(size: int) -> bool:
    """Whether some of the other ranks have not come to the end of their program.

    Parameters
    ----------
    size : int
        Ranks of the job. Of those on other nodes nothing is known: they go on.
    """
    answers = ask(_others(), {}, ANSWER_SECONDS)
    facts = [each.facts for each in answers.values()]
    far = len(answers) + len(gone()) < size - 1
    return far or not all(each.get("leaving") or each.get("over") for each in facts)


def _others() -> dict[int, Address]:
    return {rank: each for rank, each in present().items() if each.pid != os.getpid()}


def _lingering() -> list[str]:
    answers = ask(_others(), {}, ANSWER_SECONDS)
    told = _silent(answers)
    for rank, answer in answers.items():
        facts = answer.facts
        if answer.state == ANSWERED and not facts.get("leaving"):
            where = f" is at {facts['doing']}" if facts.get("doing") else " goes on"
            if facts.get("over"):
                where = f" has come to its end, but for {facts['over']}"
            told[rank] = f"rank {rank} (pid {facts.get('pid')}){where}"
    return [told[rank] for rank in sorted(told)]


def _stuck() -> list[str]:
    return list(_silent(ask(_others(), {}, ANSWER_SECONDS)).values())


def _silent(answers: Mapping[int, Answer]) -> dict[int, str]:
    """Return by rank which of them are there, and neither answer nor are at their end."""
    told = {}
    for rank, answer in sorted(answers.items()):
        who = f"rank {rank} (pid {answer.facts.get('pid')})"
        if answer.state == STOPPED:
            told[rank] = f"{who} is stopped, by SIGSTOP or a debugger"
        elif answer.state == SILENT and not answer.facts.get("ending"):
            told[rank] = f"{who} does not answer"
    return told
