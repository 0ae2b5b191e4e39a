"""Asynchronous calls on a device: the communicator's own stream, events in and out."""

import gc
from typing import Any

import numpy as np

from front.device_inputs import MANY, device_of, filled, full, gathered, holds, ranks_sum, stream_of
from front.device_streams import LATE, TURNS
from hpccomm import Communicator, Work, wait_all, wait_any
from hpccomm.testing.conformance.case import PATIENCE, Behaviours, equal, happens, raises

ASYNCHRONOUS = Behaviours("devices.asynchronous")


@ASYNCHRONOUS.behaviour()
def events_in_and_out(comm: Communicator) -> None:
    """It comes after what was on the stream when it began; `wait` puts what follows behind it.

    Functions are called once each, in their order, when it is over, or at once if it is.
    """
    with stream_of(comm):
        for turn in range(TURNS):
            x, y = filled(comm), filled(comm)
            work = comm.all_reduce(x, async_op=True)
            assert isinstance(work, Work), type(work)
            y += 1  # goes on beside it
            assert work.wait() is x, "the result is x"
            holds(x + y, full(ranks_sum(comm) + comm.rank + 2), f"turn {turn}")
            assert work.wait() is x, "the same result again"
            assert work.exception() is None, "no exception"
            called: list[str] = []
            y, z = filled(comm), full(comm.rank + 1)
            work = comm.all_reduce(x, async_op=True)
            work.add_done_callback(lambda: called.append("first"))  # noqa: B023
            work.add_done_callback(lambda: called.append("second"))  # noqa: B023
            comm.all_reduce(y)  # synchronous calls may come between, of host arrays too
            comm.all_reduce(z)
            holds(y, full(ranks_sum(comm)), "synchronous")
            equal(z, full(ranks_sum(comm)), "host")
            happens(lambda: called == ["first", "second"], "they are called")  # noqa: B023
            assert work.done(), "over"
            work.add_done_callback(lambda: called.append("late"))  # noqa: B023
            assert called == ["first", "second", "late"], called


WAITS: dict[str, dict[str, Any]] = {
    "on a stream": {},
    "block": {"block": True},
    "timeout": {"timeout": PATIENCE},
}


@ASYNCHRONOUS.behaviour(how=WAITS)
def wait_may_be_for_another_stream(comm: Communicator, how: str) -> None:
    """It orders the stream that waits, or holds the host up: then the result is there for any stream."""
    with stream_of(comm) as stream, device_of(comm) as module:
        other = module.cuda.Stream(non_blocking=True)
        for turn in range(TURNS):
            x = filled(comm)
            work = comm.all_reduce(x, async_op=True)
            with stream if WAITS[how] else other:
                work.wait(**WAITS[how])
                assert work.done() or not WAITS[how], "done"
            with other:
                holds(x + 1, full(ranks_sum(comm) + 1), f"turn {turn}")


@ASYNCHRONOUS.behaviour(min_size=2)
def a_wait_with_a_timeout(comm: Communicator) -> None:
    """It holds the host up no longer than that, and then the call goes on, as `concurrent.futures` has it."""
    with stream_of(comm):
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)
        comm.barrier()
        last = comm.size - 1
        if comm.rank == last:
            for src in range(last):
                comm.recv_object(src)
            work = comm.all_reduce(x, async_op=True)
        else:
            work = comm.all_reduce(x, async_op=True)
            for timeout in (0, LATE / 10):
                with raises(TimeoutError, "all_reduce", comm.name, "going on"):
                    work.wait(timeout=timeout)
                with raises(TimeoutError, "all_reduce", comm.name, "going on"):
                    wait_all([None, work], timeout)
                with raises(TimeoutError, "all_reduce", comm.name, "going on"):
                    wait_any([work, None], timeout)
            comm.send_object(None, last)
        assert work.wait(timeout=PATIENCE) is x, "a later wait"
        assert work.wait(timeout=0) is x, "over"
        assert wait_all([work], 0)[0] is x, "over"
        holds(x, full(comm.size * ranks_sum(comm)), "result")


@ASYNCHRONOUS.behaviour()
def arrays_are_kept_alive(comm: Communicator) -> None:
    """No other reference to arrays or work is needed; their memory is not reused."""
    with stream_of(comm), device_of(comm) as module:
        for turn in range(TURNS):
            out = module.empty((comm.size, MANY), np.float32)
            works = [comm.all_gather(filled(comm), out=out, async_op=True)]
            comm.all_reduce(filled(comm), async_op=True).done()
            gc.collect()
            for _ in range(4):
                filled(comm).fill(-1)
            works.pop().wait()
            holds(out, gathered(comm), f"turn {turn}")


@ASYNCHRONOUS.behaviour()
def batches(comm: Communicator) -> None:
    """A batch goes on by itself too; messages in it do not wait for each other. `wait` is as that of a call."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with stream_of(comm) as stream, device_of(comm) as module:
        other = module.cuda.Stream(non_blocking=True)
        for how, then in ((None, stream), ({}, stream), ({"block": True}, other)):
            x, y, root = filled(comm), filled(comm, 7, np.int32), filled(comm, 3, np.int8)
            out, every = module.zeros_like(y), module.empty((comm.size, 7), np.int32)
            with comm.batch(async_op=how is not None) as batch:
                comm.recv(out, left)
                comm.all_reduce(x)
                comm.all_gather(y, out=every)
                comm.send(y, right)
                comm.broadcast(root, comm.size - 1)
            if how is not None:
                assert batch.work is not None, "work"
                batch.work.wait(**how)
            with then:
                holds(x, full(ranks_sum(comm)), "all_reduce")
                holds(out, full(left + 1, 7, np.int32), "recv")
                holds(root, full(comm.size, 3, np.int8), "broadcast")
                holds(every, gathered(comm, 7, np.int32), "all_gather")


@ASYNCHRONOUS.behaviour()
def finalize_completes_what_is_under_way(comm: Communicator) -> None:
    """After `finalize`, unawaited work is done, and what waits for its end is called."""
    with stream_of(comm):
        other, called = comm.dup(), list[str]()
        x = filled(comm, 100_000)
        work = other.all_reduce(x, async_op=True)
        other.all_reduce(x, async_op=True).add_done_callback(lambda: called.append("done"))
        other.finalize()
        assert work.done(), "done"
        assert called == ["done"], called
        holds(x, full(comm.size * ranks_sum(comm), 100_000), "result")
