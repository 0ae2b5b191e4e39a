"""The inquiry of one communicator about a late call: asks the other ranks, draws conclusions.

Nothing of this runs while calls are quick. From `ASK_SECONDS` on, the watchdog's thread asks the
peers, by the side channel, about their call of the same number, and again after twice the time. The
conclusions:

- A peer's call of that number asks for something else: `RankMismatch`, on both sides.
- The process of a missing peer is gone: `PeerLost`.
- Otherwise the call may still be completed. At the deadline the error names the missing ranks, and
  where they are.

A polled call ends by itself once the communicator has failed. A call that blocks in a library
can be left only if the backend releases it; otherwise the job ends, with the same words. Each `engine` has an
inquiry, and `hpccomm.communicator.groups` uses its `SHRINK`; `verdict` and `deadlock` judge the answers.
"""

import logging
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from math import inf
from time import perf_counter, sleep
from typing import Any

from hpccomm.contracts.backend import ANSWERED, Answer, Facts
from hpccomm.errors import CollectiveTimeout, CommunicationError, PeerLost, RankMismatch, peers_lost
from hpccomm.runtime import deadlock, dump
from hpccomm.runtime.recorder import (
    BEGIN,
    BLOCKING,
    LABEL,
    MODE,
    NUMBER,
    SEQUENCE,
    TIMEOUT,
    CallRecord,
    copied,
    find,
    in_words,
    place,
    waited,
)
from hpccomm.runtime.service import Voice, service, write_stderr
from hpccomm.runtime.state import CallState, between_ranks
from hpccomm.runtime.verdict import Verdict, judge
from hpccomm.runtime.waiting import Expired
from hpccomm.units import MOST_NAMED, ranks_named

logger = logging.getLogger("hpccomm")

ASK_SECONDS, ANSWER_SECONDS = 0.3, 0.5
"""Seconds that a call waits before the peers are asked, and seconds that their answers may take."""

COMPARING_SECONDS = 5.0
"""Seconds for which a difference between calls that the ranks compare anyway, before they begin, is left to that
comparison: a rank may be late for it."""

UNFIT_SECONDS = 2.0
"""Seconds that answers may take once messages do not fit: the communicator fails anyway, and the answers say why."""

LONGEST_SECONDS = 10.0
"""The longest time between two questions."""

UNKNOWN = "A rank did not take part or is late"
"""The text if no rank can be asked."""

SHRINK = "shrink"
"""The call that waits for the remaining ranks: lost ranks do not end it."""

RELEASE_SECONDS, RELEASE_PAUSE = 2.0, 0.01
"""Seconds that a call may take to return after the backend has released it, and seconds between two checks of that."""

LEAVE_SECONDS = 0.5
"""Seconds that a blocked call may take after an earlier call's failure: its messages may be under way."""

CANNOT_LEAVE = "the call is blocked in the library and cannot be left"


