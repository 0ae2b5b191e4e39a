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
from time import perf_counter
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Buffer, Run, Start
from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch, CommunicationError, UsageError
from hpccomm.runtime.failure import Failure
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.operation import Label, Operation
from hpccomm.runtime.progress import Task, TaskQueue, progress_engine
from hpccomm.runtime.reports import Reports
from hpccomm.runtime.stats import Tally
from hpccomm.runtime.waiting import drive, spun, wait
from hpccomm.runtime.watchdog import Station, beside, watch
from hpccomm.runtime.work import Work
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")

Issue = Callable[[Any, Any, object, float], None]
"""``issue(send, recv, keep, timeout)`` carries a call out and waits for it: its arrays, what must live
meanwhile, and seconds."""

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
    sequence : int
        Number of the last call.
    reports : Reports
        Hooks, statistics, and descriptions of calls.
    failure : Failure
        Whether the communicator has failed.
    gate : Gate
        That of `failure`.
    closed : str
        Why no call is taken any more; empty while they are.
    busy : Lock
        Held by the thread whose call is under way.
    """

    def __init__(self, name: str, backend: Backend, settings: Settings) -> None:
        self.name = name
        self.backend = backend
        self.timeout = settings.timeout
        self.sequence = 0
        self.reports = Reports(name, backend.rank, backend.size, settings.slow_call)
        self.failure = Failure(self.reports, backend)
        self.gate = self.failure.gate
        self.closed = ""
        self.busy = threading.Lock()
        self._progress = progress_engine(threaded=not backend.threaded)
        self._queue: TaskQueue = deque()  # of collectives, which run one after the other
        self._under_way: set[Task] = set()
        self._operating: dict[tuple[str, int, bool], Issue] = {}
        self._label: Label = ("", 0)
        self._station = Station(self._describe_blocked, backend.end_job)
        watch(self._station)
        with _everyone_lock:
            _everyone.add(self)
        if backend.threaded:
            logger.info("%s: %s", name, backend.threaded)

    # Who may call.

    def enter(self) -> None:
        """Begin a call. The release of `busy` must follow.

        Raises
        ------
        UsageError
            If another thread is in one, or the communicator is finalized.
        CommunicatorAborted
            If it has failed.
        """
        if not self.busy.acquire(False):
            raise UsageError(
                f"communicator {self.name!r} is in use by another thread; one thread at a time may "
                "call it (dup() gives a communicator of its own to each)"
            )
        if self.closed or self.gate.error is not None:
            self.busy.release()
            if self.gate.error is not None:
                self.failure.refuse()
            raise UsageError(f"communicator {self.name!r} {self.closed}; make a new one")

    @contextmanager
    def one_call(self) -> Iterator[None]:
        """Hold the communicator for one call."""
        self.enter()
        try:
            yield
        finally:
            self.busy.release()

    # Synchronous calls. What is the same for all calls of one kind is bound once: the functions that
    # are returned look nothing up.

    def blocking(self, label: Label, tally: Tally, run: Run) -> Issue:
        """Return what runs a call that blocks in the backend's library, beside the watchdog.

        This is the shortest way through the library; every statement counts.
        """
        nbytes, reports = label[1], self.reports
        pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
        queue, station = self._queue, self._station

        def issue(send: Buffer, recv: Buffer, keep: object, timeout: float) -> None:
            if queue:
                self._drain(timeout, queue)
            self.sequence += 1
            if pre.registered:
                pre(reports.info(label, self.sequence))
            self._label = label
            begin = perf_counter()
            station.armed = (begin, timeout)
            try:
                run(send, recv)
            except BaseException as error:  # noqa: BLE001 (raised again)
                station.armed = None
                self.failed(error, label, perf_counter() - begin, (send, recv, keep))
            station.armed = None
            elapsed = perf_counter() - begin
            tally.calls += 1
            tally.nbytes += nbytes
            tally.seconds += elapsed
            if elapsed > slow_call or post.registered:
                reports.report(label, self.sequence, elapsed)

        return issue

    def polling(self, label: Label, tally: Tally, start: Start, *, ordered: bool = True) -> Issue:
        """Return what runs the polled ``start(send, recv)`` and waits for it.

        Small arrays come this way: what only a call that waits long needs is made only then.
        """
        nbytes, reports = label[1], self.reports
        pre, post, slow_call = reports.pre_hooks, reports.post_hooks, reports.slow_call
        queue, gate = self._queue, self.gate
        begin_steps = (
            start
            if self._progress.threaded
            else lambda send, recv: self._together(start(send, recv))
        )

        def issue(send: Buffer, recv: Buffer, keep: object, timeout: float) -> None:
            if ordered and queue:
                self._drain(timeout, queue)
            self.sequence = sequence = self.sequence + 1
            if pre.registered:
                pre(reports.info(label, sequence))
            begin = perf_counter()
            steps: Steps | None = None
            try:
                steps = begin_steps(send, recv)
                if not spun(steps):
                    expired = reports.expired(label, sequence, timeout)
                    drive(steps, timeout=timeout, gate=gate, expired=expired)
            except BaseException as error:  # noqa: BLE001 (raised again)
                elapsed = perf_counter() - begin
                held = (start, send, recv, keep, steps)
                self.failed(error, label, elapsed, held, harmless=_harmless(error, ordered))
            elapsed = perf_counter() - begin
            tally.calls += 1
            tally.nbytes += nbytes
            tally.seconds += elapsed
            if elapsed > slow_call or post.registered:
                reports.report(label, sequence, elapsed)

        return issue

    def _together(self, steps: Steps) -> Steps:
        """Return steps that move asynchronous operations on as well: no thread does."""
        for moved in steps:
            yield self._progress.turn() or moved

    def operate(self, operation: Operation, timeout: float) -> None:
        """Run an operation and wait for it."""
        key = (operation.name, operation.nbytes, operation.ordered)
        issue = self._operating.get(key)
        if issue is None:
            if len(self._operating) >= OPERATIONS:
                self._operating.clear()
            label = (operation.name, operation.nbytes)
            tally = self.reports.stats.tally(*label)
            issue = self.polling(label, tally, _begun, ordered=operation.ordered)
            self._operating[key] = issue
        issue(operation, None, operation.keep, timeout)

    def drive(self, name: str, steps: Steps) -> None:
        """Wait for steps that are part of a call, under the communicator's deadline."""
        label = (name, 0)
        try:
            drive(
                steps if self._progress.threaded else self._together(steps),
                timeout=self.timeout,
                gate=self.gate,
                expired=self.reports.expired(label, self.sequence, self.timeout),
            )
        except BaseException as error:  # noqa: BLE001 (raised again)
            self.failed(error, label, 0.0, steps)

    # Asynchronous calls.

    def start(self, operation: Operation, timeout: float, result: Any) -> Work:
        """Start a polled operation that goes on by itself."""
        self.sequence = sequence = self.sequence + 1
        label, reports = (operation.name, operation.nbytes), self.reports
        if reports.pre_hooks.registered:
            reports.pre_hooks(reports.info(label, sequence))

        given_up: CommunicationError | None = None

        def ended(error: BaseException | None, elapsed: float) -> BaseException | None:
            self._under_way.discard(task)
            if given_up is not None and error is self.gate.error:
                error = given_up  # whoever waited has raised it, which shut the gate
            raised = error
            if error is not None:
                harmless = _harmless(error, operation.ordered)
                if not harmless:
                    self.failure.note(error, (operation, task))
                raised = self.failure.raised(error, label, sequence, elapsed, harmless=harmless)
            reports.ended(label, sequence, raised, elapsed)
            return raised

        expired = reports.expired(label, sequence, timeout)
        task = Task(operation.start, self.gate, timeout, expired, ended)
        self._under_way.add(task)
        if not (operation.ordered and self._queue):
            # Begun here and now: a message that is sent later must not overtake it.
            task.turn()
        if not task.over:
            self._progress.submit(self._queue if operation.ordered else deque(), task)

        def gave_up(limit: float) -> CommunicationError:
            nonlocal given_up
            given_up = reports.overdue(label, sequence, limit, perf_counter() - task.started)
            self.failure.note(given_up, (operation, task))
            return given_up

        return Work(
            self._progress,
            task,
            result=result,
            keep=operation.keep,
            timeout=timeout,
            gave_up=gave_up,
        )

    def finish(self) -> None:
        """Wait until all asynchronous calls of this communicator are done."""
        if self._under_way:
            self._drain(self.timeout, self._under_way)

    def _drain(self, timeout: float, tasks: Collection[Task]) -> None:
        """Wait until none of the tasks is left."""
        label = ("wait for asynchronous calls", 0)

        def drained() -> bool:
            self._progress.turn()
            return not tasks

        try:
            wait(
                drained,
                timeout=timeout,
                gate=self.gate,
                expired=self.reports.expired(label, self.sequence, timeout),
            )
            if self.gate.error is not None:  # one of them failed
                raise self.gate.error
        except CommunicationError as error:
            self.failed(error, label, 0.0, None)

    # What is no call of its own.

    @contextmanager
    def beside_watchdog(self, name: str) -> Iterator[None]:
        """Have the watchdog look while the backend blocks in something that is no call."""
        self._label = label = (name, 0)
        begin = perf_counter()
        try:
            with beside(self._station, self.timeout):
                yield
        except Exception as error:  # noqa: BLE001 (raised again)
            elapsed = perf_counter() - begin
            raised = self.failure.raised(error, label, self.sequence, elapsed)
            raise raised from error if raised is not error else error.__cause__

    @contextmanager
    def part_of(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Give a `CommunicationError` of the block the facts of a call of that name."""
        begin = perf_counter()
        try:
            yield
        except CommunicationError as error:
            elapsed = perf_counter() - begin
            label = (name, nbytes)
            raise self.failure.raised(error, label, self.sequence, elapsed) from error.__cause__

    def _describe_blocked(self) -> str:
        return self.reports.described(self._label, self.sequence)

    # Failure.

    def failed(
        self,
        error: BaseException,
        label: Label,
        elapsed: float,
        keep: object,
        *,
        harmless: bool = False,
    ) -> NoReturn:
        """Note the failure of the call under way, and raise it as an error of the tree."""
        failure, sequence = self.failure, self.sequence
        failure.unraised = None
        if not harmless:
            failure.note(error, keep)
        raised = failure.raised(error, label, sequence, elapsed, harmless=harmless)
        self.reports.ended(label, sequence, raised, elapsed)
        if raised is error:
            raise error
        raise raised from error

    def fail(self, error: BaseException) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local."""
        self.failure.fail(error)

    def disown(self) -> None:
        """Refuse all use in a fork of the process: MPI is lost there, and no peer knows of it."""
        aborted = self.failure.disown()
        for task in self._under_way:
            task.error, task.over = aborted, True


def _harmless(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: a message of another size was taken, and that is all."""
    return isinstance(error, BufferMismatch) and not ordered


def _begun(operation: Any, _recv: Buffer) -> Steps:
    """Start an operation, which takes the place of an array that is sent."""
    steps: Steps = operation.start()
    return steps
