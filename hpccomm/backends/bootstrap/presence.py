"""Which ranks of the job are on this node, have ended, or have come to their end."""

from hpccomm.backends.bootstrap.node_asking import ask
from hpccomm.backends.bootstrap.node_sockets import present
from hpccomm.contracts.side import ANSWERED, STOPPED

ANSWER_SECONDS = 0.5

_seen: set[int] = set()


def note() -> None:
    """Remember who is here. Local; ranks that have made a communicator together see each other."""
    _seen.update(present())


def gone() -> set[int]:
    """Return the ranks that were here and have ended."""
    return _seen.difference(present()) if _seen else set()


def not_at_their_end() -> str:
    """Return in words which ranks of this node have not come to their exit, and where they are."""
    told = []
    for rank, answer in sorted(ask(present(), {}, ANSWER_SECONDS).items()):
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
    return "; ".join(told) or "other ranks have not come to their end"
