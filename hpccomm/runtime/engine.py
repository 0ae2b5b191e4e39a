"""What every call of one communicator goes through.

One thread at a time, numbered, hooked, timed, under a deadline, and refused once the communicator
has failed.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import itemgetter
from time import perf_counter
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Buffer, Start
from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.contracts.side import Facts
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, UsageError, peers_lost
from hpccomm.runtime import callpath, dump
from hpccomm.runtime.answering import register, withdraw
from hpccomm.runtime.callpath import SPUN, Issue, compiled
from hpccomm.runtime.failure import Failure
from hpccomm.runtime.inquiry import Inquiry, answer, facts, flight_facts
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.operation import Operation, digested
from hpccomm.runtime.progress import Task, TaskQueue, progress_engine
from hpccomm.runtime.recorder import (
    ASYNC,
    BEGIN,
    BLOCKING,
    ENDED,
    ERROR,
    MODE,
    POLLED,
    TIMEOUT,
    CallRecord,
    Origin,
    Site,
    forget,
    in_use,
    in_words,
    record,
)
from hpccomm.runtime.reports import Reports
from hpccomm.runtime.starting import start
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.traffic import Traffic
from hpccomm.runtime.waiting import Expired, drive, wait
from hpccomm.runtime.watchdog import watch
from hpccomm.runtime.work import Work
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")

MAKING = -(1 << 20)
"""Numbers begin here while the communicator is made, and at 0 for the user's calls."""

FINALIZED = "is finalized"
"""Why no call is taken after `finalize`."""

OPERATIONS = 256
"""Kinds of operations of which what carries them out is kept."""

_everyone: "weakref.WeakSet[CallEngine]" = weakref.WeakSet()
_everyone_lock = threading.Lock()


def everyone() -> list["CallEngine"]:
    """Return the call engines of every communicator of this process."""
    with _everyone_lock:
        return list(_everyone)


@after_fork
def _after_fork() -> None:
    global _everyone_lock  # one of the parent's threads may have held it
    _everyone_lock = threading.Lock()
    for calls in everyone():
        calls.disown()


