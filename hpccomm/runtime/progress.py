"""The progress engine: moves asynchronous operations on, without help of the program.

A process has one engine for backends that allow calls from any thread, and one for the others. An engine holds
the unfinished operations. A program's thread that waits for one operation advances all of them. Without a waiting
thread, the engine's own thread does so, if the backend allows calls from any thread. Operations of one queue run
one after the other, in their order of insertion, which is the order in which every rank calls them. Messages are
in no queue: each of them has begun.

Waking the engine's thread costs more than a small operation, and the thread then competes with the waiting thread
for the interpreter. So it leaves a small operation to the thread that started it, and takes the operation over
some milliseconds later. Until then, and for a while after the last operation, it polls by itself
and need not be woken.

`engine`, `callpath` and `work` start an `Operation` as a `Task`; records and messages show its label. The lanes,
plans and groups make the operations. `digested` sums up the calls of a communicator, so that ranks can compare them.
"""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hpccomm.contracts.signature import CallFingerprint, joined, with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError
from hpccomm.runtime.service import ExitStep, ServiceThread, after_fork, at_exit, keep
from hpccomm.runtime.waiting import MOVED_SPINS, SPINS, Gate, Patience, at_once, over_within

FINALIZE = "finalize"
"""The call that ends a communicator."""

DIGEST = 0x3FFFFFF
"""Mask of the 26 bits of a digest. Nine times a digest is still a small integer, which Python computes fastest."""


COMPARED = 0x3FF
"""Mask of a call's number. If all these bits are set, which is so in one call of 1,024, the ranks compare digests."""


def digested(digest: int, fingerprint: int) -> int:
    """Return the digest of a communicator's calls after one more call.

    Different digests stay different after equal further calls. The functions of `callpath` contain
    this expression.
    """
    return (digest * 9 ^ fingerprint & DIGEST) & DIGEST


@dataclass(slots=True)
class Operation:
    """A polled operation that has not begun.

    Attributes
    ----------
    label : CallFingerprint
        The call.
    start : callable
        Begins the operation and returns its steps.
    keep : tuple
        Objects that must live until the operation is done.
    ordered : bool
        Whether all ranks issue the operation in one order, so that it must wait for earlier ordered
        ones: true for collectives, false for point-to-point calls.
    """

    label: CallFingerprint
    start: Callable[[], Steps]
    keep: tuple[object, ...] = ()
    ordered: bool = True


def as_one(operations: tuple[Operation, ...], async_op: bool = False) -> Operation:
    """Return one operation that carries out all of `operations` together."""
    ordered = [each.label for each in operations if each.ordered and each.label.values]
    nbytes = sum(each.label.nbytes for each in operations)
    return Operation(
        joined(nbytes, ordered, async_op) if ordered else _messages(nbytes, operations),
        lambda: together(operations),
        tuple(each.keep for each in operations),
        ordered=any(each.ordered for each in operations),
    )


def _messages(nbytes: int, operations: tuple[Operation, ...]) -> CallFingerprint:
    """Return the label of a batch of messages, with the peers that they go to or come from."""
    each = [operation.label for operation in operations]
    peers = tuple(sorted({peer for label in each for peer in label.peers}))
    ends = tuple({end: None for label in each for end in label.ends})
    calls = [{"operation": one.name, **one.values, "nbytes": one.nbytes} for one in each]
    return with_peers("batch", nbytes, peers)._replace(ends=ends, values={"calls": calls})


def together(operations: tuple[Operation, ...]) -> Steps:
    """Return the steps that run operations at the same time, but the ordered ones one after the other."""
    ordered = [each.start for each in operations if each.ordered]
    under_way = [each.start() for each in operations if not each.ordered]
    return at_once([*under_way, _in_turn(ordered)] if ordered else under_way)


def _in_turn(starts: list[Callable[[], Steps]]) -> Steps:
    for start in starts:
        yield from start()


logger = logging.getLogger("hpccomm")

SMALL_SECONDS = 0.002
"""Seconds for which the engine's thread leaves a small operation to the thread that started it."""

WAITED_SECONDS = 0.005
"""Seconds between two looks of the engine's thread while a waiting thread moves the tasks on."""

LINGER_SECONDS = 0.1
"""Seconds after the last operation during which the engine's thread still polls."""


NOBODY, ANY_OF, WAIT, CALL = range(4)
"""Who waits for a task: nobody; a thread that waits for any of several tasks; a thread that waits for this task; a
call, during which the communicator takes no other calls."""

Callback = Callable[[], object]


