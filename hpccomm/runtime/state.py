"""The state of one communicator's calls, and its answers to other ranks about them.

`engine` and `inquiry` share it.
"""

import threading
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from hpccomm.contracts.backend import Backend, Facts
from hpccomm.contracts.pairing import Between, between
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicatorAborted,
    HpccommError,
    PeerLost,
    RankMismatch,
    WaitTimeout,
)
from hpccomm.runtime.dump import BLOCKED_SECONDS, Traffic
from hpccomm.runtime.failure import Failure
from hpccomm.runtime.progress import ANY_OF, CALL, NOBODY, Task, TaskQueue
from hpccomm.runtime.recorder import (
    ASYNC,
    BEGIN,
    CAPACITY,
    LABEL,
    MODE,
    NUMBER,
    SEQUENCE,
    TIMEOUT,
    CallRecord,
    Mishap,
    Origin,
    Site,
    calls,
    doing,
    find,
    in_words,
    place,
    ring,
    waited,
)
from hpccomm.runtime.reports import Reports
from hpccomm.settings import Settings

MAKING = -(1 << 20)
"""Numbers begin here while the communicator is made, and at 0 for the user's calls."""

Agree = Callable[[Any, CallRecord, tuple[Any, ...]], object]
Compare = Callable[[CallFingerprint, CallRecord], object]

REFUSALS = AGREEMENTS = 64
"""Refused calls that are remembered, and calls that the ranks have compared."""