class CallEngine:
    """The calls of one communicator.

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
    site : tuple or None
        Where in the program the call is made; whoever takes a call sets it.
    current : list or None
        The record of the synchronous call under way.
    reports : Reports
        Hooks, statistics, and descriptions of calls.
    failure : Failure
        Whether the communicator has failed.
    gate : Gate
        That of `failure`.
    closed : str
        Why no call is taken any more; empty while they are.
    turn : list
        Has one item while no call is under way. A thread takes it by ``pop()`` to make a call, and gives it
        back by ``append(True)``: a lock, at a third of the price.
    progress : ProgressEngine
        Moves asynchronous calls on.
    queue : deque of Task
        Asynchronous collectives, which run one after the other.
    traffic : Traffic
        The messages that have begun.
    inquiry : Inquiry
        What is known of the other ranks while a call waits.
    record : callable
        Keeps the record of a call that begins.
    compare : callable
        ``compare(label, entry)`` raises on all ranks unless they have made the same calls so far. One of
        1,024 calls does so.
    thread : int
        The thread that has made the communicator.
    under_way : dict of Task to list
        Asynchronous calls that are not over, and their records.
    """

    def __init__(self, name: str, backend: Backend, settings: Settings) -> None:
        self.name = name
        self.backend = backend
        self.timeout = settings.timeout
        self.on_timeout = settings.on_timeout
        self.sequence = self.number = MAKING
        self.digest = 0
        self.traffic = Traffic()
        self.compare: Callable[[CallFingerprint, CallRecord], object] = _uncompared
        self.origin = Origin(backend.uid, name, backend.rank, backend.size)
        self.site: Site | None = None
        self.current: CallRecord | None = None
        self.reports = Reports(name, backend.rank, backend.size, settings.slow_call)
        self.failure = Failure(self.reports, backend)
        self.gate = self.failure.gate
        self.closed = ""
        self.turn = [True]
        self.progress = progress_engine(threaded=not backend.thread_restriction)
        self.queue: TaskQueue = deque()  # of collectives, which run one after the other
        self.under_way: dict[Task, CallRecord] = {}
        self._operating: dict[tuple[str, int, int, bool], Issue] = {}
        self.inquiry = Inquiry()
        self.record = record if settings.record else forget
        self.thread = threading.get_ident()
        watch(self)
        register(self.origin.uid, self.origin.rank, self.answer)
        dump.add(self)
        with _everyone_lock:
            _everyone.add(self)
        if backend.thread_restriction:
            logger.info("%s: %s", name, backend.thread_restriction)

    # Who may call.

    one_call = callpath.one_call
    """Hold the communicator for one call, which with ``also_failed=True`` a failed one may take as well."""

    def refuse(self, busy: bool, also_failed: bool = False) -> NoReturn:
        """Raise why no call can begin.

        Raises
        ------
        UsageError
            If a call is under way, as `busy` says, or the communicator is finalized.
        CommunicatorAborted
            If it has failed.
        """
        if busy:
            raise UsageError(in_use(self.name, self.site))
        if self.gate.error is not None and not (also_failed and self.failure.recoverable):
            self.failure.refuse()
        remedy = "make a new one" if self.closed == FINALIZED else "communicate before that"
        raise UsageError(f"communicator {self.name!r} {self.closed}; {remedy}")

    def opened(self) -> None:
        """Number the user's calls from 1: the communicator is made."""
        self.sequence = self.number = self.digest = 0

    # Synchronous calls. What is the same for all calls of one kind is bound once.

    def together(self, steps: Steps) -> Steps:
        """Return steps that move asynchronous operations on as well: no thread does."""
        for moved in steps:
            yield self.progress.turn() or moved

    def polling(
        self, label: CallFingerprint, tally: Tally, start: Start, *, ordered: bool = True
    ) -> Issue:
        """Return what runs the polled ``start(send, recv)`` and waits for it."""
        begin_steps = (
            start if self.progress.threaded else lambda *arguments: self.together(start(*arguments))
        )
        return compiled(SPUN, ordered=ordered)(self, label, tally, start, ordered, begin_steps)

    def run_operation(self, operation: Operation, timeout: float) -> None:
        """Run an operation and wait for it."""
        label = operation.label
        key = (label.name, label.nbytes, label.fingerprint, operation.ordered)
        issue = self._operating.get(key)
        if issue is None:
            if len(self._operating) >= OPERATIONS:
                self._operating.clear()
            tally = self.reports.stats.tally(label.name, label.nbytes)
            issue = self.polling(label, tally, _begun, ordered=operation.ordered)
            self._operating[key] = issue
        issue((operation, None), operation.keep, timeout)

    def run_steps(self, name: str, steps: Steps) -> None:
        """Wait for steps that are part of a call, under its deadline or the communicator's."""
        with self._recorded(CallFingerprint(name, 0), POLLED) as entry:
            if self.queue:  # whose agreements come first, and take the same road
                self.drain(entry[TIMEOUT], self.queue)
            try:
                drive(
                    steps if self.progress.threaded else self.together(steps),
                    timeout=entry[TIMEOUT],
                    gate=self.gate,
                    expired=self.expired(entry),
                )
            except BaseException as error:  # noqa: BLE001 (raised again)
                self.failed(error, entry, steps)

    # Asynchronous calls.

    def start(self, operation: Operation, timeout: float, result: Any) -> Work:
        """Start a polled operation that goes on by itself."""
        entry = self.start_record(operation.label, ASYNC, timeout, ordered=operation.ordered)
        return start(self, operation, entry, result)

    def finish(self) -> None:
        """Wait until all asynchronous calls of this communicator are done."""
        if self.under_way:
            self.drain(self.timeout, self.under_way)

    def drain(self, timeout: float, tasks: Collection[Task]) -> None:
        """Wait until none of the tasks is left."""

        def drained() -> bool:
            self.progress.turn()
            return not tasks

        label = CallFingerprint("wait for asynchronous calls", 0)
        with self._recorded(label, POLLED, timeout, ordered=False) as entry:
            try:
                wait(drained, timeout=timeout, gate=self.gate, expired=self.expired(entry))
                if self.gate.error is not None:  # one of them failed
                    raise self.gate.error
            except CommunicationError as error:
                self.failed(error, entry, None)

    # What is no call on arrays.

    def start_record(
        self, label: CallFingerprint, mode: str, timeout: float, *, ordered: bool = True
    ) -> CallRecord:
        """Number and record a call that begins."""
        self.sequence += 1
        if ordered:
            self.number += 1
            self.digest = digested(self.digest, label.fingerprint)
        entry = [
            self.origin,
            self.sequence,
            self.number if ordered else 0,
            label,
            mode,
            self.site,
            perf_counter(),
            timeout,
            None,
            None,
        ]
        self.record(entry)
        return entry

    @contextmanager
    def _recorded(
        self,
        label: CallFingerprint,
        mode: str,
        timeout: float | None = None,
        *,
        ordered: bool = True,
    ) -> Iterator[CallRecord]:
        """Record the block as a call, or as a part of the call under way."""
        outer = self.current
        if outer is not None:
            before, outer[MODE] = outer[MODE], mode
            try:
                yield outer
            finally:
                outer[MODE] = before
            return
        limit = self.timeout if timeout is None else timeout
        self.current = entry = self.start_record(label, mode, limit, ordered=ordered)
        try:
            yield entry
        except BaseException as error:
            entry[ERROR] = in_words(error)
            raise
        finally:
            self.current = None
            entry[ENDED] = perf_counter() - entry[BEGIN]

    @contextmanager
    def beside_watchdog(self, name: str, *, ordered: bool = False) -> Iterator[None]:
        """Have the watchdog look while the backend blocks in something that is no call on arrays.

        `ordered` says that all ranks of the communicator do it, in one order with their collectives.
        """
        with self._recorded(CallFingerprint(name, 0), BLOCKING, ordered=ordered) as entry:
            try:
                yield
            except Exception as error:  # noqa: BLE001 (raised again)
                raised = self.failure.raised(error, entry, perf_counter() - entry[BEGIN])
                try:
                    raise raised from error if raised is not error else error.__cause__
                finally:
                    del raised  # which has this frame in its traceback

    @contextmanager
    def part_of(
        self, label: str | CallFingerprint, nbytes: int = 0, *, ordered: bool = True
    ) -> Iterator[None]:
        """Record the block as a call of that name, or that is this; give a `CommunicationError` the facts of it."""
        if isinstance(label, str):
            label = CallFingerprint(label, nbytes)
        with self._recorded(label, POLLED, ordered=ordered) as entry:
            try:
                yield
            except CommunicationError as error:
                took = perf_counter() - entry[BEGIN]
                raise self.failure.raised(error, entry, took) from error.__cause__

    # Deadlines.

    def look(self, now: float) -> None:
        """Look after lost ranks, and after the call that has waited longest: for the watchdog."""
        backend, ended = self.backend, self.closed or self.gate.error
        if backend.survival is not None and not (ended or backend.thread_restriction):
            lost = backend.survival.lost()
            if lost:
                error = peers_lost(lost, backend.recovery)
                error.communicator, error.rank = self.name, self.origin.rank
                self.failure.fail(error, tell=True)
        self.inquiry.look(self, now)

    def pending(self) -> list[CallRecord]:
        """Return the records of the calls under way. From any thread."""
        entries = list(self.under_way.values())
        return entries if self.current is None else [self.current, *entries]

    def waiting(self) -> CallRecord | None:
        """Return the record of the call that has waited longest, or None. From any thread."""
        if not self.under_way:
            return self.current
        return min(self.pending(), key=itemgetter(BEGIN), default=None)

    def overdue(self, entry: CallRecord, elapsed: float, causes: str = "") -> CommunicationError:
        """Return the error of a call whose deadline has passed. The other ranks are asked.

        `causes` says what else may have kept it from being done.
        """
        return self.inquiry.overdue(self, entry, elapsed, causes)

    def at_deadline(
        self, entry: CallRecord, elapsed: float, causes: str = ""
    ) -> CommunicationError | None:
        """Do what the setting says where a deadline has passed; return what is to be raised.

        None where the call waits on, without a deadline.
        """
        return self.inquiry.settled(self, entry, self.overdue(entry, elapsed, causes))

    def expired(self, entry: CallRecord) -> Expired:
        """Return what `at_deadline` makes of the elapsed seconds."""
        return lambda elapsed: self.at_deadline(entry, elapsed)

    def answer(self, question: Facts) -> Facts:
        """Return what this rank answers to another one's question."""
        return answer(self, question)

    def flight_facts(self) -> Facts:
        """Return what dumps show of the communicator."""
        return flight_facts(self)

    def close(self, why: str) -> None:
        """Take no more calls."""
        self.closed = why
        withdraw(self.origin.uid, self.origin.rank, facts(self, 0, None))

    # Failure.

    def failed(
        self, error: BaseException, entry: CallRecord, keep: object, *, harmless: bool = False
    ) -> NoReturn:
        """Note the failure of the call under way, and raise it as an error of the tree."""
        self.current = None
        elapsed = perf_counter() - entry[BEGIN]
        failure = self.failure
        failure.unraised = None
        if not harmless:
            failure.note(error, keep)
        raised = failure.raised(error, entry, elapsed, harmless=harmless)
        self.reports.ended(entry, raised, elapsed)
        try:
            if raised is error:
                raise error
            if raised is error.__cause__:  # what the watchdog, or another rank, found
                raise raised from raised.__cause__
            raise raised from error
        finally:
            del error, raised  # which have this frame in their tracebacks

    def fail(self, error: BaseException) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local."""
        self.failure.fail(error)

    def disown(self) -> None:
        """Refuse all use in a fork of the process: MPI is lost there, and no peer knows of it."""
        aborted = self.failure.disown()
        for task in self.under_way:
            task.error, task.over = aborted, True


def _uncompared(_label: CallFingerprint, _entry: CallRecord) -> None:
    """Do nothing: until somebody compares calls, or where nobody does."""


def _begun(operation: Any, _recv: Buffer) -> Steps:
    """Start an operation, which takes the place of an array that is sent."""
    return operation.start()  # type: ignore[no-any-return]
