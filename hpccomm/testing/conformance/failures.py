"""Cases: deadlines, aborts and the end: how a communicator fails, and its errors."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    RankMismatch,
    UsageError,
)
from hpccomm.runtime.inquiry import ASK_SECONDS
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import SOON, equal, happens, raises, takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

FAILURES = Behaviours("failures")

SHORT = 0.2
"""Seconds of a deadline that is meant to pass."""


def all_raise(error: type[BaseException], word: str, *calls: Callable[[], object]) -> None:
    """Assert that each of `calls` raises `error` with a message that holds `word`, at once."""
    with takes():
        for call in calls:
            with raises(error, word):
                call()


def has_failed(comm: Communicator, x: Any = None) -> None:
    """Assert that every kind of call on `comm` raises at once, on `x` if there is one."""
    x = np.ones(3) if x is None else x
    all_raise(
        CommunicatorAborted,
        comm.name,
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(x, async_op=True),
        comm.barrier,
        lambda: comm.send(x, comm.rank),
        lambda: comm.broadcast_object(None),
        comm.dup,
    )


def timed_out(
    comm: Communicator, operation: str, nbytes: int | None, call: Callable[[], Any]
) -> type[Exception]:
    """Assert that `call` raises a complete `CollectiveTimeout` soon, and fails `comm`; return the error's class.

    On a busy machine ranks that wait for each other may be found first.
    """
    with takes(SHORT + SOON, SHORT / 2), raises(CommunicationError, operation, comm.name) as caught:
        call()
    error = caught[0]
    if isinstance(error, RankMismatch) and "wait for each other" in str(error):
        return RankMismatch
    assert isinstance(error, CollectiveTimeout)
    assert error.operation == operation, error.operation
    assert error.communicator == comm.name, error.communicator
    assert error.rank == comm.rank, error.rank
    assert error.sequence is not None, "sequence"
    assert nbytes is None or error.nbytes == nbytes, error.nbytes
    assert error.elapsed is not None, "elapsed"
    assert SHORT / 2 < error.elapsed < SHORT + SOON, error.elapsed
    has_failed(comm)
    return CollectiveTimeout


def silent(comm: Communicator) -> int:
    """Return a rank that sends nothing: the next."""
    return int((comm.rank + 1) % comm.size)


@FAILURES.behaviour(min_size=2, fails=True)
def recv_times_out(comm: Communicator) -> None:
    """A receive from a silent rank gives up at its deadline."""
    out = np.zeros(4)
    timed_out(comm, "recv", 32, lambda: comm.recv(out, silent(comm), timeout=SHORT))


@FAILURES.behaviour(min_size=2, fails=True)
def asynchronous_recv_times_out(comm: Communicator) -> None:
    """The deadline of an asynchronous call holds without anybody waiting, and is kept as error."""
    out = np.zeros(4)
    work = comm.recv(out, silent(comm), async_op=True, timeout=SHORT)
    kind = timed_out(comm, "recv", 32, work.wait)
    assert work.done(), "a failed call is done"
    assert isinstance(work.exception(), kind), work.exception()
    with raises(kind):
        work.wait()


@FAILURES.behaviour(min_size=2)
def wait_times_out(comm: Communicator) -> None:
    """A timeout of `Work.wait` ends that wait alone, as `concurrent.futures` has it: the call goes on."""
    x, out = np.full(4, comm.rank + 1.0), np.zeros(4)
    previous = (comm.rank - 1) % comm.size
    work = comm.recv(out, previous, async_op=True)
    for timeout in (SHORT, 0, 0.0):
        with takes(SHORT + SOON), raises(TimeoutError, "recv", comm.name, "32 bytes", "going on"):
            work.wait(timeout=timeout)
        assert not work.done(), "it goes on"
    comm.barrier()
    comm.send(x, silent(comm))
    assert work.wait(timeout=SOON) is out
    equal(out, np.full(4, previous + 1.0), "a later wait")
    assert work.wait(timeout=0) is out, "over"


@FAILURES.behaviour(min_size=2)
def waits_that_end_are_no_deadlock(comm: Communicator) -> None:
    """Ranks that wait for each other with a timeout go on after it, and are not taken for stuck ones."""
    out = np.zeros(4)
    work = comm.recv(out, (comm.rank - 1) % comm.size, async_op=True)
    with raises(TimeoutError, "recv"):
        work.wait(timeout=3 * ASK_SECONDS)
    comm.barrier()
    comm.send(np.ones(4), silent(comm))
    work.wait()
    equal(out, np.ones(4), "received")


@FAILURES.behaviour(min_size=2, fails=True)
def the_deadline_of_a_call_stays(comm: Communicator) -> None:
    """It passes in a wait with a longer timeout, and after one that has ended; of a queued collective too."""
    if comm.rank == 0:
        work = comm.all_reduce(np.ones(4), async_op=True, timeout=math.inf)
        queued = comm.all_reduce(np.ones(4), async_op=True, timeout=SHORT)
        with raises(TimeoutError, f"a deadline of {SHORT:g} s"):
            queued.wait(timeout=0)
        with raises(TimeoutError, "no deadline"):
            work.wait(timeout=0)
        timed_out(comm, "all_reduce", 32, lambda: queued.wait(timeout=60.0))
        with raises(CommunicatorAborted, comm.name):
            work.wait(timeout=60.0)


@FAILURES.behaviour(min_size=2, fails=True)
def recv_object_times_out(comm: Communicator) -> None:
    """So has a receive of an object."""
    timed_out(comm, "recv_object", None, lambda: comm.recv_object(silent(comm), timeout=SHORT))


@FAILURES.behaviour(min_size=2, fails=True)
def a_plan_times_out(comm: Communicator) -> None:
    """The deadline is that of each call. Plans refuse then, and none can be made."""
    x, last = np.zeros(4), comm.rank == comm.size - 1
    if last:
        plan = comm.plan("send", x, 0, timeout=SHORT)
    else:
        plan = comm.plan("recv", x, None if comm.rank else comm.size - 1, timeout=SHORT)
    other = comm.plan("send_recv", x, None, x, None)
    comm.barrier()  # after which the last rank is silent
    if comm.rank == 0:
        timed_out(comm, "recv", 32, plan)
        refused = (plan, other, lambda: comm.plan("all_reduce", x))
        all_raise(CommunicatorAborted, comm.name, *refused)


@FAILURES.behaviour(min_size=2, fails=True)
def collectives_time_out(comm: Communicator) -> None:
    """A collective that hpccomm runs itself gives up when a rank does not come."""
    if comm.rank == 0:
        x = np.ones(4, BFLOAT16)
        timed_out(comm, "all_reduce", 8, lambda: comm.all_reduce(x, timeout=SHORT))


@FAILURES.behaviour(min_size=2, fails=True)
def asynchronous_collectives_time_out(comm: Communicator) -> None:
    """So does any asynchronous collective."""
    if comm.rank == 0:
        work = comm.all_reduce(np.ones(4), async_op=True, timeout=SHORT)
        timed_out(comm, "all_reduce", 32, work.wait)


@FAILURES.behaviour(min_size=2, fails=True)
def object_collectives_time_out(comm: Communicator) -> None:
    """So do collectives of objects."""
    if comm.rank == 0:
        timed_out(comm, "all_gather_object", None, lambda: comm.all_gather_object(1, timeout=SHORT))


@FAILURES.behaviour(min_size=2, fails=True)
def a_call_behind_one_that_fails(comm: Communicator) -> None:
    """A call that waits for an asynchronous one fails with it, rather than wait for its own sake."""
    if comm.rank == comm.size - 1:
        return
    comm.all_reduce(np.ones(3), async_op=True, timeout=SHORT).done()
    with takes(SHORT + SOON), raises(CommunicatorAborted, comm.name):
        comm.all_reduce(np.ones(3))
    has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def finalize_tells_of_a_failure(comm: Communicator) -> None:
    """A failure while `finalize` waits is raised."""
    if comm.rank == comm.size - 1:
        return
    comm.recv(np.ones(3), comm.size - 1, async_op=True, timeout=SHORT).done()
    with raises(CommunicatorAborted, comm.name):
        comm.finalize()
    has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def arrays_of_different_sizes(comm: Communicator) -> None:
    """Where ranks bring arrays that do not fit each other, no memory but the arrays is written."""
    rows = 15000  # more than is sent at once before the receiver is known
    memory = np.zeros(rows + 10, BFLOAT16)
    x, beyond = (memory, memory[:0]) if comm.rank == 0 else (memory[:10], memory[10:])
    with raises(CommunicationError):
        comm.all_reduce(x, timeout=SHORT)
    assert not beyond.any(), "written beyond the array"


@FAILURES.behaviour(min_size=2, fails=True)
def large_send_times_out(comm: Communicator) -> None:
    """A send of 8 MiB without a receiver times out, or has left its array reusable."""
    x = np.zeros(1 << 20)
    with takes(SHORT + SOON):
        try:
            comm.send(x, silent(comm), timeout=SHORT)
        except CollectiveTimeout as error:
            assert error.operation == "send", error.operation
            has_failed(comm)
        except RankMismatch as error:  # found first
            assert "wait for each other" in str(error), error


@FAILURES.behaviour(min_size=2, fails=True)
def the_default_deadline(comm: Communicator) -> None:
    """`set_timeout` gives the deadline of calls that name none."""
    comm.set_timeout(SHORT)
    timed_out(comm, "recv", 32, lambda: comm.recv(np.zeros(4), silent(comm)))


@FAILURES.behaviour()
def deadlines_that_are_met(comm: Communicator) -> None:
    """A deadline that does not pass changes nothing, infinity among them."""
    for timeout in (60.0, 60, math.inf, None):
        x = np.array([1])
        comm.all_reduce(x, timeout=timeout)
        assert x[0] == comm.size, "all_reduce"
        work = comm.all_reduce(x, async_op=True, timeout=timeout)
        work.wait(timeout=timeout)
        comm.barrier(timeout=timeout)
        assert comm.all_gather_object(comm.rank, timeout=timeout)[-1] == comm.size - 1


@FAILURES.behaviour(fails=True)
def abort(comm: Communicator) -> None:
    """After `abort`, later calls raise at once; a second `abort` does nothing."""
    comm.abort()
    comm.abort()
    has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def abort_releases_waits(comm: Communicator) -> None:
    """`abort` from another thread releases a call that waits; `set_timeout` may come from there."""

    def from_elsewhere() -> None:
        comm.set_timeout(60.0)
        comm.abort()

    timer = threading.Timer(SHORT, from_elsewhere)
    timer.start()
    with takes(SHORT + SOON), raises(CommunicatorAborted, comm.name) as caught:
        comm.recv(np.zeros(4), silent(comm))
    timer.join()
    error = caught[0]
    assert isinstance(error, CommunicatorAborted)
    assert (error.operation, error.nbytes, error.rank) == ("recv", 32, comm.rank), vars(error)
    has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def abort_releases_works(comm: Communicator) -> None:
    """`abort` ends asynchronous calls under way: `wait` raises."""
    work = comm.recv(np.zeros(4), silent(comm), async_op=True)
    comm.abort()
    with takes(), raises(CommunicatorAborted):
        work.wait()
    assert work.done(), "done"
    assert isinstance(work.exception(), CommunicatorAborted), work.exception()


@FAILURES.behaviour(fails=True)
def an_exception_leaves_by_abort(comm: Communicator) -> None:
    """Leaving `with` by an exception is local: it aborts without a wait, and propagates it."""
    if comm.rank == 0:
        with raises(ZeroDivisionError), comm:
            raise ZeroDivisionError
        has_failed(comm)


@FAILURES.behaviour(fails=True)
def finalize(comm: Communicator) -> None:
    """`finalize` may be called again; calls after it are refused, facts remain."""
    comm.all_reduce(np.ones(2))
    comm.finalize()
    comm.finalize()
    all_raise(
        UsageError,
        "finalize",
        lambda: comm.all_reduce(np.ones(2)),
        lambda: comm.barrier(async_op=True),
        lambda: comm.all_gather_object(1),
        lambda: comm.split(0),
    )
    assert 0 <= comm.rank < comm.size, "facts remain"


@FAILURES.behaviour(fails=True)
def finalize_completes_what_is_under_way(comm: Communicator) -> None:
    """A call without a `wait` is complete after `finalize`."""
    x = np.full(100_000, comm.rank, np.int64)
    work = comm.all_reduce(x, async_op=True)
    comm.finalize()
    assert work.done(), "done"
    assert (x == sum(range(comm.size))).all(), "the result"


@FAILURES.behaviour(fails=True)
def with_finalizes(comm: Communicator) -> None:
    """Leaving `with` finalizes."""
    with comm as inside:
        assert inside is comm, "with gives the communicator"
    with raises(UsageError, "finalize"):
        comm.barrier()


@FAILURES.behaviour(fails=True)
def two_threads_at_once(comm: Communicator) -> None:
    """Of two threads in one communicator, the second is refused and the first goes on."""
    outcomes: list[BaseException] = []
    both = threading.Barrier(2)

    def receive() -> None:
        # Nothing is sent: a call that enters stays in, until the abort below.
        both.wait()
        try:
            comm.recv(np.zeros(1), silent(comm), tag=11)
        except (UsageError, CommunicatorAborted) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=receive) for _ in range(2)]
    for thread in threads:
        thread.start()
    happens(lambda: outcomes, "one of two is refused", SOON)
    assert len(outcomes) == 1, f"one of two is refused: {outcomes}"
    assert isinstance(outcomes[0], UsageError), f"refused: {outcomes[0]!r}"
    assert "thread" in str(outcomes[0]), f"the message names threads: {outcomes[0]}"
    comm.abort()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "abort releases the first"
    assert isinstance(outcomes[1], CommunicatorAborted), f"the first went on: {outcomes[1]!r}"