class CallState:
    """The calls of one communicator: those under way, and what all of them have in common.

    Parameters
    ----------
    name : str
        Name of the communicator.
    backend : Backend
        Its ranks.
    settings : Settings
        Deadline and slow-call threshold.

    Attributes
    ----------
    timeout : float
        Deadline of calls that have none of their own, in seconds.
    on_timeout : str
        What a call does whose deadline has passed: ``"raise"``, ``"abort"`` or ``"report"``.
    sequence : int
        Number of the last call.
    number : int
        Number of the last call that all ranks make in one order: equal on all ranks for the same call.
    digest : int
        26 bits of all those calls: equal on all ranks as well.
    origin : Origin
        The communicator, as records name it.
    kept : deque of list
        The records of the last calls.
    site : tuple or None
        Where in the program the call is made.
    current : list or None
        The record of the synchronous call under way.
    under_way : dict of Task to list
        Asynchronous calls that are not over, and their records.
    queue : deque of Task
        Asynchronous collectives, which run one after the other.
    turn : dict
        Has one item, of the key 0, while no call is under way. A thread deletes it to make a call, and sets it
        afterwards: a lock, at a third of the price.
    closed : str
        Why no call is taken any more; empty while they are.
    reports : Reports
        Hooks, statistics, and descriptions of calls.
    failure : Failure
        Whether the communicator has failed.
    gate : Gate
        That of `failure`.
    traffic : Traffic
        The messages that have begun.
    holds : set of int
        The mutexes that this rank holds, as the ends of calls name them.
    agreement : int
        Grows where the ranks forget what they have agreed on. 0 where they compare nothing.
    agree_on : callable
        ``agree_on(prepared, entry, arguments)`` raises on all ranks unless they make the same call, and have made the
        same calls so far. The first call of a kind and size does so, and one of 1,024.
    compare : callable
        ``compare(label, entry)`` does that in each call.
    compared : deque of int
        Numbers of the last calls that the ranks compare, or have compared, before they begin.
    thread : int
        The thread that has made the communicator.
    refusals : deque of tuple of int, Mishap and int
        The last calls that were refused: the number that a call of all ranks would have had, 0 of others; and how many
        such calls there were before.
    """

    def __init__(self, name: str, backend: Backend, settings: Settings) -> None:
        self.name = name
        self.backend = backend
        self.timeout = settings.timeout
        self.on_timeout = settings.on_timeout
        self.sequence = self.number = MAKING
        self.digest = 0
        self.origin = Origin(backend.uid, name, backend.rank, backend.size)
        self.kept = ring(CAPACITY if settings.record else 0)
        self.site: Site | None = None
        self.current: CallRecord | None = None
        self.under_way: dict[Task, CallRecord] = {}
        self.queue = TaskQueue()
        self.turn = {0: True}
        self.closed = ""
        self.reports = Reports(self.origin, settings.slow_call)
        self.failure = Failure(self.reports, backend)
        self.gate = self.failure.gate
        self.traffic = Traffic()
        self.holds: set[int] = set()
        self.compared: deque[int] = deque(maxlen=AGREEMENTS)
        self.agreement = 0
        self.agree_on: Agree = lambda *_: None
        self.compare: Compare = lambda *_: None
        self.thread = threading.get_ident()
        self.refusals: deque[tuple[int, Mishap, int]] = deque(maxlen=REFUSALS)

    def pending(self) -> list[CallRecord]:
        """Return the records of the calls under way. From any thread."""
        entries = list(self.under_way.values())
        return entries if self.current is None else [self.current, *entries]

    def blocked(self) -> tuple[int, list[CallRecord]]:
        """Return how the program waits, and the records of the call that it waits for, or of those of which any would do.

        From any thread.
        """
        tasks = list(self.under_way.items())
        waits = [(task.awaited, entry) for task, entry in tasks if task.awaited]
        how = max((each for each, _ in waits), default=NOBODY)
        current = self.current
        if current is not None and how != CALL:  # else that call waits for these tasks
            return CALL, [current]
        entries = sorted((each for who, each in waits if who == how), key=itemgetter(BEGIN))
        return how, entries if how == ANY_OF else entries[:1]

    def waiting(self) -> CallRecord | None:
        """Return the record of the call that the program has waited for long, else of the oldest, or None. From any thread."""
        if not self.under_way:
            return self.current
        blocked = self.blocked()[1]
        if blocked and waited(blocked[0]) > BLOCKED_SECONDS:
            return blocked[0]
        return min(self.pending(), key=itemgetter(BEGIN), default=None)

    def lately(self) -> Facts | None:
        """Return the last call that was refused, as others are told of it, until the next call of all ranks is done.

        A refused call raises before anything is sent, or on all ranks, and the communicator goes on: if the
        program catches that, nothing else tells why it does not make the call that others wait for.
        """
        lately = self.refusals and self.number <= self.refusals[-1][2] + 1
        return self.refusals[-1][1].facts() if lately else None

    def facts(self, number: int, entry: CallRecord | None = None) -> Facts:
        """Return this rank's activity.

        Parameters
        ----------
        number : int
            The ordered call that is of interest; 0 for none.
        entry : list, optional
            Its record, if it is at hand.
        """
        if entry is None and number:
            entry = find(self.kept, number)
        now = self.waiting()
        # A late rank has not left: it is somewhere else.
        failure = None if self.failure.late else self.gate.error
        error = failure and (failure.__cause__ or failure)
        numbers = [each[NUMBER] for each in self.pending() if each[NUMBER]]
        return {
            "rank": self.origin.rank,
            "size": self.origin.size,
            "communicator": self.origin.name,
            "collective": self.number,
            "done": min(numbers) - 1 if numbers else self.number,
            "record": None if entry is None else _called(entry),
            "site": "" if entry is None else place(entry),
            "compared": number in self.compared,
            "now": None if now is None else self._now(now),
            "doing": "" if self.backend.shares_process or self.closed else doing(),
            "failed": None if error is None else _why(error),
            "closed": self.closed or ("" if error is None else _left(error)),
            "refused": self.lately(),
            "refusals": sum(each[0] == number for each in self.refusals),
        }

    def _now(self, entry: CallRecord) -> Facts:
        label = entry[LABEL]
        # What has an earlier deadline than the communicator's calls, such as a poll, goes on by itself.
        patient = entry[TIMEOUT] >= self.timeout
        how, blocked = self.blocked()
        now = {
            "operation": label.name,
            "collective": entry[NUMBER],
            "call": entry[SEQUENCE],
            "since": round(waited(entry), 3),
            "site": place(entry),
            "held": (patient or entry[NUMBER] > 0) and any(each is entry for each in blocked),
            "patient": patient,
            "occupies": how == CALL,
            "any": how == ANY_OF,
        }
        if label.ends:
            beside = [each[LABEL] for each in self.pending() if each is not entry]
            own = calls(self.kept)
            later = [each[LABEL] for each in own if each[BEGIN] > entry[BEGIN]]
            last = entry is self.current or any(each is entry for each in own)
            now["waits"] = self.traffic.waits(label, beside, later, exact=last)
        return now

    def across(self) -> Facts:
        """Return this rank's activity as it concerns waits, also in other communicators."""
        blocked = self.blocked()[1]
        told = {
            **self.facts(0),
            "uid": self.origin.uid,
            "members": list(self.backend.members),
            "blocked": [self._now(entry) for entry in blocked],
            "traffic": list(self.traffic.everything().items()),
            "holds": list(self.holds),
        }
        after = self.blocked()[1]
        if [*map(id, after)] != [*map(id, blocked)]:  # else all of this was so at one moment
            told["blocked"] = []
        return told


def _left(error: BaseException) -> str:
    """Return why this rank makes no more calls of a communicator, where the others cannot find it out themselves.

    It has aborted it, or an exception of the program, a Ctrl-C or an error of a library has ended a call here.
    """
    if isinstance(error, CommunicatorAborted):
        return "was aborted"
    shared = isinstance(error, CollectiveTimeout | PeerLost | RankMismatch)
    shared = shared and not isinstance(error, WaitTimeout)  # such as a hook's
    return "" if shared else f"left a call by {in_words(error)}"


def _why(error: BaseException) -> str:
    """Return why a communicator has failed."""
    return str(error) if isinstance(error, HpccommError) else in_words(error)


def _called(entry: CallRecord) -> Facts:
    label = entry[LABEL]
    return {"operation": label.name, **label.values, "async_op": entry[MODE] is ASYNC}


def between_ranks(entry: CallRecord | None, rank: object) -> list[Between]:
    """Return what this rank exchanges with another one in each call of lists of its own that belongs to a call."""
    if entry is None or not isinstance(rank, int):
        return []
    return between(entry[LABEL].individual, rank)
