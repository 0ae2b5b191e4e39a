"""Operations go on by themselves, in the order of their lane, and end in any case."""

import math
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

import hpccomm
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CollectiveTimeout
from hpccomm.runtime.progress import ProgressEngine, Task, TaskQueue
from hpccomm.runtime.waiting import Gate

SHORT = 0.05
SOON = 30.0


def expired(elapsed: float) -> CollectiveTimeout:
    return CollectiveTimeout(f"after {elapsed}", elapsed=elapsed)


class Made(Task):
    """A task of functions."""

    def __init__(
        self,
        begin: Callable[[], Steps],
        gate: Gate,
        timeout: float,
        ended: Callable[[BaseException | None, float], object],
    ) -> None:
        super().__init__(gate, timeout, time.perf_counter())
        self._begin = begin
        self._ended = ended

    def begin(self) -> Steps:
        return self._begin()

    def expired(self, elapsed: float) -> CollectiveTimeout:
        return expired(elapsed)

    def ended(self, error: BaseException | None) -> BaseException | None:
        return self._ended(error, time.perf_counter() - self.started)


class Log:
    """Makes tasks, and notes what happens to them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[tuple[str, BaseException | None]] = []
        self.gate = Gate()

    def task(self, name: str, steps: Callable[[], Steps], timeout: float = math.inf) -> Task:
        def begin() -> Steps:
            self.begun.append(name)
            return steps()

        def ended(error: BaseException | None, _elapsed: float) -> BaseException | None:
            self.ended.append((name, error))
            return OSError("translated") if isinstance(error, KeyError) else error

        return Made(begin, self.gate, timeout, ended)


def turns(number: int) -> Callable[[], Steps]:
    return lambda: iter([False] * number)


def until(event: threading.Event) -> Callable[[], Steps]:
    def steps() -> Iterator[bool]:
        while not event.is_set():
            yield False

    return steps


def never() -> Steps:
    return until(threading.Event())()


@pytest.fixture(params=[True, False], ids=["thread", "no thread"])
def engine(request: pytest.FixtureRequest) -> Iterator[ProgressEngine]:
    made = ProgressEngine(threaded=request.param)
    yield made
    made.stop()


def finish(engine: ProgressEngine, *tasks: Task) -> None:
    for task in tasks:
        assert engine.wait(task, SOON)


def test_a_lane_keeps_its_order(engine: ProgressEngine) -> None:
    log, lane = Log(), TaskQueue()
    tasks = [log.task(str(i), turns(10 - i)) for i in range(10)]
    for task in tasks:
        engine.submit(lane, task)
    finish(engine, tasks[-1])
    assert log.begun == [str(i) for i in range(10)]
    assert log.ended == [(str(i), None) for i in range(10)]
    assert all(task.over and task.error is None for task in tasks)


def test_lanes_go_on_together(engine: ProgressEngine) -> None:
    log, event = Log(), threading.Event()
    blocked, behind = log.task("blocked", until(event)), log.task("behind", turns(1))
    free = log.task("free", turns(3))
    lane = TaskQueue()
    engine.submit(lane, blocked)
    engine.submit(lane, behind)
    engine.submit(TaskQueue(), free)
    finish(engine, free)
    assert log.begun == ["blocked", "free"]
    event.set()
    finish(engine, behind)
    assert [name for name, _ in log.ended] == ["free", "blocked", "behind"]


def test_an_error_ends_its_task_alone(engine: ProgressEngine) -> None:
    def failing() -> Steps:
        yield False
        raise ZeroDivisionError

    def refused() -> Steps:
        raise KeyError

    log, lane = Log(), TaskQueue()
    tasks = [log.task("a", failing), log.task("b", refused), log.task("c", turns(2))]
    for task in tasks:
        engine.submit(lane, task)
    finish(engine, *tasks)
    assert isinstance(tasks[0].error, ZeroDivisionError)
    assert isinstance(tasks[1].error, OSError)  # as translated
    assert tasks[2].error is None


def test_an_error_of_the_listener_ends_the_task_too(engine: ProgressEngine) -> None:
    def listener(error: BaseException | None, elapsed: float) -> None:
        raise ZeroDivisionError

    task = Made(turns(1), Gate(), math.inf, listener)
    engine.submit(TaskQueue(), task)
    finish(engine, task)
    assert isinstance(task.error, ZeroDivisionError)


def test_an_error_of_a_function_that_waits_stays_out_of_the_task_and_the_thread(
    engine: ProgressEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> Steps:
        raise ZeroDivisionError

    def refuse() -> None:
        raise KeyError

    log, told = Log(), list[str]()
    good, bad, later = log.task("good", turns(1)), log.task("bad", failing), log.task("c", turns(2))
    for task in (good, bad):
        task.then = [lambda: told.append("told"), refuse]
        engine.submit(TaskQueue(), task)
    finish(engine, good, bad)
    engine.submit(TaskQueue(), later)
    finish(engine, later)
    assert good.error is None
    assert isinstance(bad.error, ZeroDivisionError)
    assert sorted(name for name, _ in log.ended) == ["bad", "c", "good"]
    assert told == ["told"] * 2
    assert len(caplog.records) == 2


def test_a_task_s_own_deadline(engine: ProgressEngine) -> None:
    log = Log()
    task = log.task("late", never, timeout=SHORT)
    engine.submit(TaskQueue(), task)
    finish(engine, task)
    assert isinstance(task.error, CollectiveTimeout)
    assert log.ended == [("late", task.error)]


def test_without_a_thread_only_turns_move_tasks_on() -> None:
    engine, log = ProgressEngine(threaded=False), Log()
    task = log.task("patient", turns(2))
    engine.submit(TaskQueue(), task)
    time.sleep(SHORT)
    assert log.begun == []
    while not task.over:
        engine.turn()
    assert log.ended == [("patient", None)]


def test_many_waiters(engine: ProgressEngine) -> None:
    log, event = Log(), threading.Event()
    tasks = [log.task(str(i), until(event)) for i in range(8)]
    for task in tasks:
        engine.submit(deque(), task)
    waiters = [threading.Thread(target=finish, args=(engine, task)) for task in tasks]
    for waiter in waiters:
        waiter.start()
    time.sleep(SHORT)
    event.set()
    for waiter in waiters:
        waiter.join(SOON)
        assert not waiter.is_alive()
    assert sorted(log.ended) == [(str(i), None) for i in range(8)]


def test_stop_ends_the_thread_and_leaves_the_rest_to_waiters() -> None:
    engine, event = ProgressEngine(threaded=True), threading.Event()
    task = Log().task("left", until(event))
    engine.submit(TaskQueue(), task)
    engine.stop()
    engine.stop()
    assert not any(thread.name == "hpccomm" and thread is engine._thread for thread in _alive())
    event.set()
    finish(engine, task)
    late = Log().task("late", turns(1))
    engine.submit(TaskQueue(), late)
    finish(engine, late)


def _alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.is_alive()]


class Stopped(BaseException):
    """As Ctrl-C's KeyboardInterrupt."""


def test_what_a_signal_raises_in_a_wait_does_not_keep_later_operations_from_moving():
    def handle(*_):
        raise Stopped

    before, rolled = signal.signal(signal.SIGALRM, handle), random.Random(1)
    comm = hpccomm.new_comm(backend="loopback")
    work = comm.recv(np.zeros(1), 0, async_op=True)
    try:
        for _ in range(600):
            with suppress(Stopped):
                signal.setitimer(signal.ITIMER_REAL, rolled.uniform(1e-4, 4e-4))
                work.wait()
            if work.exception() is not None:
                comm.abort()
                comm = hpccomm.new_comm(backend="loopback")
                work = comm.recv(np.zeros(1), 0, async_op=True)
        comm.send(np.ones(1), 0)
        assert work.wait(10) == 1
    finally:
        signal.signal(signal.SIGALRM, before)
        comm.abort()
