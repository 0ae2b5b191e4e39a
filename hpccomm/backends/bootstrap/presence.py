"""Which ranks of the job are on this node, have ended, or have come to their end."""

import os
import time

from hpccomm.backends.bootstrap.node_asking import ask
from hpccomm.backends.bootstrap.node_sockets import present
from hpccomm.contracts.side import ANSWERED, STOPPED

ANSWER_SECONDS = 0.5
LOOK_SECONDS = 0.05

_seen: set[int] = set()


def note() -> None:
    """Remember who is here. Local; ranks that have made a communicator together see each other."""
    _seen.update(present())


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


def _lingering() -> list[str]:
    told = []
    others = {rank: each for rank, each in present().items() if each.pid != os.getpid()}
    for rank, answer in sorted(ask(others, {}, ANSWER_SECONDS).items()):
        facts = answer.facts
        if answer.state == ANSWERED and not facts.get("leaving"):
            where = f" is at {facts['doing']}" if facts.get("doing") else " goes on"
            told.append(f"rank {rank} (pid {facts.get('pid')}){where}")
        elif answer.state == STOPPED:
            told.append(
                f"rank {rank} (pid {facts.get('pid')}) is stopped, by SIGSTOP or a debugger"
            )
        elif answer.state != ANSWERED and not facts.get("ending"):
            told.append(f"rank {rank} (pid {facts.get('pid')}) does not answer")
    return told
