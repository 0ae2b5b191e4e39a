"""The state of one communicator's calls, its failure, and its answers to other ranks about them.

`Failure` holds the communicator's error, tells other threads and ranks of it, and makes the errors that calls raise.
`CallState` holds the calls. `engine`, `inquiry`, `deadlock`, `callpath` and `work` use them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Facts
from hpccomm.contracts.pairing import Between, between
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.errors import (
    BufferMismatch,
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    PeerLost,
    RankMismatch,
    WaitTimeout,
)
from hpccomm.runtime import dump
from hpccomm.runtime import service as lifetime
from hpccomm.runtime.progress import ANY_OF, CALL, NOBODY, Task, TaskQueue
from hpccomm.runtime.recorder import (
    ASYNC,
    BEGIN,
    CAPACITY,
    ENDED,
    ERROR,
    LABEL,
    MODE,
    NUMBER,
    SEQUENCE,
    TIMEOUT,
    CallRecord,
    Mishap,
    Origin,
    Site,
    copied,
    doing,
    find,
    in_words,
    place,
    ring,
    waited,
)
from hpccomm.runtime.reports import AbortHook, Hooks, Reports
from hpccomm.runtime.service import service
from hpccomm.runtime.traffic import BLOCKED_SECONDS, Traffic
from hpccomm.runtime.waiting import Gate
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")

UNSEEN = 256
"""Failed asynchronous calls that are kept until the communicator is finalized."""

Translate = Callable[[Exception], HpccommError | None]
Release = Callable[[], None]


class Failure:
    """The failure of one communicator, and its consequences.

    Parameters
    ----------
    reports : Reports
        Describes the communicator's calls.
    backend : Backend
        Reaches the communicator's ranks.

    Attributes
    ----------
    gate : Gate
        Has the error once the communicator has failed. Always the same object.
    translators : list of callable
        Each returns the error of one library as an error of hpccomm, or None for an error of another library.
    releases : list of callable
        Called once, when the communicator fails: each releases what would wait for a peer.
    hooks : Hooks
        The user's functions that are called when the communicator fails.
    unraised : BaseException or None
        A failure that the watchdog found, as long as no call has raised it.
    unseen : deque of tuple of Task and list
        The last `UNSEEN` asynchronous calls that failed, each with its record, until the error is delivered.
    late : bool
        Whether another rank has stopped waiting for this one.
    told : BaseException or None
        The error that another rank, the watchdog or an asynchronous call found while this rank was in no other call.
        The next call or wait raises it.
    unfit : callable
        ``unfit(entry, why, ranks)`` returns the mismatch of a call whose messages do not fit, and tells other ranks.
    ask_sender : callable
        ``ask_sender(error, entry)`` adds to the error of a message that does not fit where the message was sent.
    """

    def __init__(self, reports: Reports, backend: Backend) -> None:
        self.gate = Gate(shares_process=backend.shares_process)
        self.translators: list[Translate] = [backend.translate]
        self.releases: list[Release] = [backend.abandon]
        self.hooks: Hooks[AbortHook] = Hooks()
        self.unraised: BaseException | None = None
        self.unseen: deque[tuple[Task, CallRecord]] = deque(maxlen=UNSEEN)
        self.late = False
        self.told: BaseException | None = None
        self.unfit: Callable[[CallRecord, str, Sequence[int]], RankMismatch]
        self.ask_sender: Callable[[BufferMismatch, CallRecord], None]
        self._reports = reports
        self._backend = backend
        self._disowned = False
        self._lock = threading.Lock()
        # The last translated error, and its translation.
        self._known: tuple[Exception, HpccommError | None] | None = None

    @property
    def recoverable(self) -> bool:
        """Whether the ranks of the failed communicator can still agree on which of them remain."""
        return not self._disowned

    def refuse(self) -> NoReturn:
        """Raise what a call on the failed communicator raises."""
        failure = self.gate.error
        assert failure is not None
        self.unraised = None
        told, self.told = self.told, None
        if told is not None:
            raise told
        raise self._aborted(failure.__cause__ or failure) from failure.__cause__

    def note(self, error: BaseException, entry: CallRecord, keep: object) -> BaseException:
        """Mark the communicator as failed by a call under way, and return the error.

        The call's arrays, `keep`, are kept for the life of the process.
        """
        lifetime.keep(keep)
        error = self.mismatched(error, entry)
        # A program may continue after a lost rank, whether it waits for this call or makes another.
        lost = isinstance(self._translated(error) or error, PeerLost)
        self.fail(error, tell=lost and entry[MODE] is ASYNC)
        return error

    def mismatched(self, error: BaseException, entry: CallRecord) -> BaseException:
        """Return an error of a call. If messages do not fit, it becomes a mismatch, and the communicator fails."""
        unfit = self._translated(error) or error
        if self.gate.error is not None or not isinstance(unfit, BufferMismatch):
            return error
        error = self.unfit(entry, str(unfit), unfit.ranks)
        self.fail(error)
        return error

    def fail(self, error: BaseException, *, tell: bool = False) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local.

        With `tell`, the next call raises the error itself, unless a call under way raises it first.
        """
        if self.gate.error is not None:
            return
        error = self._translated(error) or error
        with self._lock:  # the watchdog may call this at the same time
            if self.gate.error is not None:
                return
            aborted = self._aborted(error)
            aborted.__cause__ = error
            if tell:  # before the gate is shut: a call that the gate ends clears `told`
                self.told = error
            self.gate.shut(aborted)
        if isinstance(error, PeerLost) and self._backend.survival is not None:
            self._backend.survival.release()  # no other rank may wait for this one
        service.aside(partial(self._end, error))

    def _end(self, error: BaseException) -> None:
        """Call the `releases` and the hooks, and write the dump."""
        for release in self.releases:
            try:
                release()
            except Exception:  # the other releases must still run
                logger.exception(
                    "communicator %r could not be ended cleanly", self._reports.origin.name
                )
        for hook in self.hooks:
            try:
                hook(error)
            except Exception:  # the other hooks must still be called
                logger.exception(
                    "an abort hook of communicator %r failed", self._reports.origin.name
                )
        dump.write(in_words(error))

    def tell_unseen(self) -> None:
        """Log the errors of asynchronous calls that no `Work` has raised or returned. Local; idempotent."""
        while self.unseen:
            task, entry = self.unseen.popleft()
            if not task.seen:
                where = place(entry)
                logger.error(
                    "%s%s failed, and neither wait() nor exception() of its Work was called: %s",
                    self._reports.described(entry),
                    f", made at {where}," if where else "",
                    entry[ERROR],
                )

    def disown(self) -> CommunicatorAborted:
        """Refuse all use in a fork of the process, where MPI is lost, and return the error.

        No hook is called, since the communicator has not failed in the parent.
        """
        cause = RuntimeError("it belongs to the process that this one was forked from")
        self._disowned = True
        aborted = self._aborted(cause)
        aborted.__cause__ = cause
        self.gate.error = aborted  # in place of an earlier failure
        return aborted

    def raised(self, error: BaseException, entry: CallRecord, elapsed: float) -> BaseException:
        """Return an error of a call as its caller gets it: one of `hpccomm.errors`, with the call's facts.

        An error that belongs to neither hpccomm nor a known library is returned unchanged.
        """
        raised: BaseException | None
        if error is self.gate.error:  # another thread, or another call, ended this one
            raised = self._ended_by(error.__cause__ or error, entry)
        elif (found := self._found(entry)) is not None:
            raised = found
        elif isinstance(error, CommunicationError) and error.operation is None:
            if not isinstance(error, PeerLost):  # `_tell_of_loss` adds the call to that
                error.args = (f"{self._reports.described(entry)}: {error}",)
            raised = error
        else:
            raised = self._translated(error)
        if raised is None:
            if isinstance(error, BufferMismatch):
                self.ask_sender(error, entry)
            return error
        if isinstance(raised, PeerLost):
            self._tell_of_loss(raised, entry)
        if isinstance(raised, CommunicationError):
            if entry[MODE] is not ASYNC:  # the error of an asynchronous call may never be raised
                self.told = None
            self._reports.attribute(raised, entry, elapsed)
        return raised

    def _translated(self, error: BaseException) -> HpccommError | None:
        """Return a library's error as one of hpccomm's; None for other errors.

        The last translation is kept, so that one error is translated once.
        """
        if not isinstance(error, Exception) or isinstance(error, HpccommError):
            return None
        known = self._known
        if known is None or known[0] is not error:
            translated = (translate(error) for translate in self.translators)
            known = error, next((each for each in translated if each is not None), None)
            self._known = known
        return known[1]

    def _found(self, entry: CallRecord) -> BaseException | None:
        """Return the error that another thread found for this call, and for which the library ended the call."""
        failure = self.gate.error
        cause = None if failure is None else failure.__cause__
        return cause if self._concerns(cause, entry) else None

    def _ended_by(self, cause: BaseException, entry: CallRecord) -> BaseException:
        """Return the error of a call that ended because `cause` made the communicator fail."""
        if self._concerns(cause, entry) or (cause is self.told and isinstance(cause, RankMismatch)):
            return cause
        if isinstance(cause, PeerLost):  # this call waited for the lost rank as well
            whom = ", ".join(map(str, cause.ranks)) or "that is unknown"
            return PeerLost(
                f"ended, since the communicator has lost rank {whom}", ranks=cause.ranks
            )
        return self._aborted(cause)

    def _concerns(self, error: BaseException | None, entry: CallRecord) -> bool:
        """Whether an error that another thread found belongs to this call."""
        found = isinstance(error, CommunicationError) and not isinstance(error, WaitTimeout)
        return found and error.sequence == entry[SEQUENCE]  # type: ignore[union-attr]

    def _tell_of_loss(self, error: PeerLost, entry: CallRecord) -> None:
        """Add to the error the lost ranks, the call that found them and how to continue; fail the communicator."""
        survival = self._backend.survival
        if not error.ranks and survival is not None:
            error.ranks = survival.lost()
        of_call = "" if error.operation else f"{self._reports.described(entry)}: "
        recovery = "" if error.advised else self._backend.recovery
        error.args = (f"{of_call}{error}{recovery and f'; {recovery}'}",)
        error.advised = True
        self.fail(error)

    def _aborted(self, error: BaseException) -> CommunicatorAborted:
        recovery = self._backend.recovery if isinstance(error, PeerLost) else "make a new one"
        if self._disowned:  # a forked child cannot make a new communicator
            recovery = "communicate there, and pass this process what it needs"
        if getattr(error, "advised", False):
            recovery = ""
        return CommunicatorAborted(
            f"communicator {self._reports.origin.name!r} has failed and takes no more calls "
            f"({in_words(error)}){recovery and f'; {recovery}'}",
            communicator=self._reports.origin.name,
            rank=self._reports.origin.rank,
            ranks=getattr(error, "ranks", ()),
            advised=True,
        )


