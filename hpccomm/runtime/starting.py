"""Asynchronous calls: an operation becomes a task of the progress engine, and a `Work` for the user."""

import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpccomm.errors import BufferMismatch, CommunicationError, CommunicatorAborted
from hpccomm.runtime.operation import Operation
from hpccomm.runtime.progress import Task
from hpccomm.runtime.recorder import ERROR, SITE, TIMEOUT, Entry, described
from hpccomm.runtime.work import Work

if TYPE_CHECKING:
    from hpccomm.runtime.engine import CallEngine

SMALL_BYTES = 64 << 10
"""Up to this size whoever starts an operation usually ends it."""

logger = logging.getLogger("hpccomm")


def start(calls: "CallEngine", operation: Operation, entry: Entry, result: Any) -> Work:
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
    reports, failure = calls.reports, calls.failure
    timeout = entry[TIMEOUT]
    if reports.pre_hooks.registered:
        try:
            reports.pre_hooks(reports.info(entry))
        except BaseException as error:  # noqa: BLE001 (raised again)
            calls.failed(error, entry, operation.keep)

    given_up: CommunicationError | None = None

    def ended(error: BaseException | None, elapsed: float) -> BaseException | None:
        calls.under_way.pop(task, None)
        if given_up is not None and error is calls.gate.error:
            error = given_up  # whoever waited has raised it, which shut the gate
        raised = error
        if error is not None:
            harmless = harmless_error(error, operation.ordered)
            if not harmless:
                failure.note(error, (operation, task))
            raised = failure.raised(error, entry, elapsed, harmless=harmless)
            if raised is not given_up and not isinstance(raised, CommunicatorAborted):
                failure.unseen.append((task, entry))
        reports.ended(entry, raised, elapsed)
        return raised

    small = operation.label.nbytes <= SMALL_BYTES
    task = Task(operation.start, calls.gate, timeout, calls.expired(entry), ended, small)
    calls.under_way[task] = entry
    if not (operation.ordered and calls.queue):
        # Begun here and now: a message that is sent later must not overtake it.
        task.turn()
    if not task.over:
        calls.progress.submit(calls.queue if operation.ordered else deque(), task)

    def gave_up(limit: float) -> CommunicationError | None:
        nonlocal given_up
        entry[TIMEOUT] = limit
        given_up = calls.at_deadline(entry, perf_counter() - task.started)
        if given_up is not None:
            failure.note(given_up, (operation, task))
        return given_up

    return Work(
        calls.progress,
        task,
        result=result,
        keep=operation.keep,
        timeout=timeout,
        gave_up=gave_up,
        entry=entry,
    )


def tell_unseen(calls: "CallEngine") -> None:
    """Log the errors of asynchronous calls that no `Work` has raised or returned. Local; idempotent."""
    unseen = calls.failure.unseen
    while unseen:
        task, entry = unseen.popleft()
        if not task.seen:
            where = described(entry[SITE])
            logger.error(
                "%s%s failed, and neither wait() nor exception() of its Work was called: %s",
                calls.reports.described(entry),
                f", made at {where}," if where else "",
                entry[ERROR],
            )


def harmless_error(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: a message of another size was taken, and that is all."""
    return isinstance(error, BufferMismatch) and not ordered
