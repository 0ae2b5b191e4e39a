"""The engine of one communicator: every call passes through it.

It admits one thread at a time, numbers, hooks, times and records each call, gives it a deadline,
and refuses calls once the communicator has failed. The lanes of `hpccomm.communicator` call it.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Buffer, Start
from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.contracts.side import Facts
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, CommunicatorAborted, UsageError
from hpccomm.runtime import callpath, dump
from hpccomm.runtime.answering import register, withdraw
from hpccomm.runtime.callpath import SPUN, Issue, compiled
from hpccomm.runtime.failure import harmless_error
from hpccomm.runtime.inquiry import Inquiry
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.operation import Operation
from hpccomm.runtime.progress import Task, progress_engine
from hpccomm.runtime.recorder import (
    BEGIN,
    BLOCKING,
    ENDED,
    ERROR,
    MODE,
    POLLED,
    TIMEOUT,
    CallRecord,
    forget,
    in_use,
    in_words,
    record,
    waited,
)
from hpccomm.runtime.reports import Tally
from hpccomm.runtime.state import CallState
from hpccomm.runtime.waiting import drive, spun, wait
from hpccomm.runtime.watchdog import watch
from hpccomm.runtime.work import Work
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")

FINALIZED = "is finalized"
"""Why no call is taken after `finalize`."""

OPERATIONS = 256
"""Number of kinds of operations whose functions are kept."""

SMALL_BYTES = 64 << 10
"""Bytes up to which the thread that starts an operation usually ends it."""

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


class CallEngine(CallState):
    """Carries out the calls of one communicator.

    Parameters are as of `CallState`.

    Attributes
    ----------
    progress : ProgressEngine
        Moves asynchronous calls on.
    inquiry : Inquiry
        The questions to other ranks while a call waits.
    record : callable
        Keeps the record of a call that begins.
    at_deadline, expired, overdue : callable
        Those of `inquiry`.
    """

    def __init__(self, name: str, backend: Backend, settings: Settings) -> None:
        super().__init__(name, backend, settings)
        self.progress = progress_engine(threaded=not backend.thread_restriction)
        self.inquiry = inquiry = Inquiry(self)
        self.at_deadline, self.expired, self.overdue = (
            inquiry.at_deadline,
            inquiry.expired,
            inquiry.overdue,
        )
        self.record = record if settings.record else forget
        self._operating: dict[tuple[str, int, int, bool], Issue] = {}
        watch(self)
        register(self.origin.uid, self.origin.rank, self.answer)
        dump.add(self)
        with _everyone_lock:
            _everyone.add(self)
        if backend.thread_restriction:
            logger.info("%s: %s", name, backend.thread_restriction)

    # Who may call.

    one_call = callpath.one_call
    """Holds the communicator for one call, which with ``also_failed=True`` a failed one takes as well."""

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

    # Synchronous calls. Equal values of all calls of one kind are bound once.

    def together(self, steps: Steps) -> Steps:
        """Return steps that move asynchronous operations on as well, where no thread does."""
        return steps if self.progress.threaded else self._together(steps)

    def _together(self, steps: Steps) -> Steps:
        for moved in steps:
            yield self.progress.turn() or moved

    def polling(
        self, label: CallFingerprint, tally: Tally, start: Start, *, ordered: bool = True
    ) -> Issue:
        """Return the function that runs the polled ``start(send, recv)`` and waits for it."""
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
            tally = self.reports.tally(label.name, label.nbytes)
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
                    self.together(steps),
                    timeout=entry[TIMEOUT],
                    gate=self.gate,
                    expired=self.expired(entry),
                )
            except BaseException as error:  # noqa: BLE001 (raised again)
                self.failed(error, entry, steps)

    # Asynchronous calls.

    start = callpath.start

    def put_under_way(self, operation: Operation, entry: CallRecord, result: Any) -> Work:
        """Begin a recorded operation, and return what `start` does."""
        ordered = operation.ordered
        task = Started(self, operation, entry)
        self.under_way[task] = entry
        if not (ordered and self.queue):
            # Begun here and now: a message that is sent later must not overtake it.
            task.turn()
        if not task.over:
            self.progress.submit(self.queue if ordered else deque(), task)
        return Work(self.progress, task, result, operation.keep, entry, task.gave_up)

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

    # Other calls than on arrays.

    start_record = callpath.start_record
    ended = callpath.ended

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
        if self.current is not None:
            with self.seen_as(self.current, mode) as entry:
                yield entry
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
            entry[ENDED] = waited(entry)

    @contextmanager
    def seen_as(self, entry: CallRecord, mode: str) -> Iterator[CallRecord]:
        """Have others see the call under way as one that waits in another way, during the block."""
        current, before = self.current, entry[MODE]
        self.current, entry[MODE] = entry, mode
        try:
            yield entry
        finally:
            self.current, entry[MODE] = current, before

    def run_part(self, entry: CallRecord, steps: Steps) -> None:
        """Wait for steps that are a part of a call which blocks otherwise, under its deadline."""
        with self.seen_as(entry, POLLED):
            steps = self.together(steps)
            if not spun(steps):
                before = waited(entry)
                drive(
                    steps,
                    timeout=max(0.0, entry[TIMEOUT] - before),
                    gate=self.gate,
                    expired=lambda elapsed: self.at_deadline(entry, before + elapsed),
                )

    def beside_watchdog(self, name: str, *, ordered: bool = False) -> AbstractContextManager[None]:
        """Have the watchdog look while the backend blocks in another call than on arrays.

        `ordered` says that all ranks of the communicator do it, in one order with their collectives.
        """
        return self._part(CallFingerprint(name, 0), BLOCKING, ordered, Exception)

    def part_of(
        self, label: str | CallFingerprint, nbytes: int = 0, *, ordered: bool = True
    ) -> AbstractContextManager[None]:
        """Record the block as a call of that name, or that is this; give a `CommunicationError` the facts of it."""
        if isinstance(label, str):
            label = CallFingerprint(label, nbytes)
        return self._part(label, POLLED, ordered, CommunicationError)

    @contextmanager
    def _part(
        self, label: CallFingerprint, mode: str, ordered: bool, kind: type[Exception]
    ) -> Iterator[None]:
        with self._recorded(label, mode, ordered=ordered) as entry:
            try:
                yield
            except kind as error:
                raised = self.failure.raised(error, entry, waited(entry))
                try:
                    raise raised from error if raised is not error else error.__cause__
                finally:
                    del raised  # which has this frame in its traceback

    # For others.

    def look(self, now: float) -> None:
        """Look after lost ranks, and after the call that has waited longest: for the watchdog."""
        self.inquiry.look(now)

    def answer(self, question: Facts) -> Facts:
        """Return this rank's answer to another one's question."""
        return self.inquiry.answer(question)

    def flight_facts(self) -> Facts:
        """Return the communicator's part of a dump."""
        return self.inquiry.flight_facts()

    def close(self, why: str) -> None:
        """Take no more calls."""
        self.closed = why
        withdraw(self.origin.uid, self.origin.rank, self.facts(0))

    def failed(
        self, error: BaseException, entry: CallRecord, keep: object, *, harmless: bool = False
    ) -> NoReturn:
        """Note the failure of the call under way, and raise it as an error of the tree."""
        self.current = None
        elapsed = waited(entry)
        failure = self.failure
        failure.unraised = None
        if not harmless:
            failure.note(error, keep)
        raised = failure.raised(error, entry, elapsed, harmless=harmless)
        self.ended(entry, raised, elapsed)
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