class Task(ABC):
    """One operation under way.

    Parameters
    ----------
    gate : Gate
        The gate of the operation's communicator.
    timeout : float
        Seconds from `started` to the deadline.
    started : float
        Time of the start, by ``time.perf_counter``.
    small : bool
        Whether it is usually over before the engine's thread could take part.

    Attributes
    ----------
    gate, timeout, started, small
        The parameters.
    error : BaseException or None
        The failure, in the form that waiters raise; None without one.
    over : bool
        Whether the task has ended, also by a failure.
    awaited : int
        Who waits for it without a limit: `NOBODY`, `ANY_OF`, `WAIT` or `CALL`.
    seen : bool
        Whether the error was delivered to the program.
    queue : deque of Task or None
        The queue that the task was put into; None for a message.
    steps : Steps or None
        The steps, once the task has begun.
    then : list of callable
        Functions to call at the task's end; see `tell`.
    """

    __slots__ = (
        "awaited", "error", "gate", "over", "queue", "seen", "small", "started", "steps", "then", "timeout",
    )  # fmt: skip

    def __init__(self, gate: Gate, timeout: float, started: float, small: bool = False) -> None:
        self.gate = gate
        self.timeout = timeout
        self.started = started
        self.small = small
        self.queue: TaskQueue | None = None
        self.steps: Steps | None = None
        self.error: BaseException | None = None
        self.over = self.seen = False
        self.awaited = NOBODY
        self.then: list[Callback] = []

    @abstractmethod
    def begin(self) -> Steps:
        """Begin the task, at its turn, and return its steps."""

    @abstractmethod
    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of the passed deadline. None lets the task go on without a deadline."""

    @abstractmethod
    def ended(self, error: BaseException | None) -> BaseException | None:
        """Take note of the task's end, once, and return the error in the form that waiters raise.

        `error` is None if the task succeeded; then its arrays are dropped.
        """

    def spin(self) -> bool:
        """Move the task on for as long as a wait spins; return whether it is over. Only `turn` checks the deadline."""
        try:
            if self.gate.error is not None:
                raise self.gate.error
            if self.steps is None:
                self.steps = self.begin()
            left = SPINS
            for moved in self.steps:
                left -= MOVED_SPINS if moved else 1
                if left <= 0:
                    return False
            self.end(None)
        except Exception as error:  # noqa: BLE001 (a waiter raises it)
            self.end(error)
        except BaseException as error:  # such as Ctrl-C, which is not this task's alone
            self.end(error)
            raise
        return True

    def turn(self) -> bool:
        """Take one step of the task, and check its deadline; return whether anything moved."""
        try:
            if self.gate.error is not None:
                raise self.gate.error
            if self.steps is None:
                self.steps = self.begin()
            moved = next(self.steps, None)
            if moved is None:
                self.end(None)
                return True
            late = self.late()
            if late is not None:
                raise late
            return moved
        except Exception as error:  # noqa: BLE001 (a waiter raises it)
            self.end(error)
            return True
        except BaseException as error:  # such as Ctrl-C, which is not this task's alone
            self.end(error)
            raise

    def late(self) -> CommunicationError | None:
        """Return the error of the deadline if that has passed and the task must not go on; else None."""
        elapsed = time.perf_counter() - self.started
        if elapsed <= self.timeout:
            return None
        error = self.expired(elapsed)
        if error is None:
            self.timeout = math.inf
        return error

    def keep_deadline(self) -> None:
        """End all tasks of the communicator if this task's deadline has passed in the queue.

        Once the task has begun, `turn` checks the deadline.
        """
        if self.queue and self.steps is None and not self.over and (late := self.late()):
            self.fail(late)

    def fail(self, error: CommunicationError) -> None:
        """End all tasks of the task's communicator with `error`."""
        self.gate.shut(error)

    def end(self, error: BaseException | None) -> None:
        """End the task, with an error or None, and call what waits for its end."""
        try:
            error = self.ended(error)
        except BaseException as failure:  # noqa: BLE001 (a user's hook; the task must end)
            error = error or failure
        if error is None:
            self.steps = None
        self.error, self.over = error, True
        if self.then:
            self.tell()

    def tell(self) -> None:
        """Call each function that waits for the task's end, once. From any thread; their exceptions are logged."""
        while self.then:
            try:
                call = self.then.pop(0)
            except IndexError:  # another thread was faster
                return
            try:
                call()
            except Exception:  # the task has ended, and this thread moves others
                logger.exception("a function that waits for an asynchronous call failed")


TaskQueue = deque[Task]
"""Tasks that run one after the other."""


@contextmanager
def awaiting(tasks: Iterable[Task], who: int) -> Iterator[None]:
    """Mark tasks during the block as awaited by `who`, which other threads and ranks see."""
    each = list(tasks)
    for task in each:
        task.awaited = who
    try:
        yield
    finally:
        for task in each:
            task.awaited = NOBODY


