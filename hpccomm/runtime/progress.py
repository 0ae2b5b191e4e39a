"""The progress engine: moves asynchronous operations on, without help of the program.

One engine a process holds the unfinished operations. A thread that waits for one advances them all.
Without a waiting thread, a thread of its own does so, if the backend allows calls from any thread.
Operations of one queue run one after the other, in their order of insertion, which is the order in
which every rank calls them.

Waking the thread costs more than a small operation, and then it competes with the waiting thread
for the interpreter. So it leaves a small operation to the thread that started it, and takes it over
some milliseconds later. Until then, and for a while after the last operation, it polls by itself
and need not be woken. `CallEngine` starts operations here.
"""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError
from hpccomm.runtime.lifetime import ExitStep, ServiceThread, after_fork, at_exit, keep
from hpccomm.runtime.waiting import SPINS, Expired, Gate, Patience, wait

logger = logging.getLogger("hpccomm")

SMALL_SECONDS = 0.002
"""Seconds for which a small operation is left to the thread that started it."""

LINGER_SECONDS = 0.1
"""So long after the last operation the thread still looks by itself."""


Callback = Callable[[], object]


class Task(ABC):
    """One operation under way.

    Parameters
    ----------
    gate : Gate
        Of its communicator.
    timeout : float
        Seconds from `started` on.
    started : float
        When it was started, as ``time.perf_counter`` counts.
    small : bool
        Whether it is usually over before the thread could take part.

    Attributes
    ----------
    gate, timeout, started, small
        The parameters.
    error : BaseException or None
        Its failure, in the form that waiters raise; None without one.
    over : bool
        Whether it has ended, also by a failure.
    awaited : bool
        Whether a thread waits for it.
    seen : bool
        Whether the error was delivered.
    queue : deque of Task
        Where it was put.
    then : list of callable
        Functions to call at its end; see `tell`.
    """

    __slots__ = (
        "_steps", "awaited", "error", "gate", "over", "queue", "seen", "small", "started", "then", "timeout",
    )  # fmt: skip

    def __init__(self, gate: Gate, timeout: float, started: float, *, small: bool = False) -> None:
        self.gate = gate
        self.timeout = timeout
        self.started = started
        self.small = small
        self.queue: TaskQueue = _NO_QUEUE
        self._steps: Steps | None = None
        self.error: BaseException | None = None
        self.over = self.awaited = self.seen = False
        self.then: list[Callback] = []

    @abstractmethod
    def begin(self) -> Steps:
        """Return its steps, when its turn has come."""

    @abstractmethod
    def expired(self, elapsed: float) -> CommunicationError | None:
        """Return the error of a deadline that has passed; None goes on without one."""

    @abstractmethod
    def ended(self, error: BaseException | None, elapsed: float) -> BaseException | None:
        """Take note of its end, once: the error (or None) and the seconds it took.

        Returns the error in the form that waiters raise.
        """

    @abstractmethod
    def forget(self) -> None:
        """Drop its arrays: it is done."""

    def turn(self) -> bool:
        """Move on as far as it goes; return whether anything moved."""
        try:
            if self.gate.error is not None:
                raise self.gate.error
            if self._steps is None:
                self._steps = self.begin()
            moved = next(self._steps, None)
            if moved is None:
                self._end(None)
                return True
            if self.timeout != math.inf:
                elapsed = time.perf_counter() - self.started
                if elapsed > self.timeout:
                    error = self.expired(elapsed)
                    if error is not None:
                        raise error
                    self.timeout = math.inf
            return moved
        except Exception as error:  # noqa: BLE001 (a waiter raises it)
            self._end(error)
            return True
        except BaseException as error:  # such as Ctrl-C, which is not this task's alone
            self._end(error)
            raise

    def _end(self, error: BaseException | None) -> None:
        try:
            self.error = self.ended(error, time.perf_counter() - self.started)
        except BaseException as failure:  # noqa: BLE001 (a user's hook; the task must end)
            self.error = error or failure
        self.over = True
        if self.error is None:
            self._steps = None
            self.forget()
        if self.then:
            self.tell()

    def tell(self) -> None:
        """Call what waits for its end, each once. From any thread; never raises an exception of theirs."""
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

_NO_QUEUE: TaskQueue = deque()