class Started(Task):
    """An asynchronous call under way.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    operation : Operation
        The operation to carry out.
    entry : list
        The record of the call, with its deadline.
    """

    __slots__ = ("_calls", "_given_up", "_operation", "entry")

    def __init__(self, calls: CallEngine, operation: Operation, entry: CallRecord) -> None:
        small = operation.label.nbytes <= SMALL_BYTES
        super().__init__(calls.gate, entry[TIMEOUT], entry[BEGIN], small=small)
        self._calls = calls
        self._operation: Operation | None = operation
        self._given_up: CommunicationError | None = None
        self.entry = entry

    def begin(self) -> Steps:
        """Return its steps."""
        assert self._operation is not None
        return self._operation.start()

    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of its deadline."""
        return self._calls.at_deadline(self.entry, elapsed)

    def gave_up(self, limit: float) -> CommunicationError | None:
        """Return the error of a wait of `elapsed` seconds; None waits on."""
        self.entry[TIMEOUT] = limit
        error = self._given_up = self.expired(perf_counter() - self.started)
        if error is not None:
            self._calls.failure.note(error, (self._operation, self))
        return error

    def ended(self, error: BaseException | None, elapsed: float) -> BaseException | None:
        """Count and report the call."""
        calls, entry = self._calls, self.entry
        calls.under_way.pop(self, None)
        raised = error
        if error is not None:
            raised = self._raised(error, elapsed)
        calls.ended(entry, raised, elapsed)
        return raised

    def _raised(self, error: BaseException, elapsed: float) -> BaseException:
        """Note a failure, and return it as an error of the tree."""
        calls, operation = self._calls, self._operation
        assert operation is not None
        given_up = self._given_up
        if given_up is not None and error is calls.gate.error:
            error = given_up  # the waiter has raised it, which shut the gate
        harmless = harmless_error(error, operation.ordered)
        if harmless:
            self.forget()
        else:
            calls.failure.note(error, (operation, self))
        raised = calls.failure.raised(error, self.entry, elapsed, harmless=harmless)
        if raised is not given_up and not isinstance(raised, CommunicatorAborted):
            calls.failure.unseen.append((self, self.entry))
        return raised

    def forget(self) -> None:
        """Drop its arrays."""
        self._operation = None


def _begun(operation: Any, _recv: Buffer) -> Steps:
    """Start an operation, which takes the place of an array that is sent."""
    return operation.start()  # type: ignore[no-any-return]
