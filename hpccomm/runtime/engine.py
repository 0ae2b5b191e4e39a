"""The engine of one communicator: every call passes through it.

It admits one thread at a time. It numbers, times and records each call, calls the hooks, sets a deadline, and
refuses calls once the communicator has failed. The lanes and core of `hpccomm.calls`, `hpccomm.communicator` and
`hpccomm.gradients` call it.
"""

import logging
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Facts
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.runtime import callpath, dump
from hpccomm.runtime.answering import register, withdraw
from hpccomm.runtime.callpath import LEFT, PreparedCall
from hpccomm.runtime.inquiry import Inquiry
from hpccomm.runtime.progress import CALL, Operation, Task, awaiting, progress_engine
from hpccomm.runtime.recorder import (
    BLOCKING,
    ENDED,
    ERROR,
    LABEL,
    MODE,
    NUMBER,
    POLLED,
    SEQUENCE,
    SITE,
    TIMEOUT,
    CallRecord,
    end,
    find,
    in_use,
    in_words,
    mishap,
    waited,
)
from hpccomm.runtime.reports import CallInfo, Handle
from hpccomm.runtime.service import after_fork, service
from hpccomm.runtime.state import CallState
from hpccomm.runtime.waiting import drive, spun, wait
from hpccomm.runtime.work import Work
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")

