"""Operations go on by themselves, in the order of their lane, and end in any case, as the classes' docstrings say."""

import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hpccomm.contracts.transport import Steps
from hpccomm.errors import CollectiveTimeout
from hpccomm.runtime.progress import ProgressEngine, Task, TaskQueue
from hpccomm.runtime.waiting import Gate

SHORT = 0.05
SOON = 30.0


class Noted(Task):
    """A task of steps, which notes its beginning and its end in a list."""

    def __init__(
        self, log: list[str], name: str, steps: Callable[[], Steps], timeout: float = math.inf
    ) -> None:
        super().__init__(Gate(), timeout, time.perf_counter())
        self.log, self.name, self.given = log, name, steps

    def begin(self) -> Steps:
        self.log.append(f"{self.name} begins")
        return self.given()

    def expired(self, elapsed: float) -> CollectiveTimeout:
        return CollectiveTimeout(f"after {elapsed}", elapsed=elapsed)

    def ended(self, error: BaseException | None) -> BaseException | None:
        self.log.append(f"{self.name} ends")
        if self.name == "raises at its end":
            raise ZeroDivisionError
        return OSError("translated") if isinstance(error, KeyError) else error


def turns(number: int) -> Callable[[], Steps]:
    return lambda: iter([False] * number)


def until(event: threading.Event) -> Callable[[], Steps]:
    return lambda: iter(event.is_set, True)


def failing() -> Steps:
    yield False
    raise ZeroDivisionError


def refused() -> Steps:
    raise KeyError


@pytest.fixture(params=[True, False], ids=["thread", "no thread"])
def engine(request: pytest.FixtureRequest) -> Iterator[ProgressEngine]:
    made = ProgressEngine(threaded=request.param)
    yield made
    made.stop()


def finish(engine: ProgressEngine, *tasks: Task) -> None:
    for task in tasks:
        assert engine.wait(task, SOON)


def test_a_lane_keeps_its_order_and_each_task_ends_by_its_own_error(engine: ProgressEngine) -> None:
    ends: dict[str, tuple[Callable[[], Steps], float, type[BaseException] | None]] = {
        "slow": (turns(10), math.inf, None),
        "fails": (failing, math.inf, ZeroDivisionError),
        "is refused": (refused, math.inf, OSError),  # as translated
        "late": (until(threading.Event()), SHORT, CollectiveTimeout),
        "raises at its end": (turns(1), math.inf, ZeroDivisionError),
        "quick": (turns(0), math.inf, None),
    }
    log: list[str] = []
    tasks = [Noted(log, name, steps, timeout) for name, (steps, timeout, _) in ends.items()]
    lane = TaskQueue()
    for task in tasks:
        engine.submit(lane, task)
    finish(engine, tasks[-1])
    assert log == [f"{name} {what}" for name in ends for what in ("begins", "ends")]
    for task, (_, _, error) in zip(tasks, ends.values(), strict=True):
        assert task.over
        assert isinstance(task.error, error or type(None)), task.name


def test_lanes_go_on_together(engine: ProgressEngine) -> None:
    log, event, lane = list[str](), threading.Event(), TaskQueue()
    engine.submit(lane, Noted(log, "blocked", until(event)))
    engine.submit(lane, behind := Noted(log, "behind", turns(1)))
    engine.submit(TaskQueue(), free := Noted(log, "free", turns(3)))
    finish(engine, free)
    assert [each for each in log if "begins" in each] == ["blocked begins", "free begins"]
    event.set()
    finish(engine, behind)
    assert [each for each in log if "ends" in each] == ["free ends", "blocked ends", "behind ends"]


def test_an_error_of_a_function_that_waits_stays_out_of_the_task_and_the_thread(
    engine: ProgressEngine, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    good, bad, later = Noted(log, "", turns(1)), Noted(log, "", failing), Noted(log, "", turns(2))
    for task in (good, bad):
        task.then = [lambda: log.append("told"), lambda: refused()]
        engine.submit(TaskQueue(), task)
    finish(engine, good, bad)
    engine.submit(TaskQueue(), later)
    finish(engine, later)
    assert (good.error, type(bad.error)) == (None, ZeroDivisionError)
    assert log.count("told") == len(caplog.records) == 2


def test_without_a_thread_only_turns_move_tasks_on() -> None:
    engine, log = ProgressEngine(threaded=False), list[str]()
    task = Noted(log, "patient", turns(2))
    engine.submit(TaskQueue(), task)
    time.sleep(SHORT)  # that nothing comes of itself, only time can show
    assert log == []
    while not task.over:
        engine.turn()
    assert log == ["patient begins", "patient ends"]


def test_many_waiters(engine: ProgressEngine) -> None:
    log, event = list[str](), threading.Event()
    tasks = [Noted(log, str(i), until(event)) for i in range(8)]
    for task in tasks:
        engine.submit(TaskQueue(), task)
    waiters = [threading.Thread(target=finish, args=(engine, task)) for task in tasks]
    for waiter in waiters:
        waiter.start()
    event.set()
    for waiter in waiters:
        waiter.join(SOON)
        assert not waiter.is_alive()
    assert sorted(each for each in log if "ends" in each) == [f"{i} ends" for i in range(8)]


def test_stop_ends_the_thread_and_leaves_the_rest_to_waiters() -> None:
    before = {*threading.enumerate()}
    engine, event = ProgressEngine(threaded=True), threading.Event()
    task, late = (Noted([], name, steps) for name, steps in (("", until(event)), ("", turns(1))))
    engine.submit(TaskQueue(), task)
    assert {*threading.enumerate()} > before
    engine.stop()
    engine.stop()
    assert {*threading.enumerate()} <= before
    event.set()
    engine.submit(TaskQueue(), late)
    finish(engine, task, late)