class Inquiry:
    """The knowledge of one communicator about its other ranks, and its answers to them.

    Parameters
    ----------
    calls : CallState
        The communicator's calls; it owns this object.

    Attributes
    ----------
    answers : dict of int to Answer
        The last answer of each other rank, about the call that was asked about last.
    accusation : mapping or None
        Another rank's finding, on which this rank has not acted yet.
    awaited : tuple of int
        The ranks that the call waits for, as far as known.
    """

    def __init__(self, calls: CallState) -> None:
        self._calls: CallState = weakref.proxy(calls)  # weak: the engine is freed at once
        self.answers: dict[int, Answer] = {}
        self.accusation: Facts | None = None
        self.awaited: tuple[int, ...] = ()
        self._entry: CallRecord | None = None
        self._known: deadlock.Known = {}
        self._failing = ""
        self._next = 0.0
        self._given_up: CallRecord | None = None
        self._reported: CallRecord | None = None
        self._slow: CallRecord | None = None
        self._said = {""}
        self._lock = threading.Lock()

    # For the watchdog.

    def look(self, now: float) -> None:
        """Check for lost ranks, and check the call that has waited longest."""
        self._look_for_lost()
        calls = self._calls
        accusation, entry = self.accusation, calls.waiting()
        if accusation is not None:
            self._accused(entry, accusation)
            self.accusation = None  # from now on this rank's answers tell of the failure
            return
        if entry is None or entry is self._given_up:
            return
        seconds, slow = now - entry[BEGIN], calls.reports.slow_call
        if seconds > entry[TIMEOUT]:
            if entry[MODE] is BLOCKING:
                error = self.at_deadline(entry, seconds)
                if error is not None:
                    self._give_up(entry, error)
        elif seconds > ASK_SECONDS and entry[LABEL].name != SHRINK and self._due(entry, now):
            verdict = self._asked(entry, overdue=seconds > COMPARING_SECONDS)
            error = self._found(verdict, entry, seconds)
            said = "" if error is not None or verdict is None else verdict.unreceived
            if said not in self._said and len(self._said) <= MOST_NAMED:  # some wait so by design
                self._said.add(said)
                logger.warning("%s waits: %s", calls.reports.described(entry), said)
            if error is not None and calls.waiting() is entry:
                self._give_up(entry, error, tell=not self._failing)
            elif verdict is not None and entry is not self._slow and seconds > slow:
                self._slow = entry
                # A program that hangs would be silent until its deadline.
                if not Voice.before(f"that call {entry[NUMBER]} of {calls.origin.uid} is slow"):
                    text = f"waits for longer than {slow:g} s (its deadline: {entry[TIMEOUT]:g} s)"
                    logger.warning("%s %s: %s", calls.reports.described(entry), text, verdict.text)

    def _look_for_lost(self) -> None:
        calls, survival = self._calls, self._calls.backend.survival
        ended = calls.closed or calls.gate.error or calls.backend.thread_restriction
        if survival is not None and not ended and (lost := survival.lost()):
            error = peers_lost(lost, calls.backend.recovery)
            error.communicator, error.rank = calls.name, calls.origin.rank
            calls.failure.fail(error, tell=True)

    def _due(self, entry: CallRecord, now: float) -> bool:
        if entry is not self._entry:
            self._next = 0.0
        if now < self._next:
            return False
        self._next = now + min(max(now - entry[BEGIN], ASK_SECONDS), LONGEST_SECONDS)
        return True

    # Deadlines.

    def expired(self, entry: CallRecord) -> Expired:
        """Return a function of the elapsed seconds that calls `at_deadline` for a call."""
        return lambda elapsed: self.at_deadline(entry, elapsed)

    def at_deadline(
        self, entry: CallRecord, elapsed: float, causes: str = ""
    ) -> CommunicationError | None:
        """Apply ``on_timeout`` after a deadline has passed, and return the error to raise.

        None if the call waits on, without a deadline. `causes` names further likely causes, for the error.
        """
        calls, error = self._calls, self.overdue(entry, elapsed, causes)
        if calls.on_timeout == "raise" or not isinstance(error, CollectiveTimeout):
            return error
        if calls.on_timeout == "abort":
            self._end_job(entry, error, "HPCCOMM_ON_TIMEOUT or on_timeout is 'abort'")
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

    def overdue(self, entry: CallRecord, elapsed: float, causes: str = "") -> CommunicationError:
        """Return the error of a call whose deadline has passed. Blocks while the peers are asked.

        It has the peers write their dumps, and tells missing ranks of the error, so that they send nothing more.
        """
        calls, verdict = self._calls, self._asked(entry)
        error = self._found(verdict, entry, elapsed)
        if error is None:
            why = UNKNOWN if verdict is None and not causes else causes
            ranks: Sequence[int] = ()
            if verdict is not None:
                why, ranks = f"{verdict.text}. {causes}".rstrip(". "), verdict.absent
            error = CollectiveTimeout(
                f"{calls.reports.described(entry)} was not done after {elapsed:.3g} s; "
                f"its deadline is {entry[TIMEOUT]:g} s. {why}",
                ranks=ranks,
            )
            error.deadline = entry[TIMEOUT]
            calls.reports.attribute(error, entry, elapsed)
        self._have_dumped(error)
        waits_on = calls.on_timeout == "report" and isinstance(error, CollectiveTimeout)
        if verdict is not None and entry[NUMBER] and not (waits_on or self._failing):
            # A late rank must not send to ranks that have left the call.
            self._accuse(entry, error, (*verdict.missing, *verdict.held_up))
        return error

    # What the others say.

    def _asked(self, entry: CallRecord, *, overdue: bool = True) -> Verdict | None:
        """Ask the peers about a call, and return the verdict; None if no peer can be asked."""
        calls, side, origin = self._calls, self._calls.backend.side, self._calls.origin
        peers = () if entry[NUMBER] else entry[LABEL].peers
        others = [each for each in peers or range(origin.size) if each != origin.rank]
        self._known = known = deadlock.explored(calls, ANSWER_SECONDS)
        if side is None or not others:
            return None
        with service.holding(self._lock):
            if entry is not self._entry:
                self._entry, self.answers = entry, {}
            question = {"comm": origin.uid, "collective": entry[NUMBER], "from": origin.rank}
            for rank, answer in side.ask(others, question, ANSWER_SECONDS).items():
                if answer.state != ANSWERED and rank in self.answers:
                    # The earlier answer shows whether the rank had begun the call.
                    answer = Answer(answer.state, {**self.answers[rank].facts, **answer.facts})
                self.answers[rank] = answer
            mine = {
                **calls.facts(entry[NUMBER], entry),
                "counts": {rank: calls.traffic.between(rank) for rank in self.answers},
                "between": {rank: between_ranks(entry, rank) for rank in self.answers},
            }
            behind = partial(deadlock.behind, origin, calls.backend.members, known)
            verdict = judge(mine, self.answers, behind, overdue=overdue)
            self.awaited = (*verdict.missing, *verdict.held_up)
            return verdict

    def _found(
        self, verdict: Verdict | None, entry: CallRecord, elapsed: float
    ) -> CommunicationError | None:
        """Return the error of a call that cannot be completed; None as long as it can."""
        if verdict is None or not (verdict.differing or verdict.gone):
            return self._stuck(verdict, entry)
        reports, recovery = self._calls.reports, self._calls.backend.recovery
        text = f"{reports.described(entry)}: {verdict.text}"
        error: CommunicationError
        if verdict.differing:
            error = RankMismatch(text, ranks=verdict.differing)
        else:
            text += f"; {recovery}" if recovery else ""
            error = PeerLost(text, ranks=verdict.gone, advised=bool(recovery))
        reports.attribute(error, entry, elapsed)
        return error

    def unfit(self, entry: CallRecord, why: str, ranks: Sequence[int]) -> RankMismatch:
        """Return the mismatch of a call whose messages do not fit. If it is a collective, tell the other ranks.

        The mismatch names the calls of the ranks that answer. Blocks for `UNFIT_SECONDS` at most.
        """
        text = f"{why}. The calls of the ranks do not fit each other"
        if entry[NUMBER]:
            _, verdict = self._met(entry, UNFIT_SECONDS)
            if verdict.differing:
                text, ranks = verdict.text, verdict.differing
        return self._mismatch(entry, text, ranks)

    def ask_sender(self, error: Any, entry: CallRecord) -> None:
        """Add to the error of a message that does not fit the place where the message was sent.

        That is possible if the call awaits one message of the sender, and the sender answers.
        """
        calls, label, side = self._calls, entry[LABEL], self._calls.backend.side
        src = next(iter(error.ranks), None)
        ends = [end[2] for end in label.ends if end[:2] in (("src", src), ("src", None))]
        if side is None or src is None or len(ends) != 1:
            return
        number = calls.traffic.cell(src, ends[0])[1]
        if not label.ahead:  # receives are counted when they begin
            later = (each for each in copied(calls.kept) if each[SEQUENCE] > entry[SEQUENCE])
            number -= sum(("src", src, ends[0]) in each[LABEL].ends for each in later)
        question = {"comm": calls.origin.uid, "from": calls.origin.rank, "sent": (ends[0], number)}
        if site := side.ask([src], question, ANSWER_SECONDS)[src].facts.get("sent"):
            error.args = (f"{error}; rank {src} sent it at {site}",)

    def after_refusal(self, entry: CallRecord) -> None:
        """Raise if other ranks have made the call that this rank refused just before the call of `entry`.

        A rank that refused the call too, waits in it, or has not begun it, makes no mismatch: `entry` may be that
        call, made again. That is certain where the refusal's error is being handled. Late ranks get some time.
        Blocks for `ASK_SECONDS`, and until all ranks answer.

        Raises
        ------
        RankMismatch
            If some ranks have made the refused call, or wait in another call than that of `entry`.
        """
        number, until, handled = entry[NUMBER], perf_counter() + ASK_SECONDS, sys.exception()
        mishaps = [each for at, each, _ in tuple(self._calls.refusals) if at == number]
        late = bool(mishaps)
        while late:
            answers, verdict = self._met(entry, ANSWER_SECONDS)
            if verdict.differing:
                raise self._mismatch(entry, verdict.text, verdict.differing)
            if handled is not None and in_words(handled) == mishaps[-1].error:
                return
            others = {rank: each.facts for rank, each in answers.items() if "done" in each.facts}
            others = {r: each for r, each in others.items() if each["refusals"] != len(mishaps)}
            past = [rank for rank, facts in others.items() if facts["done"] >= number]
            if past:
                come = max(others[rank]["collective"] for rank in past)
                facts = mishaps[-1].facts()
                text = (
                    f"this rank has refused a call at {facts['site']} ({facts['error']}), which {ranks_named(past)} "
                    f"made as number {number}, with numbers up to {come} by now; this call would take its data: "
                    "refuse a call on all ranks, or on none"
                )
                raise self._mismatch(entry, text, past)
            late = any(facts["collective"] < number for facts in others.values())
            late &= perf_counter() < until
            sleep(late * RELEASE_PAUSE)

    def _met(self, entry: CallRecord, seconds: float) -> tuple[dict[int, Answer], Verdict]:
        """Return the other ranks' answers about a collective in which this rank does not wait, and the verdict."""
        side, origin, number = self._calls.backend.side, self._calls.origin, entry[NUMBER]
        others = [rank for rank in range(origin.size) if rank != origin.rank]
        question = {"comm": origin.uid, "collective": number, "from": origin.rank}
        answers = {} if side is None else side.ask(others, question, seconds)
        mine = {**self._calls.facts(number, entry), "now": {"collective": number}}
        return answers, judge(mine, answers)

    def _mismatch(self, entry: CallRecord, text: str, ranks: Sequence[int]) -> RankMismatch:
        """Return the mismatch of a call. If the call is a collective, tell the other ranks."""
        reports = self._calls.reports
        mismatch = RankMismatch(f"{reports.described(entry)}: {text}", ranks=ranks)
        reports.attribute(mismatch, entry, waited(entry))
        if entry[NUMBER]:
            self._tell_all(entry, mismatch)
        return mismatch

    def _stuck(self, verdict: Verdict | None, entry: CallRecord) -> RankMismatch | None:
        """Return the error of a call in which ranks wait for each other, after telling all ranks that it concerns.

        None if no ranks wait for each other.
        """
        what = self._calls.reports.described(entry), "" if verdict is None else verdict.remarks
        found = deadlock.found(self._calls, entry, self._known, what)
        if found is None or not any(each is entry for each in self._calls.blocked()[1]):
            return None
        error, accusations = found
        self._calls.reports.attribute(error, entry, waited(entry))
        # Set before the others are told: they may ask while this rank is still in the call.
        self._failing = str(error)
        for members, accusation in accusations:
            deadlock.asked(self._calls, members, ANSWER_SECONDS, **accusation)
        return error

    # Messages to the other ranks.

    def _tell(self, ranks: Sequence[int], **what: object) -> None:
        """Send ranks a question with the entries of `what`, if there is a side channel; the answers are dropped."""
        side = self._calls.backend.side
        if side is not None and ranks:
            side.ask(ranks, {"comm": self._calls.origin.uid, **what}, ANSWER_SECONDS)

    def _have_dumped(self, error: CommunicationError) -> None:
        """Have the ranks that answer write their dumps, since this rank may end the job."""
        there = [rank for rank, answer in self.answers.items() if answer.state == ANSWERED]
        self._tell(there, dump=str(error))

    def _tell_all(self, entry: CallRecord, error: CommunicationError) -> None:
        """Tell the other ranks of a mismatch or a lost rank, so that they need not find it themselves."""
        origin = self._calls.origin
        if not isinstance(error, RankMismatch | PeerLost):
            return
        if entry[NUMBER]:
            concerned: Sequence[int] = range(origin.size)
        else:
            concerned = error.ranks if isinstance(error, RankMismatch) else ()
        self._accuse(entry, error, [rank for rank in concerned if rank != origin.rank])

    def _accuse(self, entry: CallRecord, error: CommunicationError, others: Sequence[int]) -> None:
        """Have other ranks fail with this error."""
        accusation = {
            "kind": type(error).__name__,
            "collective": entry[NUMBER],
            "text": str(error),
            "ranks": list(error.ranks),
        }
        self._tell(others, accuse=accusation)

    def _accused(self, entry: CallRecord | None, accusation: Facts) -> None:
        """Fail with the error that another rank has found."""
        failure = self._calls.failure
        kinds = {each.__name__: each for each in (CollectiveTimeout, PeerLost, RankMismatch)}
        error = kinds[accusation["kind"]](
            str(accusation["text"]),
            communicator=self._calls.origin.name,
            rank=self._calls.origin.rank,
            ranks=accusation["ranks"],
            advised=accusation["kind"] == PeerLost.__name__,
        )
        # A rank that shrinks has left the failed call, and counts further calls.
        past = entry is not None and entry[LABEL].name == SHRINK
        if entry is None or past or entry[NUMBER] > accusation["collective"]:
            failure.late = late = isinstance(error, CollectiveTimeout)
            # A rank that is late says so in its call; what failed before has been raised, or will be.
            if not late and failure.gate.error is None:
                failure.unraised = error
            failure.fail(error, tell=not late)
            if entry is not None and not past and not late and entry[MODE] is BLOCKING:
                # The others will not come to this call, but its messages may be under way.
                self._release(entry, error, LEAVE_SECONDS)
            return
        self._give_up(
            entry, error, tell="all" in accusation
        )  # "all": the rank that found it does not reach this communicator's ranks

    # The end of a call.

    def _give_up(self, entry: CallRecord, error: CommunicationError, *, tell: bool = True) -> None:
        """End a call that cannot be completed, here and on the other ranks. If it cannot be left, end the job."""
        self._given_up = entry
        calls = self._calls
        calls.reports.attribute(error, entry, waited(entry))
        if tell:
            self._tell_all(entry, error)
        if entry[MODE] is not BLOCKING:
            calls.failure.fail(error)
        elif calls.backend.survival is not None and calls.gate.error is None:
            calls.failure.fail(error)  # before the release, so that the call ends with this error
            self._release(entry, error, RELEASE_SECONDS)
        else:
            self._end_job(entry, error, CANNOT_LEAVE)

    def _release(self, entry: CallRecord, error: CommunicationError, seconds: float) -> None:
        """Have the backend release a blocked call, if it can. End the job if the call has not returned in `seconds`."""
        calls = self._calls
        if calls.backend.survival is not None:
            calls.backend.survival.release()
        until = perf_counter() + seconds
        while calls.waiting() is entry and perf_counter() < until:
            service.rest(RELEASE_PAUSE)
        if calls.waiting() is entry:
            self._end_job(entry, error, CANNOT_LEAVE)

    def _end_job(self, entry: CallRecord, error: CommunicationError, why: str) -> None:
        site = place(entry)
        if not Voice.before("why the job ends"):
            write_stderr(
                f"hpccomm: {error}\nhpccomm: {f'in {site}: ' if site else ''}{why}, so the job ends now"
            )
        dump.write(str(error))
        self._have_dumped(error)
        self._calls.backend.end_job(f"{type(error).__name__} in {entry[LABEL].name}")

    # This rank's answers.

    def answer(self, question: Facts) -> Facts:
        """Return this rank's answer to another rank's question. In the channel's thread."""
        if "accuse" in question:
            self.accusation = question["accuse"]
            return {}
        if "dump" in question:
            dump.write(f"another rank: {question['dump']}", tell=False)  # the asking rank tells
            return {}
        calls, number, rank = self._calls, int(question.get("collective", 0)), question.get("from")
        entry = find(calls.kept, number) if number else None
        if "across" in question:
            told = calls.across()
            failed = told["failed"] or self._failing or bool(self.accusation)
            return {**told, "failed": failed, "awaited": list(self.awaited)}
        if "sent" in question:
            return {"sent": _sent_at(calls, rank, *question["sent"])}
        counts = calls.traffic.between(rank) if isinstance(rank, int) else []
        told = calls.facts(number, entry)
        return {**told, "counts": counts, "between": between_ranks(entry, rank)}

    def flight_facts(self) -> Facts:
        """Return the communicator's part of a dump."""
        origin = self._calls.origin
        return {
            "uid": origin.uid,
            "name": origin.name,
            "ranks": list(self._calls.backend.members),
            "now": self._calls.facts(self._calls.number),
            "answers": {
                str(rank): {"state": each.state, **each.facts}
                for rank, each in dict(self.answers).items()
            },
        }


def _sent_at(calls: CallState, rank: Any, channel: int, number: int) -> str:
    """Return where this rank sent its `number`-th message to a rank in a channel; empty if the record is not kept."""
    sends = [each for each in copied(calls.kept) if ("dst", rank, channel) in each[LABEL].ends]
    at = number - 1 - calls.traffic.cell(rank, channel)[0]  # from the last one
    return place(sends[at]) if -len(sends) <= at < 0 else ""
