"""What every call of one communicator goes through.

One thread at a time, numbered, hooked, timed, under a deadline, and refused once the communicator
has failed.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NoReturn

from hpccomm.contracts.backend import Backend, Buffer, Run, Start
from hpccomm.contracts.device import Launch
from hpccomm.contracts.transport import Steps
from hpccomm.errors import (
    BufferMismatch,
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    HpccommError,
    RankMismatch,
    UsageError,
)
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.streams import Queue
from hpccomm.runtime import lifetime
from hpccomm.runtime.hooks import AbortHook, CallInfo, Hook, Hooks
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.pending import PendingCalls
from hpccomm.runtime.progress import Lane, Task, engine
from hpccomm.runtime.stats import Stats, Tally
from hpccomm.runtime.waiting import Gate, drive, spun, wait
from hpccomm.runtime.watchdog import Station, beside, watch
from hpccomm.runtime.work import Work
from hpccomm.settings import Settings

logger = logging.getLogger("hpccomm")


Label = tuple[str, int]
"""A call's name and the bytes of this rank's larger array."""


@dataclass(slots=True)
class Operation:
    """Something polled that a call comes to.

    Attributes
    ----------
    name : str
        Such as ``"all_reduce"``.
    nbytes : int
        Of this rank's larger array.
    start : callable
        Gives its steps.
    keep : tuple
        What must live until it is done.
    ordered : bool
        Whether all ranks issue it in one order (collectives), so that it must wait for those before
        it; point-to-point need not.
    """

    name: str
    nbytes: int
    start: Callable[[], Steps]
    keep: tuple[object, ...] = ()
    ordered: bool = True


_everyone: "weakref.WeakSet[CallEngine]" = weakref.WeakSet()
_everyone_lock = threading.Lock()


def everyone() -> list["CallEngine"]:
    """Return the calls of every communicator of this process."""
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
        Of the communicator.
    backend : Backend
        Its ranks.
    settings : Settings
        Deadline and slow-call threshold.

    Attributes
    ----------
    translators : list of callable
        Each returns a library's error as one of hpccomm's, or None if it is not that library's.
    releases : list of callable
        Told, once, that the communicator has failed: each releases what would wait for a peer.
    untold : BaseException or None
        A failure that the watchdog found, as long as no call has raised it.
    """

    def __init__(self, name: str, backend: Backend, settings: Settings) -> None:
        self.translators: list[Callable[[Exception], HpccommError | None]] = [backend.translate]
        self.releases: list[Callable[[], None]] = [backend.abandon]
        self.untold: BaseException | None = None
        self.name = name
        self.timeout = settings.timeout
        self.slow_call = settings.slow_call
        self.stats = Stats()
        self.pre_hooks: Hooks[Hook] = Hooks()
        self.post_hooks: Hooks[Hook] = Hooks()
        self.abort_hooks: Hooks[AbortHook] = Hooks()
        self.sequence = 0
        self.gate = Gate(crowded=backend.crowded)
        self.backend = backend
        self._closed = ""  # why no call is taken any more
        self._busy = threading.Lock()
        self._failing = threading.Lock()
        self._engine = engine(threaded=not backend.threaded)
        self._lane: Lane = deque()
        self._under_way: set[Task] = set()
        self._label: Label = ("", 0)
        self._station = Station(self._describe_blocked, backend.end_job)
        watch(self._station)
        with _everyone_lock:
            _everyone.add(self)
        if backend.threaded:
            logger.info("%s: %s", name, backend.threaded)

    # Who may call.

    def enter(self) -> None:
        """Begin a call. `leave` must follow.

        Raises
        ------
        UsageError
            If another thread is in one, or the communicator is finalized.
        CommunicatorAborted
            If it has failed.
        """
        if not self._busy.acquire(False):
            raise UsageError(
                f"communicator {self.name!r} is in use by another thread; one thread at a time may "
                "call it (dup() gives a communicator of its own to each)"
            )
        if self._closed or self.gate.error is not None:
            self._busy.release()
            self._refuse()

    def leave(self) -> None:
        """End a call."""
        self._busy.release()

    def _refuse(self) -> NoReturn:
        failure = self.gate.error
        if failure is not None:
            self.untold = None
            raise self._aborted(failure.__cause__ or failure) from failure.__cause__
        raise UsageError(f"communicator {self.name!r} {self._closed}; make a new one")

    def close(self, why: str) -> None:
        """Take no more calls."""
        self._closed = why

    @property
    def closed(self) -> str:
        """Why no call is taken any more; empty while they are."""
        return self._closed

    # Running.

    def block(
        self,
        label: Label,
        tally: Tally,
        run: Run,
        send: Buffer,
        recv: Buffer,
        timeout: float,
    ) -> None:
        """Run a call that blocks in the backend's library, beside the watchdog.

        This is the shortest way through the library; every statement counts.
        """
        if self._lane:
            self._drain(timeout, self._is_drained)
        self.sequence += 1
        if self.pre_hooks.registered:
            self.pre_hooks(self._info(*label))
        self._label = label
        station = self._station
        begin = perf_counter()
        station.armed = (begin, timeout)
        try:
            run(send, recv)
        except BaseException as error:  # noqa: BLE001 (raised again)
            station.armed = None
            self._failed(error, *label, perf_counter() - begin, (send, recv))
        station.armed = None
        elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += label[1]
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self._report(*label, self.sequence, elapsed, None)

    def run(
        self,
        label: Label,
        tally: Tally,
        start: Start,
        send: Buffer,
        recv: Buffer,
        keep: object,
        timeout: float,
        *,
        ordered: bool = True,
    ) -> None:
        """Run the polled ``start(send, recv)`` and wait for it.

        Small arrays come this way: what only a call that waits long needs is made only then.
        """
        if ordered and self._lane:
            self._drain(timeout, self._is_drained)
        self.sequence += 1
        sequence = self.sequence
        if self.pre_hooks.registered:
            self.pre_hooks(self._info(*label))
        begin = perf_counter()
        steps: Steps | None = None
        try:
            steps = self._together(start(send, recv))
            if not spun(steps):
                expired = self._expired(*label, sequence, timeout)
                drive(steps, timeout=timeout, gate=self.gate, expired=expired)
        except BaseException as error:  # noqa: BLE001 (raised again)
            elapsed = perf_counter() - begin
            harmless = _harmless(error, ordered)
            self._failed(error, *label, elapsed, (start, keep, steps), harmless=harmless)
        elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += label[1]
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self._report(*label, sequence, elapsed, None)

    def enqueue(
        self,
        label: Label,
        tally: Tally,
        launch: Launch,
        send: int,
        recv: int,
        queue: Queue,
        keep: object,
        timeout: float,
        flights: PendingCalls,
        *,
        apart: bool = False,
    ) -> None:
        """Put a call on a device's stream, and return.

        Its seconds are the host's. `flights` remembers it until it is done; with `apart`, `launch` sees
        to that.
        """
        self.sequence += 1
        if self.pre_hooks.registered:
            self.pre_hooks(self._info(*label))
        begin = perf_counter()
        flights.entered = (begin, timeout, label, self.sequence)
        try:
            stream, holder = queue
            launch(send, recv, stream)
            flights.entered = None
            if not apart:
                flights.note(stream, holder, keep, begin, timeout, label, self.sequence)
        except BaseException as error:  # noqa: BLE001 (raised again)
            flights.entered = None
            self._not_issued(error, label, perf_counter() - begin, keep, queue[0])
        elapsed = perf_counter() - begin
        tally.calls += 1
        tally.nbytes += label[1]
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self._report(*label, self.sequence, elapsed, None)

    def _not_issued(
        self, error: BaseException, label: Label, elapsed: float, keep: object, stream: int
    ) -> NoReturn:
        """Raise what kept a call from being put on a stream.

        If the watchdog released it from the library, that is what the watchdog found. What a captured
        call is refused for is harmless: nothing of it has run.
        """
        failure = self.gate.error
        if failure is not None and isinstance(error, Exception):
            error = failure.__cause__ or failure
        harmless = isinstance(error, UsageError) and not streams.undisturbed(stream)
        self._failed(error, *label, elapsed, keep, harmless=harmless)

    def repeated(
        self,
        label: Label,
        tally: Tally,
        launch: Launch,
        send: int,
        recv: int,
        current: Callable[[], Queue],
        keep: object,
        timeout: float,
        flights: PendingCalls,
        *,
        apart: Callable[[], bool],
        otherwise: Callable[[], Any],
        result: Any,
    ) -> Callable[[], Any]:
        """Return what does `enqueue` again and again, a call of its own each time, in one step.

        A plan may cost a microsecond: nothing is looked up that can be known before.

        Parameters
        ----------
        label, tally, launch, send, recv, keep, timeout, flights
            As of `enqueue`.
        current : callable
            Gives the stream.
        apart : callable
            Whether calls go elsewhere at present.
        otherwise : callable
            The long way, for when it cannot.
        result : object
            What it returns.
        """
        acquire, release, gate, note = (
            self._busy.acquire,
            self._busy.release,
            self.gate,
            flights.note,
        )
        pre, post, nbytes = self.pre_hooks, self.post_hooks, label[1]

        def call() -> Any:
            if pre.registered or post.registered or apart():
                return otherwise()
            if gate.error is not None or self._closed or not acquire(False):
                return otherwise()  # which says what is wrong
            try:
                self.sequence = sequence = self.sequence + 1
                begin = perf_counter()
                flights.entered = (begin, timeout, label, sequence)
                stream, holder = current()
                try:
                    launch(send, recv, stream)
                    flights.entered = None
                    note(stream, holder, keep, begin, timeout, label, sequence)
                except BaseException as error:  # noqa: BLE001 (raised again)
                    flights.entered = None
                    self._not_issued(error, label, perf_counter() - begin, keep, stream)
                tally.calls += 1
                tally.nbytes += nbytes
                tally.seconds += perf_counter() - begin
                return result
            finally:
                release()

        return call

    def operate(self, operation: Operation, timeout: float) -> None:
        """Run a polled operation that is no call of a recipe, and wait for it."""
        label = (operation.name, operation.nbytes)
        tally, keep, ordered = self.stats.tally(*label), operation.keep, operation.ordered

        def start(_send: Buffer, _recv: Buffer) -> Steps:
            return operation.start()

        self.run(label, tally, start, None, None, keep, timeout, ordered=ordered)

    def _together(self, steps: Steps) -> Steps:
        """Move asynchronous operations on as well, where no thread does."""
        if self._engine.threaded:
            return steps
        return self._beside(steps)

    def _beside(self, steps: Steps) -> Steps:
        for moved in steps:
            yield self._engine.turn() or moved

    def start(self, operation: Operation, timeout: float, result: Any) -> Work:
        """Start a polled operation that goes on by itself."""
        self.sequence += 1
        sequence = self.sequence
        if self.pre_hooks.registered:
            self.pre_hooks(self._info(operation.name, operation.nbytes))
        expired = self._expired(operation.name, operation.nbytes, sequence, timeout)

        def ended(error: BaseException | None, elapsed: float) -> BaseException | None:
            self._under_way.discard(task)
            told = error
            if error is not None:
                if not _harmless(error, operation.ordered):
                    self._note_failure(error, (operation, task))
                told = self._as_told(
                    error,
                    operation.name,
                    operation.nbytes,
                    sequence,
                    elapsed,
                    harmless=_harmless(error, operation.ordered),
                )
            self._ended(operation.name, operation.nbytes, sequence, told, elapsed)
            return told

        task = Task(operation.start, self.gate, timeout, expired, ended)
        self._under_way.add(task)
        if not (operation.ordered and self._lane):
            # Begun here and now: a message that is sent later must not overtake it.
            task.turn()
        if not task.over:
            self._engine.submit(self._lane if operation.ordered else deque(), task)

        def gave_up(limit: float) -> CommunicationError:
            error = self._expired(operation.name, operation.nbytes, sequence, limit)(
                perf_counter() - task.started
            )
            self._note_failure(error, (operation, task))
            return error

        return Work(
            self._engine,
            task,
            result=result,
            keep=operation.keep,
            timeout=timeout,
            gave_up=gave_up,
        )

    def _drain(self, timeout: float, drained: Callable[[], bool]) -> None:
        """Wait until `drained` says that what must be over is over."""
        name = "wait for asynchronous calls"
        try:
            wait(
                drained,
                timeout=timeout,
                gate=self.gate,
                expired=self._expired(name, 0, self.sequence, timeout),
            )
            if self.gate.error is not None:  # one of them failed
                raise self.gate.error
        except CommunicationError as error:
            self._failed(error, name, 0, 0.0, None)

    def _is_drained(self) -> bool:
        self._engine.turn()
        return not self._lane

    def _is_idle(self) -> bool:
        self._engine.turn()
        return not self._under_way

    @contextmanager
    def beside_watchdog(self, name: str) -> Iterator[None]:
        """Have the watchdog look while the backend blocks in something that is no call."""
        self._label = (name, 0)
        begin = perf_counter()
        try:
            with beside(self._station, self.timeout):
                yield
        except Exception as error:  # noqa: BLE001 (raised again)
            told = self._as_told(error, name, 0, self.sequence, perf_counter() - begin)
            raise told from error if told is not error else error.__cause__

    @contextmanager
    def told(self, name: str, nbytes: int) -> Iterator[None]:
        """Give a `CommunicationError` of the block the call's facts."""
        begin = perf_counter()
        try:
            yield
        except CommunicationError as error:
            elapsed = perf_counter() - begin
            raise self._as_told(error, name, nbytes, self.sequence, elapsed) from error.__cause__

    def finish(self) -> None:
        """Wait until all asynchronous calls of this communicator are done."""
        if self._under_way:
            self._drain(self.timeout, self._is_idle)

    def drive(self, name: str, steps: Steps) -> None:
        """Wait for steps that are part of a call, under the communicator's deadline."""
        try:
            drive(
                self._together(steps),
                timeout=self.timeout,
                gate=self.gate,
                expired=self._expired(name, 0, self.sequence, self.timeout),
            )
        except BaseException as error:  # noqa: BLE001 (raised again)
            self._failed(error, name, 0, 0.0, steps)

    # What is told of calls.

    def _info(
        self,
        name: str,
        nbytes: int,
        sequence: int | None = None,
        elapsed: float | None = None,
        error: BaseException | None = None,
    ) -> CallInfo:
        number = self.sequence if sequence is None else sequence
        return CallInfo(self.name, self.backend.rank, number, name, nbytes, elapsed, error)

    def _ended(
        self,
        name: str,
        nbytes: int,
        sequence: int,
        error: BaseException | None,
        elapsed: float,
    ) -> None:
        tally = self.stats.tally(name, nbytes)
        tally.calls += 1
        tally.nbytes += nbytes
        tally.seconds += elapsed
        if elapsed > self.slow_call or self.post_hooks.registered:
            self._report(name, nbytes, sequence, elapsed, error)

    def _report(
        self, name: str, nbytes: int, sequence: int, elapsed: float, error: BaseException | None
    ) -> None:
        if elapsed > self.slow_call:
            logger.warning(
                "slow call: %s took %.3f s", self._described(name, nbytes, sequence), elapsed
            )
        self.post_hooks(self._info(name, nbytes, sequence, elapsed, error))

    def _described(self, name: str, nbytes: int, sequence: int) -> str:
        backend = self.backend
        return (
            f"{name} (call {sequence} of communicator {self.name!r}, "
            f"rank {backend.rank} of {backend.size}, {nbytes} bytes)"
        )

    def _describe_blocked(self) -> str:
        return self._described(*self._label, self.sequence)

    def _expired(
        self, name: str, nbytes: int, sequence: int, timeout: float
    ) -> Callable[[float], CommunicationError]:
        return lambda elapsed: self.overdue(name, nbytes, sequence, timeout, elapsed)

    def overdue(
        self,
        name: str,
        nbytes: int,
        sequence: int,
        timeout: float,
        elapsed: float,
        causes: str = "A rank did not take part or is late",
    ) -> CommunicationError:
        """Return the error of a call whose deadline has passed, with what may have kept it."""
        return CollectiveTimeout(
            f"{self._described(name, nbytes, sequence)} was not done after {elapsed:.3g} s; "
            f"its deadline is {timeout:g} s. {causes}",
            communicator=self.name,
            rank=self.backend.rank,
            sequence=sequence,
            operation=name,
            nbytes=nbytes,
            elapsed=elapsed,
        )

    # Failure.

    def _failed(
        self,
        error: BaseException,
        name: str,
        nbytes: int,
        elapsed: float,
        keep: object,
        *,
        harmless: bool = False,
    ) -> NoReturn:
        """Note the failure of the call under way, and raise it as an error of the tree."""
        self.untold = None
        if not harmless:
            self._note_failure(error, keep)
        told = self._as_told(error, name, nbytes, self.sequence, elapsed, harmless=harmless)
        self._ended(name, nbytes, self.sequence, told, elapsed)
        if told is error:
            raise error
        raise told from error

    def _as_told(
        self,
        error: BaseException,
        name: str,
        nbytes: int,
        sequence: int,
        elapsed: float,
        *,
        harmless: bool = False,
    ) -> BaseException:
        """Return an error of a call as its caller gets it: of the tree, with the call's facts."""
        told: BaseException | None
        if error is self.gate.error:  # another thread, or another call, ended this one
            told = self._aborted(error.__cause__ or error)
        elif isinstance(error, BufferMismatch) and not harmless:
            told = RankMismatch(
                f"{self._described(name, nbytes, sequence)}: {error}. "
                "The calls of the ranks do not fit each other"
            )
        elif isinstance(error, CommunicationError) and error.operation is None:
            error.args = (f"{self._described(name, nbytes, sequence)}: {error}",)
            told = error
        else:
            told = self._translated(error) if isinstance(error, Exception) else None
        if told is None:
            return error
        if isinstance(told, CommunicationError):
            told.communicator, told.rank = self.name, self.backend.rank
            told.sequence, told.operation = sequence, name
            told.nbytes, told.elapsed = nbytes, elapsed
        return told

    def _translated(self, error: Exception) -> HpccommError | None:
        for translate in self.translators:
            told = translate(error)
            if told is not None:
                return told
        return None

    def _note_failure(self, error: BaseException, keep: object) -> None:
        lifetime.keep(keep)
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Mark the communicator as failed: its waits end, later calls are refused. Local."""
        with self._failing:  # the watchdog may come to it at the same time
            if self.gate.error is not None:
                return
            aborted = self._aborted(error)
            aborted.__cause__ = error
            self.gate.shut(aborted)
        for release in self.releases:
            try:
                release()
            except Exception:  # the others must still be released
                logger.exception("communicator %r could not be ended cleanly", self.name)
        for hook in self.abort_hooks:
            try:
                hook(error)
            except Exception:  # the other hooks must still be told
                logger.exception("an abort hook of communicator %r failed", self.name)

    def disown(self) -> None:
        """Refuse all use in a fork of the process: MPI is lost there, and no peer knows of it.

        No hook is told, since nothing has happened to the communicator where it belongs.
        """
        cause = RuntimeError("it belongs to the process that this one was forked from")
        aborted = self._aborted(cause)
        aborted.__cause__ = cause
        # Who holds the gate sees it; but where that had been shut before, this is the reason now.
        self.gate.shut(aborted)
        self.gate = Gate(aborted)
        for task in self._under_way:
            task.error, task.over = aborted, True

    def _aborted(self, error: BaseException) -> CommunicatorAborted:
        return CommunicatorAborted(
            f"communicator {self.name!r} has failed and takes no more calls "
            f"({type(error).__name__}: {error}); make a new one",
            communicator=self.name,
            rank=self.backend.rank,
        )


def _harmless(error: BaseException, ordered: bool) -> bool:
    """Whether the communicator can go on: a message of another size was taken, and that is all."""
    return isinstance(error, BufferMismatch) and not ordered