class ProgressEngine:
    """Moves tasks on.

    Parameters
    ----------
    threaded : bool
        Whether a thread advances them without a waiter.
    """

    def __init__(self, *, threaded: bool) -> None:
        self.threaded = threaded
        self._queues: list[TaskQueue] = []
        self._turn = threading.Lock()  # held by the thread that advances tasks
        self._lock = threading.Lock()  # guards what follows, and _queues
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._stopping = False
        self._parked = False  # whether the thread waits until somebody wakes it
        self._thread: threading.Thread | None = None

    def submit(self, queue: TaskQueue, task: Task) -> None:
        """Put a task at the end of a queue. Does not block."""
        with self._lock:
            task.queue = queue
            queue.append(task)
            if len(queue) == 1:
                self._queues.append(queue)
            if self.threaded and self._thread is None and not self._stopping:
                self._thread = ServiceThread(target=self._run, name="hpccomm", daemon=True)
                self._thread.start()
            elif self._parked or not task.small:
                self._changed.notify()

    def hurry(self, task: Task) -> None:
        """Have the thread advance a task at once, since no wait is expected."""
        with self._changed:
            task.small = False
            self._changed.notify()

    def turn(self) -> bool:
        """Move every queue's first task on; return whether anything moved. Never blocks."""
        if not self._turn.acquire(blocking=False):
            return False  # another thread is at it
        try:
            moved = False
            for queue in tuple(self._queues):
                moved |= self._move(queue)
            return moved
        finally:
            self._turn.release()

    def _move(self, queue: TaskQueue) -> bool:
        """Move a queue's first task on; return whether it moved."""
        first = queue[0]
        try:
            return first.turn()
        finally:
            if first.over:
                self._leave(queue)

    def _leave(self, queue: TaskQueue) -> None:
        with self._lock:
            queue.popleft()
            if not queue:
                self._queues.remove(queue)

    def wait(self, task: Task, timeout: float, expired: Expired) -> None:
        """Wait until `task` is over.

        Raises
        ------
        CommunicationError
            If `timeout` passes; what became of the task is in the task.
        """
        if self._spun(task):
            return

        def poll() -> bool:
            return task.over or (self.turn() and task.over)

        with self._changed:
            self._waiters += 1
        task.awaited = True
        try:
            wait(poll, timeout=timeout, gate=Gate(), expired=expired)
        finally:
            task.awaited = False
            with self._changed:
                self._waiters -= 1
                if self._queues:
                    self._changed.notify()

    def _spun(self, task: Task) -> bool:
        """Move tasks on for as long as a wait spins; return whether this one is over.

        A small one is over before the thread need know that somebody waits.
        """
        if len(self._queues) > 1:
            return any(task.over or (self.turn() and task.over) for _ in range(SPINS))
        # As `turn`, for a single queue that no other thread advances now.
        if task.over or not self._turn.acquire(blocking=False):
            return task.over
        try:
            queue = task.queue
            for _ in range(SPINS):
                if task.over:
                    return True
                self._move(queue)
            return task.over
        finally:
            self._turn.release()

    def _run(self) -> None:
        patience = Patience()
        since = time.perf_counter()  # there was nothing to do
        while True:
            with self._changed:
                if self._stopping:
                    return
                now = time.perf_counter()
                if self._waiters:
                    pause: float | None = None  # the leaving thread notifies, if tasks remain
                elif not self._queues:
                    pause = SMALL_SECONDS if now - since < LINGER_SECONDS else None
                else:
                    since, pause = now, self._grace(now)
                if pause != 0.0:
                    # The thread parks here while there is nothing to do; it waits for no peer.
                    self._parked = pause is None
                    self._changed.wait(pause)
                    self._parked = False
                    patience.reset()
                    continue
            if self.turn():
                patience.reset()
            else:
                patience.pause()

    def _grace(self, now: float) -> float:
        """Return for how long the operations are left to the thread that started them."""
        first = [queue[0] for queue in self._queues]
        if not all(task.small for task in first):
            return 0.0
        oldest = min(task.started for task in first)
        return max(0.0, oldest + SMALL_SECONDS - now)

    def stop(self) -> None:
        """End the thread. Tasks that are left go on only when somebody waits for them.

        Their arrays are kept for the life of the process.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._queues:
            keep(self)  # with the arrays of unfinished operations


_engines: dict[bool, ProgressEngine] = {}
_engines_lock = threading.Lock()


def progress_engine(threaded: bool) -> ProgressEngine:
    """Return the process's engine: the one with a thread, or the one driven by waits only."""
    with _engines_lock:
        if threaded not in _engines:
            _engines[threaded] = ProgressEngine(threaded=threaded)
        return _engines[threaded]


def stop() -> None:
    """End the threads of all engines."""
    for each in _engines.values():
        each.stop()


at_exit(ExitStep.THREADS, stop)
after_fork(_engines.clear)
