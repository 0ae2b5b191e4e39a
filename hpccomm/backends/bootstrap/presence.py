"""The ranks of the job on this node: which have ended or are ending, and their exceptions.

`shutdown` and `mpi` use it before this process leaves, and `hpccomm.communicator.creation` while ranks meet.
"""

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.backends.bootstrap.node_sockets import Address, ask, present, process_state, serve
from hpccomm.contracts.backend import ANSWERED, SILENT, STOPPED, Answer, Backend, Facts
from hpccomm.runtime import answering
from hpccomm.runtime.answering import ended, say
from hpccomm.runtime.service import service, write_stderr
from hpccomm.units import ranks_named

ANSWER_SECONDS = 0.5
"""Seconds that answers may take."""
LOOK_SECONDS = 0.05
"""Seconds between two questions to the same ranks."""
MOST_WORDS = 8
"""Most ranks that print where a signal has found them."""

_seen: set[int] = set()
_widest: "weakref.ref[Backend] | None" = None  # the largest communicator so far


def note(backend: Backend) -> None:
    """Remember the ranks that are present on this node, and the backend of the largest communicator. Local.

    Call it when a communicator was made: then all its ranks are present.
    """
    global _widest
    _seen.update(present())
    widest = None if _widest is None else _widest()
    if widest is None or backend.size > widest.size:
        _widest = weakref.ref(backend)


def gone() -> set[int]:
    """Return the ranks of this node that were present at a `note` and have ended."""
    return _seen.difference(present()) if _seen else set()


def not_at_their_end() -> str:
    """Return in words which ranks of this node have not reached their exit, and where they are."""
    return "; ".join(_lingering().values()) or "other ranks have not come to their end"


def all_leave(seconds: float) -> bool:
    """Return whether all ranks of this node reach their exit within `seconds`."""
    return not _staying(_lingering, seconds)


def stuck(seconds: float) -> str:
    """Return in words which ranks of this node are silent and do not end within `seconds`; empty if none."""
    return "; ".join(_staying(lambda: _silent(_asked()), seconds).values())


def _staying(find: Callable[[], dict[int, str]], seconds: float) -> dict[int, str]:
    """Return the ranks that ``find()`` returns all the time for `seconds`, with their words; stop early if none."""
    until, found = time.monotonic() + seconds, find()
    while found and time.monotonic() <= until:
        time.sleep(LOOK_SECONDS)
        again = find()
        found = {rank: words for rank, words in found.items() if rank in again}
    return found


def said_before(what: str, seconds: float = ANSWER_SECONDS, *, end: str = "") -> int:
    """Say `what`, and return how many ranks said it before this one. Blocks for about `seconds` at most.

    Ranks that do not answer in time are not counted. If another rank ends the job, no rank is asked and `MOST_WORDS`
    is returned. If `seconds` is shorter than usual, as in signal handlers, only this node's ranks are asked.
    With `end`, the other ranks learn why this rank ends the job, and need not say that they end.
    """
    own = say(what)
    if ended():
        return MOST_WORDS
    question = {"said": what} | ({"end": end} if end else {})
    near = seconds < ANSWER_SECONDS
    answers = (ask(_others(), question, seconds) if near else _ask_all(question)).values()
    return sum(tuple(each.facts.get("said") or own) < own for each in answers)


def raised(seconds: float) -> dict[int, Facts]:
    """Return the uncaught exceptions of other ranks, by rank.

    Blocks until all other ranks have raised one, or until `seconds` are over.
    """
    until = time.monotonic() + seconds
    while True:
        answers = _ask_all({})
        facts = {
            rank: each.facts["raised"] for rank, each in answers.items() if each.facts.get("raised")
        }
        if len(facts) == len(answers) or time.monotonic() > until:
            return facts
        time.sleep(LOOK_SECONDS)


def first(others: Mapping[int, Facts], own: Facts | None) -> Facts | None:
    """Return the earliest exception of this rank and the others; None if there is none."""
    every = [*others.values(), *([] if own is None else [own])]
    return min(every, key=lambda each: tuple(each["order"]), default=None)