def harmless_error(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: the only fault is that a message of another size was received."""
    return isinstance(error, BufferMismatch) and not ordered


MAKING = -(1 << 20)
"""Calls are numbered from here while the communicator is made, and from 0 for the user's calls."""

Agree = Callable[[Any, CallRecord, tuple[Any, ...]], object]
Compare = Callable[[CallFingerprint, CallRecord], object]

REFUSALS = AGREEMENTS = 64
"""The number of refused calls that are remembered, and of compared calls whose numbers are remembered."""


class CallState:
    """The calls of one communicator: those under way, and what all of them have in common.

    Parameters
    ----------
    name : str
        Name of the communicator.
    backend : Backend
        Reaches the communicator's ranks.
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
        26 bits that sum up all numbered calls, as `progress.digested` does: equal on all ranks as well.
    origin : Origin
        The communicator's identity in records.
    kept : deque of list
        The records of the last calls.
    site : tuple or None
        Place in the program where the call is made.
    current : list or None
        The record of the synchronous call under way.
    under_way : dict of Task to list
        Asynchronous calls that are not over, and their records.
    queue : deque of Task
        Asynchronous collectives, which run one after the other.
    turn : dict
        Has one item, with the key 0, while no call is under way. A thread deletes it to make a call, and sets it
        afterwards: a lock, at a third of the price.
    closed : str
        Why the communicator takes no more calls; empty while it takes them.
    reports : Reports
        Hooks, statistics, and descriptions of calls.
    failure : Failure
        The communicator's failure, if any.
    gate : Gate
        The gate of `failure`.
    traffic : Traffic
        The messages that have begun.
    holds : set of int
        The mutexes that this rank holds, as the ends of calls name them.
    agreement : int
        Grows when the ranks forget what they have agreed on. 0 where they compare nothing.
    agree_on : callable
        ``agree_on(prepared, entry, arguments)`` raises on all ranks unless they make the same call, and have made the
        same calls so far. It runs in the first call of each kind and size, and in one call of 1,024.
    compare : callable
        ``compare(label, entry)`` compares each call in the same way, where it is set to do so.
    compared : deque of int
        Numbers of the last calls that the ranks compare, or have compared, before they begin.
    thread : int
        Identifier of the thread that made the communicator.
    refusals : deque of tuple of int, Mishap and int
        The last refused calls. Each entry has the number that the call would have had (0 if it is not a call of all
        ranks), the error, and the number of the last call before it. Any thread may add to it: copy it before a loop.
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
        """Return how the program waits, and the records of the calls that it waits for. From any thread.

        There is one record, unless the program waits for any of several calls.
        """
        tasks = list(self.under_way.items())
        waits = [(task.awaited, entry) for task, entry in tasks if task.awaited]
        how = max((each for each, _ in waits), default=NOBODY)
        current = self.current
        if current is not None and how != CALL:  # else the current call waits for these tasks
            return CALL, [current]
        entries = sorted((each for who, each in waits if who == how), key=itemgetter(BEGIN))
        return how, entries if how == ANY_OF else entries[:1]

    def waiting(self) -> CallRecord | None:
        """Return the record of the call that the program has waited for longest, or None. From any thread.

        Without a wait above `BLOCKED_SECONDS`, it is the record of the oldest call under way.
        """
        if not self.under_way:
            return self.current
        blocked = self.blocked()[1]
        if blocked and waited(blocked[0]) > BLOCKED_SECONDS:
            return blocked[0]
        return min(self.pending(), key=itemgetter(BEGIN), default=None)

    def lately(self) -> Facts | None:
        """Return the facts of the last refused call, for other ranks; None once a later call of all ranks has begun.

        A refused call raises before anything is sent, or on all ranks, and the communicator goes on. If the
        program catches the error, nothing else tells why it does not make the call that others wait for.
        """
        lately = self.refusals and self.number <= self.refusals[-1][2] + 1
        return self.refusals[-1][1].facts() if lately else None

    def _done(self) -> int:
        """Return the number up to which all calls are done. From any thread.

        A call that has just taken its number is not among those under way yet. Its thread holds the turn, and its
        record is missing or has not ended.
        """
        number = self.number  # read first: a call that begins meanwhile is not done
        begins = not (self.turn or self.current or self.closed)
        numbers: list[int] = [each[NUMBER] for each in self.pending() if each[NUMBER]]
        if numbers:
            return min(numbers) - 1
        last = find(self.kept, number) if begins else None
        return number - (begins and (last is None or last[ENDED] is None))

    def facts(self, number: int, entry: CallRecord | None = None) -> Facts:
        """Return this rank's activity.

        Parameters
        ----------
        number : int
            Number of the ordered call in question; 0 for none.
        entry : list, optional
            The record of that call, if it is at hand.
        """
        if entry is None and number:
            entry = find(self.kept, number)
        now = self.waiting()
        # A rank that is only late has not failed: it is still in its program.
        failure = None if self.failure.late else self.gate.error
        error = failure and (failure.__cause__ or failure)
        done = self._done()
        return {
            "rank": self.origin.rank,
            "size": self.origin.size,
            "communicator": self.origin.name,
            "collective": self.number,
            "done": done,
            "record": None if entry is None else _called(entry),
            "site": "" if entry is None else place(entry),
            "compared": number in self.compared,
            "now": None if now is None else self._now(now),
            "doing": "" if self.backend.shares_process or self.closed else doing(),
            "failed": None if error is None else _why(error),
            "closed": self.closed or ("" if error is None else _left(error)),
            "refused": self.lately(),
            "refusals": sum(each[0] == number for each in tuple(self.refusals)),
        }

    def _now(self, entry: CallRecord) -> Facts:
        label = entry[LABEL]
        # A call with a shorter deadline than the communicator's, such as a poll, ends by itself.
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
            own = copied(self.kept)
            later = [each[LABEL] for each in own if each[BEGIN] > entry[BEGIN]]
            last = entry is self.current or any(each is entry for each in own)
            now["waits"] = self.traffic.waits(label, beside, later, exact=last)
        return now

    def across(self) -> Facts:
        """Return this rank's activity, with what the search for ranks that wait for each other needs.

        That search covers other communicators as well.
        """
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
        if [*map(id, after)] != [*map(id, blocked)]:  # else all facts hold for one moment
            told["blocked"] = []
        return told


def _left(error: BaseException) -> str:
    """Return why this rank makes no more calls of a communicator; empty if the other ranks find the reason themselves.

    They cannot find out that this rank aborted the communicator, or that an exception of the program, a Ctrl-C or
    an error of a library ended a call here.
    """
    if isinstance(error, CommunicatorAborted):
        return "was aborted"
    shared = isinstance(error, CollectiveTimeout | PeerLost | RankMismatch)
    shared = shared and not isinstance(error, WaitTimeout)  # only this rank has that
    return "" if shared else f"left a call by {in_words(error)}"


def _why(error: BaseException) -> str:
    """Return why a communicator has failed."""
    return str(error) if isinstance(error, HpccommError) else in_words(error)


def _called(entry: CallRecord) -> Facts:
    label = entry[LABEL]
    return {"operation": label.name, **label.values, "async_op": entry[MODE] is ASYNC}


def between_ranks(entry: CallRecord | None, rank: object) -> list[Between]:
    """Return what this rank exchanges with `rank` in each uneven call that is part of `entry`."""
    if entry is None or not isinstance(rank, int):
        return []
    return between(entry[LABEL].individual, rank)
