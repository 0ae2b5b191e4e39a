"""Operations that go on by themselves.

One engine a process holds the operations that were started and are not done. Whoever waits for one
moves them all on; while nobody waits, a thread does, where the backend allows any thread to call
it. Operations of one queue run one after the other, in the order in which they were put there, which
is the order in which every rank calls them.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hpccomm.contracts.transport import Steps
from hpccomm.runtime.lifetime import ExitStep, after_fork, at_exit, keep
from hpccomm.runtime.waiting import Expired, Gate, Patience, wait


@dataclass(slots=True, eq=False)
class Task:
    """One operation under way.

    Attributes
    ----------
    begin : callable
        Makes its `Steps`, when its turn has come.
    gate : Gate
        Of its communicator.
    timeout : float
        Seconds from now.
    expired : callable
        Makes the error of a deadline that passed.
    ended : callable
        Told the error (or None) and the elapsed seconds, once, when it is over. Returns the error
        as whoever waits gets it.
    awaited : bool
        Whether somebody waits for it.
    """

    begin: Callable[[], Steps]
    gate: Gate
    timeout: float
    expired: Expired
    ended: Callable[[BaseException | None, float], BaseException | None]
    started: float = field(default_factory=time.perf_counter)
    steps: Steps | None = None
    error: BaseException | None = None
    over: bool = False
    awaited: bool = False

    def turn(self) -> bool:
        """Move on as far as it goes; return whether anything moved."""
        try:
            if self.gate.error is not None:
                raise self.gate.error
            if self.steps is None:
                self.steps = self.begin()
            moved = next(self.steps, None)
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
        except Exception as error:  # noqa: BLE001 (whoever waits for the task gets it)
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
            # They lead to its arrays, and back to it: only the garbage collector would find that.
            self.begin, self.steps, self.ended = _nothing, None, _as_it_is


def _nothing() -> Steps:
    return iter(())


def _as_it_is(error: BaseException | None, _elapsed: float) -> BaseException | None:
    return error


TaskQueue = deque[Task]
"""Tasks that run one after the other."""


class ProgressEngine:
    """Moves tasks on.

    Parameters
    ----------
    threaded : bool
        Whether a thread moves them on while nobody waits.
    """

    def __init__(self, *, threaded: bool) -> None:
        self.threaded = threaded
        self._queues: list[TaskQueue] = []
        self._turn = threading.Lock()  # held by whoever moves tasks on
        self._changed = threading.Condition()  # guards what follows, and _queues
        self._waiters = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, queue: TaskQueue, task: Task) -> None:
        """Put a task at the end of a queue. Does not block."""
        with self._changed:
            queue.append(task)
            if len(queue) == 1:
                self._queues.append(queue)
            if self.threaded and self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="hpccomm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def turn(self) -> bool:
        """Move every queue's first task on; return whether anything moved. Never blocks."""
        if not self._turn.acquire(blocking=False):
            return False  # another thread is at it
        try:
            moved = False
            for queue in tuple(self._queues):
                task = queue[0]
                try:
                    moved |= task.turn()
                finally:
                    if task.over:
                        self._leave(queue)
            return moved
        finally:
            self._turn.release()

    def _leave(self, queue: TaskQueue) -> None:
        with self._changed:
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
                self._changed.notify()

    def _run(self) -> None:
        patience = Patience()
        while True:
            with self._changed:
                # The thread parks here while there is nothing to do; it waits for no peer.
                while not self._stopping and (not self._queues or self._waiters):
                    self._changed.wait()
                    patience.reset()
                if self._stopping:
                    return
            if self.turn():
                patience.reset()
            else:
                patience.pause()

    def stop(self) -> None:
        """End the thread. Tasks that are left go on only when somebody waits for them.

        What they touch is kept for the life of the process.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._queues:
            keep(self)  # with the arrays of what is under way


_engines: dict[bool, ProgressEngine] = {}
_engines_lock = threading.Lock()


def progress_engine(threaded: bool) -> ProgressEngine:
    """Return the process's engine: the one with a thread, or the one that only waits drive."""
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
