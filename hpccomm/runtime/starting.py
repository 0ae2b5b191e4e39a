"""Asynchronous calls: an operation becomes a task of the progress engine, and a `Work` for the user."""

import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch, CommunicationError, CommunicatorAborted
from hpccomm.runtime.operation import Operation
from hpccomm.runtime.progress import Task
from hpccomm.runtime.recorder import BEGIN, ERROR, SITE, TIMEOUT, CallRecord, described
from hpccomm.runtime.work import Work

if TYPE_CHECKING:
    from hpccomm.runtime.engine import CallEngine

SMALL_BYTES = 64 << 10
"""Up to this size whoever starts an operation usually ends it."""

logger = logging.getLogger("hpccomm")


class Started(Task):
    """An asynchronous call under way.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    operation : Operation
        What is carried out.
    entry : list
        The record of the call, with its deadline.
    """

    __slots__ = ("_calls", "_given_up", "_operation", "entry")

    def __init__(self, calls: "CallEngine", operation: Operation, entry: CallRecord) -> None:
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
        """Return the error of whoever waited so many seconds; None waits on."""
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
        calls.reports.ended(entry, raised, elapsed)
        return raised

    def _raised(self, error: BaseException, elapsed: float) -> BaseException:
        """Note a failure, and return it as an error of the tree."""
        calls, operation = self._calls, self._operation
        assert operation is not None
        given_up = self._given_up
        if given_up is not None and error is calls.gate.error:
            error = given_up  # whoever waited has raised it, which shut the gate
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
        """Let go of its arrays."""
        self._operation = None


def start(calls: "CallEngine", operation: Operation, entry: CallRecord, result: Any) -> Work:
    """Start an operation whose call is recorded.

    Parameters
    ----------
    calls : CallEngine
        The communicator's.
    operation : Operation
        What is carried out.
    entry : list
        The record of the call, with its deadline.
    result : object
        What `Work.wait` returns.
    """
    reports = calls.reports
    if reports.pre_hooks.registered:
        try:
            reports.pre_hooks(reports.info(entry))
        except BaseException as error:  # noqa: BLE001 (raised again)
            calls.failed(error, entry, operation.keep)
    task = Started(calls, operation, entry)
    calls.under_way[task] = entry
    if not (operation.ordered and calls.queue):
        # Begun here and now: a message that is sent later must not overtake it.
        task.turn()
    if not task.over:
        calls.progress.submit(calls.queue if operation.ordered else deque(), task)
    return Work(calls.progress, task, result, operation.keep, entry, task.gave_up)


def tell_unseen(calls: "CallEngine") -> None:
    """Log the errors of asynchronous calls that no `Work` has raised or returned. Local; idempotent."""
    unseen = calls.failure.unseen
    while unseen:
        task, entry = unseen.popleft()
        if not task.seen:
            where = described(entry[SITE], entry[BEGIN])
            logger.error(
                "%s%s failed, and neither wait() nor exception() of its Work was called: %s",
                calls.reports.described(entry),
                f", made at {where}," if where else "",
                entry[ERROR],
            )


def harmless_error(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: a message of another size was taken, and that is all."""
    return isinstance(error, BufferMismatch) and not ordered
