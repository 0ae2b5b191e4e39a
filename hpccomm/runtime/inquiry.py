"""What one communicator does about a call that waits long: it asks the other ranks, and draws conclusions.

Nothing of this runs while calls are quick. From `ASK_SECONDS` on, the watchdog's thread asks the peers by the
side channel what their call of the same number is, and again after twice the time. What it learns:

- A peer's call of that number asks for something else: `RankMismatch`, on both sides.
- The process of a peer that has not come is no longer there: `PeerLost`.
- Otherwise the call may still be completed. At the deadline the error says who has not come, and where those
  ranks are.

A call that is polled ends by itself, once the communicator has failed. One that blocks in a library cannot be
left unless the backend releases it: then the job ends, with the same words.
"""

import logging
import threading
from collections.abc import Sequence
from math import inf
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from hpccomm.contracts.pairing import Between, between
from hpccomm.contracts.side import ANSWERED, Answer, Facts
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    PeerLost,
    RankMismatch,
)
from hpccomm.runtime import across, dump
from hpccomm.runtime.recorder import (
    ASYNC,
    BEGIN,
    BLOCKING,
    LABEL,
    MODE,
    NUMBER,
    SITE,
    TIMEOUT,
    CallRecord,
    described,
    doing,
    find,
    in_words,
    refused,
)
from hpccomm.runtime.stderr import Voice, write_stderr
from hpccomm.runtime.traffic import followed
from hpccomm.runtime.verdict import Verdict, judge
from hpccomm.units import MOST_NAMED

if TYPE_CHECKING:
    from hpccomm.runtime.engine import CallEngine

logger = logging.getLogger("hpccomm")

ASK_SECONDS, ANSWER_SECONDS = 0.3, 0.5
"""A call that has waited so long has the peers asked, and how long their answers may take."""

LONGEST_SECONDS = 10.0
"""The longest time between two questions."""

UNKNOWN = "A rank did not take part or is late"
"""What is said where no rank can be asked."""

SHRINK = "shrink"
"""The call that waits for those that are left: that others are lost does not end it."""

RELEASE_SECONDS, RELEASE_PAUSE = 2.0, 0.01
"""How long a call that the backend has released may take to return, and how often that is looked at."""

LEAVE_SECONDS = 0.5
"""How long a blocked call may go on when an earlier one has failed: what it waits for may have been sent."""

CANNOT_LEAVE = "the call is blocked in the library and cannot be left"