FINALIZED = "is finalized"
"""Why no call is taken after `finalize`."""

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

    The parameters are those of `CallState`.

    Attributes
    ----------
    progress : ProgressEngine
        Moves asynchronous calls on.
    inquiry : Inquiry
        Asks other ranks while a call waits.
    record : callable
        ``record(entry)`` keeps the record of a call that begins.
    at_deadline, expired, overdue : callable
        The methods of `inquiry` of these names.
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
        self.failure.unfit, self.failure.ask_sender = inquiry.unfit, inquiry.ask_sender
        self.record = self.kept.append
        self._asking = Handle(lambda: None)
        service.watch(self.look)
        register(self.origin.uid, self.origin.rank, self.answer)
        dump.add(self)
        with _everyone_lock:
            _everyone.add(self)
        if backend.thread_restriction:
            logger.info("%s: %s", name, backend.thread_restriction)

    def __del__(self) -> None:
        end(self.kept)

    # Who may call.

    one_call = callpath.one_call
    """Holds the communicator for one call. With ``also_failed=True``, a failed communicator takes the call as well."""

    def refuse(self, busy: bool, also_failed: bool = False) -> NoReturn:
        """Raise why no call can begin.

        Raises
        ------
        UsageError
            If a call is under way, as `busy` says, or the communicator is finalized.
        CommunicatorAborted
            If the communicator has failed.
        """
        if busy:
            raise UsageError(in_use(self.name, self.site))
        if self.gate.error is not None and not (also_failed and self.failure.recoverable):
            self.failure.refuse()
        remedy = "make a new one" if self.closed in (FINALIZED, LEFT) else "communicate before that"
        raise UsageError(f"communicator {self.name!r} {self.closed}; {remedy}")

    def opened(self) -> None:
        """Number the next call 1: the communicator is made, and the user's calls begin."""
        self.sequence = self.number = self.digest = 0

    # Synchronous calls.

    def together(self, steps: Steps) -> Steps:
        """Return `steps`, each of which also moves asynchronous operations on."""
        for moved in steps:
            yield self.progress.turn() or moved

    def run_operation(self, operation: Operation, timeout: float) -> None:
        """Run an operation and wait for it. The ranks have agreed on the operation, or agree in its steps."""
        prepared = PreparedCall(self, operation.label, operation.start, ordered=operation.ordered)
        prepared.agreed = self.agreement
        prepared.issue((), operation.keep, timeout)

    def run_steps(self, name: str, steps: Steps) -> None:
        """Wait for steps that are part of a call, under its deadline or the communicator's."""
        with self._recorded(_named(name), POLLED) as entry:
            # The agreements of queued calls use the same messages, and must come first.
            if self.queue:
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

    def start(self, operation: Operation, timeout: float, result: Any) -> Work:
        """Start an operation that goes on by itself, and return its `Work`."""
        prepared = PreparedCall(self, operation.label, operation.start, ordered=operation.ordered)
        return prepared.begin((), operation.keep, timeout, result)

    def finish(self) -> None:
        """Wait until all asynchronous calls of this communicator are done."""
        if self.under_way:
            self.drain(self.timeout, self.under_way)

    def drain(self, timeout: float, tasks: Collection[Task]) -> None:
        """Wait until none of the tasks is left."""

        def drained() -> bool:
            self.progress.turn()
            return not tasks

        with self._recorded(
            _named("wait for asynchronous calls"), POLLED, timeout, ordered=False
        ) as entry:
            try:
                with awaiting(tasks, CALL):
                    wait(drained, timeout=timeout, gate=self.gate, expired=self.expired(entry))
                if self.gate.error is not None:  # one of them failed
                    raise self.gate.error
            except CommunicationError as error:
                self.failed(error, entry, None)

    # Calls other than those on arrays.

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
            if self.reports.trace is not None:
                self.reports.trace.take(entry, None)

    @contextmanager
    def seen_as(self, entry: CallRecord, mode: str) -> Iterator[CallRecord]:
        """Show the call under way to other threads and ranks with another mode, during the block."""
        current, before = self.current, entry[MODE]
        self.current, entry[MODE] = entry, mode
        try:
            yield entry
        finally:
            self.current, entry[MODE] = current, before

    def run_part(self, entry: CallRecord, steps: Steps) -> None:
        """Wait, under the call's deadline, for steps that are part of a call which otherwise blocks in a library.

        If this raises, the call ends without the library, and its record says so.
        """
        current, mode = self.current, entry[MODE]
        # Before the first poll, since few polls take long on busy cores: the watchdog ends the job of a call that
        # blocks in a library at its deadline.
        self.current, entry[MODE] = entry, POLLED
        try:
            if not spun(steps):
                before = waited(entry)
                drive(
                    self.together(steps),
                    timeout=max(0.0, entry[TIMEOUT] - before),
                    gate=self.gate,
                    expired=lambda elapsed: self.at_deadline(entry, before + elapsed),
                )
            entry[MODE] = mode
        finally:
            self.current = current

    def beside_watchdog(self, name: str, *, ordered: bool = False) -> AbstractContextManager[None]:
        """Have the watchdog check the block, in which the backend blocks in a call that is not on arrays.

        `ordered` says that all ranks of the communicator make the call, in one order with their collectives.
        """
        return self._part(_named(name), BLOCKING, ordered, Exception)

    def part_of(
        self, label: str | CallFingerprint, nbytes: int = 0, *, ordered: bool = True
    ) -> AbstractContextManager[None]:
        """Record the block as a call, given by its label or its name and bytes.

        A `CommunicationError` that the block raises gets the facts of the call.
        """
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
                found = self.failure.mismatched(error, entry)
                raised = self.failure.raised(found, entry, waited(entry))
                try:
                    raise raised from error if raised is not error else error.__cause__
                finally:
                    del found, raised  # their tracebacks hold this frame

    def refused(self, error: BaseException, of_all: bool) -> None:
        """Remember a call that was refused here.

        If it was a call of all ranks (`of_all`), the next such call asks the other ranks: they may have made
        the refused one, if the program catches the error here.
        """
        if self.gate.error is not None:
            return
        entry = find(self.kept, self.number)
        # A call on objects may raise after its exchange, which has this site: then it was made, not refused.
        made = entry is not None and entry[SITE] is self.site
        waits = of_all and not made and not isinstance(error, CommunicationError)
        before = self.number
        self.refusals.append((before + 1 if waits else 0, mishap(error, self.site), before))
        if waits:
            self._asking.close()
            self._asking = self.reports.pre_hooks.register(self._ask_after_refusal)

    def _ask_after_refusal(self, info: CallInfo) -> None:
        entry = self.current or find(self.kept, self.number)
        if entry is not None and entry[NUMBER] and entry[SEQUENCE] == info.sequence:
            self._asking.close()
            self.inquiry.after_refusal(entry)

    # For the watchdog, other ranks and dumps.

    def look(self, now: float) -> None:
        """Check for lost ranks, and the call that has waited longest. The watchdog calls it."""
        self.inquiry.look(now)

    def answer(self, question: Facts) -> Facts:
        """Return this rank's answer to another rank's question."""
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
        """Note the failure of the call under way, and raise it as an error of `hpccomm.errors`.

        The objects in `keep` stay alive, unless the failure is `harmless`: then the communicator goes on.
        """
        self.current = None
        elapsed = waited(entry)
        failure = self.failure
        failure.unraised = None
        found = error if harmless else failure.note(error, entry, keep)
        raised = failure.raised(found, entry, elapsed)
        label = entry[LABEL]
        self.ended(entry, self.reports.tally(label.name, label.nbytes), raised, elapsed, keep)
        try:
            if raised is error:
                raise error
            if raised is error.__cause__:  # the watchdog or another rank found it
                raise raised from raised.__cause__
            raise raised from error
        finally:
            del error, found, raised  # their tracebacks hold this frame

    def fail(self, error: BaseException) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local."""
        self.failure.fail(error)

    def disown(self) -> None:
        """Refuse all use in a fork of the process: MPI is lost there, and no peer knows of it."""
        aborted = self.failure.disown()
        for task in self.under_way:
            task.error, task.over = aborted, True


@cache
def _named(name: str) -> CallFingerprint:
    """Return the label of a part of a call. There are few names, so that the cache stays small."""
    return CallFingerprint(name, 0)
