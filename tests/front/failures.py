"""Failing and ending, as a program sees it: deadlines, blocks, threads and hooks."""

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from hpccomm import Communicator, Work, wait_all, wait_any
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted, RankMismatch
from hpccomm.runtime.inquiry import ASK_SECONDS
from hpccomm.testing.conformance.case import SOON, Behaviours, raises, takes
from hpccomm.testing.conformance.survival import SHORT, all_raise, has_failed

FAILURES = Behaviours("failures")


def timed_out(comm: Communicator, operation: str, call: Callable[[], Any]) -> None:
    """Assert that `call` on 32 bytes raises a complete `CollectiveTimeout` soon, and fails `comm`.

    On a busy machine ranks that wait for each other may be found first.
    """
    with takes(SHORT + SOON, SHORT / 2), raises(CommunicationError, operation, comm.name) as caught:
        call()
    error = caught[0]
    if isinstance(error, RankMismatch) and "wait for each other" in str(error):
        return
    assert isinstance(error, CollectiveTimeout)
    assert (error.operation, error.communicator) == (operation, comm.name), vars(error)
    assert (error.rank, error.nbytes) == (comm.rank, 32), vars(error)
    assert error.sequence is not None, "sequence"
    assert error.elapsed is not None, "elapsed"
    assert SHORT / 2 < error.elapsed < SHORT + SOON, error.elapsed
    has_failed(comm)


@FAILURES.behaviour(min_size=2)
def a_poll_is_no_deadlock(comm: Communicator) -> None:
    """A receive with a deadline of its own ends there, though its sender waits for this rank elsewhere.

    So a farm polls: see https://github.com/NVIDIA/nccl/issues/2130.
    """
    with comm.dup() as polled:
        if comm.rank == 0:
            with raises(CollectiveTimeout, "recv"):
                polled.recv(np.zeros(4), 1, timeout=3 * ASK_SECONDS)
        comm.barrier()
        polled.abort()


@FAILURES.behaviour(fails=True)
def a_rank_waits_for_itself(comm: Communicator) -> None:
    """A receive from oneself of what was never sent needs no deadline; the others hear of it."""
    last = comm.rank == comm.size - 1
    itself = f"rank {comm.size - 1} waits for itself at", "it has sent it nothing"
    with raises(CommunicationError, *itself):
        if last:
            comm.recv(np.zeros(4), comm.rank)
        comm.barrier()


@FAILURES.behaviour(fails=True)
def a_large_message_to_oneself(comm: Communicator) -> None:
    """A send of 8 MiB to oneself before its receive is told, or has left its array reusable."""
    x, told = np.zeros(1 << 20), "has begun no receive of it"
    try:
        comm.send(x, comm.rank)
        comm.recv(x, comm.rank)
    except RankMismatch as error:
        told = str(error)
    assert "has begun no receive of it" in told, told


WAITS: dict[str, Callable[[Work], Any]] = {
    "alone": lambda work: work.wait(timeout=60.0),
    "among several": lambda work: wait_any([work], timeout=60.0),
}


@FAILURES.behaviour(min_size=2, fails=True, how=WAITS)
def the_deadline_of_a_call_stays(comm: Communicator, how: str) -> None:
    """It passes in a wait with a longer timeout, and after one that has ended; of a queued collective too."""
    if comm.rank == 0:
        work = comm.all_reduce(np.ones(4), async_op=True, timeout=math.inf)
        queued = comm.all_reduce(np.ones(4), async_op=True, timeout=SHORT)
        with raises(TimeoutError, f"a deadline of {SHORT:g} s"):
            queued.wait(timeout=0)
        with raises(TimeoutError, "no deadline"):
            work.wait(timeout=0)
        timed_out(comm, "all_reduce", lambda: WAITS[how](queued))
        assert isinstance(queued.exception(), CommunicationError), queued.exception()
        with raises(CommunicatorAborted, comm.name):
            work.wait(timeout=60.0)


@FAILURES.behaviour(min_size=2, fails=True)
def a_plan_times_out(comm: Communicator) -> None:
    """The deadline is that of each call. Plans refuse then, and none can be made."""
    comm.set_timeout(SHORT)  # the deadline of calls that name none
    x, last = np.zeros(4), comm.rank == comm.size - 1
    if last:
        plan = comm.plan("send", x, 0)
    else:
        plan = comm.plan("recv", x, None if comm.rank else comm.size - 1)
    other = comm.plan("send_recv", x, None, x, None)
    comm.barrier()  # after which the last rank is silent
    if comm.rank == 0:
        timed_out(comm, "recv", plan)
        refused = (plan, other, lambda: comm.plan("all_reduce", x))
        all_raise(CommunicatorAborted, comm.name, *refused)


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
def a_call_behind_one_that_fails(comm: Communicator) -> None:
    """It fails with the asynchronous one that it waits for, rather than wait for its own sake."""
    if comm.rank < comm.size - 1:
        comm.all_reduce(np.ones(3), async_op=True, timeout=SHORT).done()
        with takes(SHORT + SOON), raises(CommunicatorAborted, comm.name):
            comm.all_reduce(np.ones(3))


def _raising(_info: object) -> None:
    raise TimeoutError("from a hook")  # as of a file or a socket


@FAILURES.behaviour(moment=("pre", "post"), min_size=2, fails=True)
def a_hook_that_raises(comm: Communicator, moment: str) -> None:
    """The communicator has failed then: other ranks may have made the call, and the call itself may have failed.

    Leaving `with` by its exception is local: it aborts without a wait.
    """
    with comm.dup() as other:
        with closing(other.register_post_hook(_raising)), raises(TimeoutError, "from a hook"):
            wait_all([other.barrier(async_op=True)])  # which is no timeout of the wait
        other.abort()
    if comm.rank == comm.size - 1:
        return
    handle = getattr(comm, f"register_{moment}_hook")(_raising)
    with closing(handle), raises(TimeoutError, "from a hook"), comm:
        comm.recv(np.ones(3), comm.size - 1, timeout=SHORT)
    has_failed(comm)