class Inquiry:
    """What one communicator learns of its other ranks.

    Attributes
    ----------
    answers : dict of int to Answer
        The last answers of other ranks, about the call `number`.
    accusation : mapping or None
        What another rank found, which nobody here has acted upon.
    late : bool
        Whether another rank has given up to wait for this one.
    awaited : tuple of int
        The ranks that have not come, as far as it is known.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.accusation: Facts | None = None
        self.late = False
        self.awaited: tuple[int, ...] = ()
        self._entry: CallRecord | None = None
        self._next = 0.0
        self._given_up: CallRecord | None = None
        self._reported: CallRecord | None = None
        self._said = {""}
        self._lock = threading.Lock()

    # For the watchdog.

    def look(self, calls: "CallEngine", now: float) -> None:
        """Look after the call that has waited longest."""
        accusation, entry = self.accusation, calls.waiting()
        if accusation is not None:
            self.accusation = None
            self._accused(calls, entry, accusation)
            return
        if entry is None or entry is self._given_up:
            return
        waited = now - entry[BEGIN]
        if waited > entry[TIMEOUT]:
            if entry[MODE] is BLOCKING:
                error = calls.at_deadline(entry, waited)
                if error is not None:
                    self._give_up(calls, entry, error)
        elif waited > ASK_SECONDS and entry[LABEL].name != SHRINK and self._due(entry, now):
            verdict = self._asked(calls, entry)
            error = _found(verdict, calls, entry, waited)
            if error is None and verdict is not None and verdict.missing:
                what = calls.reports.described(entry)
                late = (*verdict.missing, *verdict.held_up)
                error = across.found(calls, late, what, ANSWER_SECONDS)
            said = "" if error is not None or verdict is None else verdict.unreceived
            if said not in self._said and len(self._said) <= MOST_NAMED:  # some wait so by design
                self._said.add(said)
                logger.warning("%s waits: %s", calls.reports.described(entry), said)
            if error is not None and calls.waiting() is entry:
                self._give_up(calls, entry, error)

    def overdue(
        self, calls: "CallEngine", entry: CallRecord, elapsed: float, causes: str = ""
    ) -> CommunicationError:
        """Return the error of a call whose deadline has passed. Blocks while the peers are asked."""
        verdict = self._asked(calls, entry)
        error = _found(verdict, calls, entry, elapsed)
        if error is None:
            why = UNKNOWN if verdict is None and not causes else causes
            ranks: Sequence[int] = ()
            if verdict is not None:
                why, ranks = f"{verdict.text}. {causes}".rstrip(". "), verdict.absent
            error = calls.reports.overdue(entry, elapsed, why, ranks)
        self._have_dumped(calls, error)
        waits_on = calls.on_timeout == "report" and isinstance(error, CollectiveTimeout)
        if verdict is not None and entry[NUMBER] and not waits_on:
            # Those that come late must not send to ranks that have left.
            self._accuse(calls, entry, error, (*verdict.missing, *verdict.held_up))
        return error

    def _due(self, entry: CallRecord, now: float) -> bool:
        if entry is not self._entry:
            self._next = 0.0
        if now < self._next:
            return False
        self._next = now + min(max(now - entry[BEGIN], ASK_SECONDS), LONGEST_SECONDS)
        return True

    def _asked(self, calls: "CallEngine", entry: CallRecord) -> Verdict | None:
        """Ask the peers about a call, and return what follows; None where nobody can be asked."""
        side, origin = calls.backend.side, calls.origin
        others = _peers(entry, origin.rank, origin.size)
        if side is None or not others:
            return None
        with self._lock:
            if entry is not self._entry:
                self._entry, self.answers = entry, {}
            question = {"comm": origin.uid, "collective": entry[NUMBER], "from": origin.rank}
            for rank, answer in side.ask(others, question, ANSWER_SECONDS).items():
                if answer.state != ANSWERED and rank in self.answers:
                    # What it told before tells whether it had come.
                    answer = Answer(answer.state, {**self.answers[rank].facts, **answer.facts})
                self.answers[rank] = answer
            chain = followed(
                self.answers,
                origin.rank,
                lambda peer, rank: side.ask([peer], {**question, "from": rank}, ANSWER_SECONDS)[
                    peer
                ],
            )
            known = {*self.answers, *(peer for _, peer in chain)}
            mine = {
                **facts(calls, entry[NUMBER], entry),
                "counts": {rank: calls.traffic.between(rank) for rank in known},
                "between": {rank: _between(entry, rank) for rank in self.answers},
            }
            verdict = judge(mine, self.answers, chain)
            self.awaited = verdict.missing
            return verdict

    def _give_up(self, calls: "CallEngine", entry: CallRecord, error: CommunicationError) -> None:
        """End a call that cannot be completed, here and on the other ranks."""
        self._given_up = entry
        calls.reports.attribute(error, entry, perf_counter() - entry[BEGIN])
        self.tell(calls, entry, error)
        self.end(calls, entry, error)

    def _have_dumped(self, calls: "CallEngine", error: CommunicationError) -> None:
        """Have the ranks that answer write their last calls down: this one may end the job."""
        side = calls.backend.side
        there = [rank for rank, answer in self.answers.items() if answer.state == ANSWERED]
        if side is not None and there:
            side.ask(there, {"comm": calls.origin.uid, "dump": str(error)}, ANSWER_SECONDS)

    def tell(self, calls: "CallEngine", entry: CallRecord, error: CommunicationError) -> None:
        """Tell the other ranks of a mismatch or a loss, so that they need not find out."""
        origin = calls.origin
        if not isinstance(error, RankMismatch | PeerLost):
            return
        if entry[NUMBER]:
            concerned: Sequence[int] = range(origin.size)
        else:
            concerned = error.ranks if isinstance(error, RankMismatch) else ()
        self._accuse(calls, entry, error, [rank for rank in concerned if rank != origin.rank])

    def _accuse(
        self,
        calls: "CallEngine",
        entry: CallRecord,
        error: CommunicationError,
        others: Sequence[int],
    ) -> None:
        """Have other ranks fail with this error."""
        side = calls.backend.side
        if side is None or not others:
            return
        accusation = {
            "kind": type(error).__name__,
            "collective": entry[NUMBER],
            "text": str(error),
            "ranks": list(error.ranks),
        }
        side.ask(others, {"comm": calls.origin.uid, "accuse": accusation}, ANSWER_SECONDS)

    def end(self, calls: "CallEngine", entry: CallRecord, error: CommunicationError) -> None:
        """End a call with an error: by itself where it can be left, else with the job."""
        if entry[MODE] is not BLOCKING:
            calls.fail(error)
            return
        survival = calls.backend.survival
        if survival is not None and calls.gate.error is None:
            calls.fail(error)  # first, so that the call ends with this error
            survival.release()
            until = perf_counter() + RELEASE_SECONDS
            while calls.waiting() is entry and perf_counter() < until:
                sleep(RELEASE_PAUSE)
            if calls.waiting() is not entry:
                return
        self._end_job(calls, entry, error, CANNOT_LEAVE)

    def _leave(self, calls: "CallEngine", entry: CallRecord, error: CommunicationError) -> None:
        """End a blocked call that comes after the one that failed: the others will not come to it."""
        if calls.backend.survival is not None:
            calls.backend.survival.release()
        until = perf_counter() + LEAVE_SECONDS
        while calls.waiting() is entry and perf_counter() < until:
            sleep(RELEASE_PAUSE)
        if calls.waiting() is entry:
            self._end_job(calls, entry, error, CANNOT_LEAVE)

    def settled(
        self, calls: "CallEngine", entry: CallRecord, error: CommunicationError
    ) -> CommunicationError | None:
        """Do what the setting says about a deadline that has passed; None if the call waits on."""
        if calls.on_timeout == "raise" or not isinstance(error, CollectiveTimeout):
            return error
        if calls.on_timeout == "abort":
            self._end_job(calls, entry, error, "HPCCOMM_ON_TIMEOUT or on_timeout is 'abort'")
        entry[TIMEOUT] = inf
        if entry is self._reported:
            return None
        self._reported = entry
        if not Voice.before(f"that call {entry[NUMBER]} of {calls.origin.uid} waits on"):
            write_stderr(
                f"hpccomm: {error}\nhpccomm: the call waits on: HPCCOMM_ON_TIMEOUT or on_timeout is 'report'"
            )
        dump.write(str(error))
        return None

    def _end_job(
        self, calls: "CallEngine", entry: CallRecord, error: CommunicationError, why: str
    ) -> None:
        site = described(entry[SITE], entry[BEGIN])
        if not Voice.before("why the job ends"):
            write_stderr(
                f"hpccomm: {error}\nhpccomm: {f'in {site}: ' if site else ''}{why}, so the job ends now"
            )
        dump.write(str(error))
        self._have_dumped(calls, error)
        calls.backend.end_job(f"{type(error).__name__} in {entry[LABEL].name}")

    def _accused(self, calls: "CallEngine", entry: CallRecord | None, accusation: Facts) -> None:
        kinds = {each.__name__: each for each in (CollectiveTimeout, PeerLost, RankMismatch)}
        error = kinds[accusation["kind"]](
            str(accusation["text"]),
            communicator=calls.origin.name,
            rank=calls.origin.rank,
            ranks=accusation["ranks"],
            advised=accusation["kind"] == PeerLost.__name__,
        )
        # A rank that shrinks has given up the call that this is about, and counts on.
        past = entry is not None and entry[LABEL].name == SHRINK
        if entry is None or past or entry[NUMBER] > accusation["collective"]:
            self.late = late = isinstance(error, CollectiveTimeout)
            if not late:  # else this rank is late, and its call says so
                calls.failure.unraised = error
            calls.failure.fail(error, tell=not late)
            if entry is not None and not past and not late and entry[MODE] is BLOCKING:
                self._leave(calls, entry, error)
            return
        self._given_up = entry
        calls.reports.attribute(error, entry, perf_counter() - entry[BEGIN])
        if "all" in accusation:  # who has found it does not reach them
            self.tell(calls, entry, error)
        self.end(calls, entry, error)


def answer(calls: "CallEngine", question: Facts) -> Facts:
    """Return what a communicator answers to a question. In a thread that serves the channel."""
    if "accuse" in question:
        calls.inquiry.accusation = question["accuse"]
        return {}
    if "dump" in question:
        dump.write(f"another rank: {question['dump']}", tell=False)  # who asks does
        return {}
    number, rank = int(question.get("collective", 0)), question.get("from")
    entry = find(calls.origin, number) if number else None
    told = dict(facts(calls, number, entry))
    if "across" in question:
        told |= across.more_facts(calls)
    counts = calls.traffic.between(rank) if isinstance(rank, int) else []
    return {**told, "counts": counts, "between": _between(entry, rank)}


def facts(calls: "CallEngine", number: int, entry: CallRecord | None) -> Facts:
    """Return what this rank does on a communicator.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    number : int
        The ordered call that is of interest; 0 for none.
    entry : list or None
        Its record, if it is at hand.
    """
    if entry is None and number:
        entry = find(calls.origin, number)
    now = calls.waiting()
    # Who is late has not given up: it is somewhere else.
    error = None if calls.inquiry.late else calls.gate.error
    waiting = [each[NUMBER] for each in calls.pending() if each[NUMBER]]
    lately = refused(calls.thread if calls.backend.shares_process else None)
    return {
        "rank": calls.origin.rank,
        "size": calls.origin.size,
        "communicator": calls.origin.name,
        "collective": calls.number,
        "done": min(waiting) - 1 if waiting else calls.number,
        "record": None if entry is None else _record(entry),
        "site": "" if entry is None else described(entry[SITE], entry[BEGIN]),
        "now": None if now is None else _now(calls, now),
        "doing": "" if calls.backend.shares_process else doing(),
        "failed": None if error is None else _why(error.__cause__ or error),
        "closed": calls.closed or ("" if error is None else _left(error.__cause__ or error)),
        "refused": None if lately is None else lately.facts(),
    }


def _left(error: BaseException) -> str:
    """Return why this rank makes no more calls of a communicator, where the others cannot find it out themselves.

    It has aborted it, or an exception of the program, a Ctrl-C or an error of a library has ended a call here.
    """
    if isinstance(error, CommunicatorAborted):
        return "was aborted"
    shared = isinstance(error, CollectiveTimeout | PeerLost | RankMismatch)
    return "" if shared else f"left a call by {in_words(error)}"


def _why(error: BaseException) -> str:
    """Return why a communicator has failed."""
    return str(error) if isinstance(error, HpccommError) else in_words(error)


def _record(entry: CallRecord) -> Facts:
    label = entry[LABEL]
    return {"operation": label.name, **label.values, "async_op": entry[MODE] is ASYNC}


def _now(calls: "CallEngine", entry: CallRecord) -> Facts:
    now = {
        "operation": entry[LABEL].name,
        "collective": entry[NUMBER],
        "since": round(perf_counter() - entry[BEGIN], 3),
        "site": described(entry[SITE], entry[BEGIN]),
    }
    label = entry[LABEL]
    task = next((each for each, its in calls.under_way.items() if its is entry), None)
    now["held"] = (task is None or task.awaited) and len(calls.pending()) == 1
    if label.ends and not entry[NUMBER]:
        now["waits"] = calls.traffic.waits(label)
    return now


def _between(entry: CallRecord | None, rank: object) -> list[Between]:
    """Return what this rank exchanges with another one in each call of lists of its own that belongs to a call."""
    if entry is None or not isinstance(rank, int):
        return []
    return between(entry[LABEL].individual, rank)


def _peers(entry: CallRecord, rank: int, size: int) -> Sequence[int]:
    """Return the ranks for which a call may wait."""
    peers = () if entry[NUMBER] else entry[LABEL].peers
    return [each for each in peers or range(size) if each != rank]


def _found(
    verdict: Verdict | None, calls: "CallEngine", entry: CallRecord, elapsed: float
) -> CommunicationError | None:
    """Return the error of a call that cannot be completed; None as long as it can."""
    if verdict is None or not (verdict.differing or verdict.gone):
        return None
    what = calls.reports.described(entry)
    error: CommunicationError
    if verdict.differing:
        error = RankMismatch(f"{what}: {verdict.text}", ranks=verdict.differing)
    else:
        recovery = f"; {calls.backend.recovery}" if calls.backend.recovery else ""
        text = f"{what}: {verdict.text}{recovery}"
        error = PeerLost(text, ranks=verdict.gone, advised=bool(recovery))
    calls.reports.attribute(error, entry, elapsed)
    return error


def flight_facts(calls: "CallEngine") -> Facts:
    """Return what dumps show of a communicator."""
    origin = calls.origin
    return {
        "uid": origin.uid,
        "name": origin.name,
        "rank": origin.rank,
        "ranks": list(calls.backend.members),
        "now": facts(calls, calls.number, None),
        "answers": {
            str(rank): {"state": each.state, **each.facts}
            for rank, each in dict(calls.inquiry.answers).items()
        },
    }