class ProgressEngine:
    """Moves tasks on.

    Parameters
    ----------
    threaded : bool
        Whether a thread of the engine advances tasks that no thread waits for.

    Attributes
    ----------
    messages : dict of Task to object
        The messages under way, in the order of their start. A caller adds each message that has begun; the task
        removes itself at its end.
    parked : bool
        Whether the engine's thread sleeps until it is woken: then call `wake` after adding a message.
    """

    def __init__(self, *, threaded: bool) -> None:
        self.threaded = threaded
        self._queues: list[TaskQueue] = []
        self.messages: dict[Task, object] = {}
        # Empty while a thread advances tasks. A statement without calls takes the item, as Ctrl-C comes after calls.
        self._idle = {0: True}
        self._lock = threading.Lock()  # guards what follows, and _queues
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._stopping = False
        self.parked = True
        self._thread: threading.Thread | None = None

    def submit(self, queue: TaskQueue, task: Task) -> None:
        """Put a task at the end of a queue. Does not block."""
        with self._lock:
            task.queue = queue
            queue.append(task)
            if len(queue) == 1:
                self._queues.append(queue)
            if self.parked or not task.small:
                self._wake()

    def wake(self) -> None:
        """Wake the parked thread, since there is a message."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        """Wake the thread, or start it. The caller holds the lock."""
        if self.threaded and self._thread is None and not self._stopping:
            self._thread = ServiceThread(target=self._run, name="hpccomm", daemon=True)
            self._thread.start()
        else:
            self._changed.notify()

    def hurry(self, task: Task) -> None:
        """Have the engine's thread advance a task at once, since no thread is expected to wait for it."""
        with self._changed:
            task.small = False
            self._changed.notify()

    def turn(self) -> bool:
        """Move messages and every queue's first task on; return whether anything moved. Never blocks."""
        try:
            del self._idle[0]
        except KeyError:  # another thread is at it
            return False
        moved = False
        try:
            for queue in tuple(self._queues):
                moved |= self._move(queue, Task.turn)
            for task in tuple(self.messages):
                moved |= task.turn()
            return moved
        finally:
            self._idle[0] = True

    def _move(self, queue: TaskQueue, move: Callable[[Task], bool]) -> bool:
        """Call ``move`` on a queue's first task and return the result; take the task off the queue if it is over."""
        first = queue[0]
        try:
            return move(first)
        finally:
            if first.over:
                with self._lock:
                    queue.popleft()
                    if not queue:
                        self._queues.remove(queue)

    def wait(self, task: Task, seconds: float) -> bool:
        """Wait until `task` is over, for at most `seconds`; return whether it is.

        The task holds its error, if it failed.
        """

        def poll() -> bool:
            if not (task.over or (self.turn() and task.over)):
                task.keep_deadline()
            return task.over

        task.awaited = WAIT if seconds == math.inf else NOBODY
        try:
            with self.attended():
                return over_within(seconds, poll)
        finally:
            task.awaited = NOBODY

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Have the engine's thread rest during the block, since the block moves tasks on."""
        with self._lock:  # `_changed` is written in Python: Ctrl-C may come inside its functions
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1

    def spun(self, task: Task) -> bool:
        """Move a task and those before it in its queue on, for as long as a wait spins; return whether it is over.

        A small task is over before the engine's thread need know of the wait. Other queues do not move meanwhile.
        """
        try:
            del self._idle[0]
        except KeyError:  # another thread is at it
            return task.over
        try:
            queue = task.queue
            if queue is None:
                return task.over or task.spin()
            while not task.over and self._move(queue, Task.spin):
                pass
            return task.over
        finally:
            self._idle[0] = True

    def _run(self) -> None:
        patience = Patience()
        since = time.perf_counter()  # when there was last something to do
        while True:
            with self._changed:
                if self._stopping:
                    return
                now = time.perf_counter()
                # Set before looking for messages, so that a message that comes now wakes this thread.
                self.parked = True
                if self._waiters:
                    # A waiter that leaves does not wake this thread: that would cost it more than a short wait.
                    pause: float | None = WAITED_SECONDS
                elif not (self._queues or self.messages):
                    pause = SMALL_SECONDS if now - since < LINGER_SECONDS else None
                else:
                    since, pause = now, self._grace(now)
                self.parked = pause is None
                if pause != 0.0:
                    # The thread parks here while there is nothing to do; it waits for no peer.
                    self._changed.wait(pause)
                    self.parked = False
                    patience.reset()
                    continue
            if self.turn():
                patience.reset()
            else:
                patience.pause()

    def _grace(self, now: float) -> float:
        """Return the seconds for which the operations are still left to the thread that started them."""
        first = [*(queue[0] for queue in self._queues), *tuple(self.messages)]
        if not all(task.small for task in first):
            return 0.0
        oldest = min((task.started for task in first), default=now)
        return max(0.0, oldest + SMALL_SECONDS - now)

    def stop(self) -> None:
        """End the thread. Unfinished tasks go on only while the program waits for them.

        Their arrays are kept for the life of the process.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._queues or self.messages:
            keep(self)  # with the arrays of unfinished operations


_engines: dict[bool, ProgressEngine] = {}


def progress_engine(threaded: bool) -> ProgressEngine:
    """Return the process's engine: the one with a thread, or the one driven by waits only."""
    engine = _engines.get(threaded)
    if engine is None:  # threads that arrive at the same time get the same engine
        engine = _engines.setdefault(threaded, ProgressEngine(threaded=threaded))
    return engine


def stop() -> None:
    """End the threads of all engines."""
    for each in _engines.values():
        each.stop()


at_exit(ExitStep.THREADS, stop)
after_fork(_engines.clear)