def await_end(order: object, seconds: float) -> None:
    """Wait, for at most `seconds`, until the rank whose exception has this `order` is at the end of its program."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        every = [each.facts for each in _ask_all({}).values()]
        at_end = [
            each["raised"]["order"] for each in every if each.get("raised") and each.get("leaving")
        ]
        if order in at_end:
            return
        time.sleep(LOOK_SECONDS)


def _ask_all(question: Facts) -> dict[int, Answer]:
    """Ask the other ranks: of this node directly, of all nodes by the side channel of the largest communicator."""
    near, widest = _others(), None if _widest is None else _widest()
    if widest is None or widest.side is None or len(near) >= widest.size - 1:
        return ask(near, question, ANSWER_SECONDS)
    others = [rank for rank in range(widest.size) if rank != widest.rank]
    answers = widest.side.ask(others, question, ANSWER_SECONDS)
    return {widest.members[rank]: each for rank, each in answers.items()}


def _others() -> dict[int, Address]:
    return {rank: each for rank, each in present().items() if each.pid != os.getpid()}


def _asked() -> dict[int, Answer]:
    return dict(sorted(ask(_others(), {}, ANSWER_SECONDS).items()))


def _lingering() -> dict[int, str]:
    """Return in words, by rank, which ranks of this node have not reached their exit, and where they are."""
    answers = _asked()
    found = _silent(answers)
    for rank, answer in answers.items():
        facts = answer.facts
        if answer.state == ANSWERED and not facts.get("leaving"):
            where = f" is at {facts['doing']}" if facts.get("doing") else " goes on"
            if facts.get("over"):
                where = f" has come to its end, except {facts['over']}"
            found[rank] = f"rank {rank} (pid {facts.get('pid')}){where}"
    return found


def _silent(answers: Mapping[int, Answer]) -> dict[int, str]:
    """Return in words, by rank, which processes exist but are stopped or do not answer, and are not ending."""
    errors = {}
    for rank, answer in answers.items():
        who = f"rank {rank} (pid {answer.facts.get('pid')})"
        if answer.state == STOPPED:
            errors[rank] = f"{who} is stopped, by SIGSTOP or a debugger"
        elif answer.state == SILENT and not answer.facts.get("ending"):
            errors[rank] = f"{who} does not answer"
    return errors


START_SECONDS = 3.0
"""Seconds that MPI's start may take in addition to the deadline."""


class JobArrival:
    """The deadline of making a communicator, from the first line on.

    MPI's start and the calls that follow block in the library. So the watchdog checks the deadline: once it has
    passed, the watchdog says which ranks of this node have not come, and ends the job.

    Parameters
    ----------
    name : str
        Name of the communicator.
    timeout : float
        The deadline, in seconds.
    end_job : callable
        ``end_job(reason)`` ends the job. It does not return.
    """

    def __init__(self, name: str, timeout: float, end_job: Callable[[str], NoReturn]) -> None:
        self._name = name
        self._timeout = timeout
        self._end_job = end_job
        self._until = math.inf
        self._began = 0.0
        self._seen: set[int] = set()  # ranks that have come, and may have ended since

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Apply the deadline to the block, in which all ranks meet. If it passes, the job ends."""
        self._began = time.perf_counter()
        self._until = self._began + self._timeout + START_SECONDS
        serve()
        service.watch(self.look)
        answering.note(making=True)
        try:
            yield
        finally:
            self._until = math.inf
            answering.note(making=None)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Do not count the time of the block, in which a rank works alone, such as importing modules."""
        began, until, self._until = time.perf_counter(), self._until, math.inf
        try:
            yield
        finally:
            self._until = until + time.perf_counter() - began

    def look(self, now: float) -> None:
        """End the job if the deadline has passed."""
        if now - self._began > 1.0 and self._until != math.inf:
            self._seen.update(present())
        if now <= self._until:
            return
        self._until = math.inf  # the job is ended once
        launch = launched()
        rank = f"rank {launch.rank}" if launch else "this process"
        write_stderr(
            f"hpccomm: new_comm ({self._name!r}) on {rank} has waited for the other ranks for "
            f"{now - self._began:.1f} s; its deadline is {self._timeout:g} s, and {START_SECONDS:g} s for MPI "
            f"to start. {absent(self._seen)}. The wait cannot be left, so the job ends now."
        )
        self._end_job("a communicator could not be made before its deadline")


def absent(seen: set[int]) -> str:
    """Return in words which ranks of this node have not come to make a communicator, or cannot go on.

    Parameters
    ----------
    seen : set of int
        Ranks that have come, and may have ended since.
    """
    launch, here = launched(), present()
    stopped = [rank for rank, each in here.items() if process_state(each.pid) in ("T", "t")]
    ended = sorted(seen.difference(here))
    sentences = [f"{_ranks(stopped)} been stopped, by SIGSTOP or a debugger"] if stopped else []
    sentences += [f"{_ranks(ended)} ended"] if ended else []
    if launch is not None and launch.size in (len(here), launch.local_size):
        missing = sorted(set(range(launch.size)).difference(here, ended))
        sentences += [f"{_ranks(missing)} not come to new_comm, or ended before"] if missing else []
    elif launch is not None:
        sentences.append(
            f"{len(here)} of {launch.local_size or 'the'} ranks of this node have come to new_comm: "
            f"{', '.join(map(str, sorted(here)))}"
        )
    sentences = sentences or [_elsewhere(here)]
    return "; ".join(filter(None, sentences)) or "All ranks of this node have come to new_comm"


def _elsewhere(here: dict[int, Address]) -> str:
    """Return in words which ranks of this node answer but are not making a communicator, and where they are."""
    others = {rank: each for rank, each in here.items() if each.pid != os.getpid()}
    answers = sorted(ask(others, {}, ANSWER_SECONDS).items())
    places = {
        rank: answer.facts.get("doing") or "another place"
        for rank, answer in answers
        if answer.state == ANSWERED and not answer.facts.get("making")
    }
    return "; ".join(
        f"Rank {rank} has not come to this new_comm: it is at {place}"
        for rank, place in places.items()
    )


def _ranks(ranks: list[int]) -> str:
    return f"{ranks_named(ranks).capitalize()} {'has' if len(ranks) == 1 else 'have'}"
