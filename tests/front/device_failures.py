"""Failing calls on a device: waiting streams are released, and the communicator fails."""

import time
from functools import partial

from front.device_inputs import filled, stream_of
from hpccomm import Communicator
from hpccomm.errors import CollectiveTimeout, CommunicatorAborted, UsageError
from hpccomm.testing.conformance.case import SOON, Behaviours, happens, raises, takes
from hpccomm.testing.conformance.survival import SHORT, all_raise, has_failed

FAILURES = Behaviours("devices.failures")


@FAILURES.behaviour(min_size=2, fails=True)
def a_call_that_does_not_block(comm: Communicator) -> None:
    """When its deadline passes, the stream goes on, and the next call says that it has failed."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x)
        stream.synchronize()
        comm.barrier()
        if comm.rank == 0:
            before = time.monotonic()
            with takes(SHORT + SOON, SHORT / 2):
                comm.all_reduce(x, timeout=SHORT)
                stream.synchronize()
            while time.monotonic() < before + SOON:
                try:
                    comm.explain("all_reduce", x)
                    comm.stats()
                    comm.broadcast_object(None, timeout=0.01)
                except (CommunicatorAborted, CollectiveTimeout):
                    break
            has_failed(comm, filled(comm, 3))


@FAILURES.behaviour(min_size=2, fails=True)
def wait_times_out(comm: Communicator) -> None:
    """`Work.wait` with ``block=True`` raises when the deadline of the call passes, in whatever time it is given."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)
        comm.barrier()
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True, timeout=SHORT)
            timed_out = raises(CollectiveTimeout, "all_reduce", comm.name)
            with takes(SHORT + SOON), timed_out as caught:
                work.wait(60.0)
            error = caught[0]
            assert isinstance(error, CollectiveTimeout)
            assert error.nbytes == x.nbytes, error.nbytes
            assert error.rank == comm.rank, error.rank
            assert isinstance(work.exception(), CollectiveTimeout), work.exception()
            assert work.done(), "a failed call is done"
            stream.synchronize()
            has_failed(comm, filled(comm, 3))


@FAILURES.behaviour(min_size=2, fails=True)
def abort_releases_the_stream(comm: Communicator) -> None:
    """`abort` ends what waits on the device; a work of it raises."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)
        comm.barrier()
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True)
            called: list[bool] = []
            work.add_done_callback(lambda: called.append(work.done()))
            with takes():
                comm.abort()
                with raises(CommunicatorAborted):
                    work.wait(block=True)
                stream.synchronize()
            happens(lambda: called == [True], "what waits for its end is called")
            has_failed(comm, filled(comm, 3))
        comm.abort()


@FAILURES.behaviour(fails=True)
def finalized(comm: Communicator) -> None:
    """After `finalize`, calls on device arrays are refused."""
    with stream_of(comm):
        x = filled(comm)
        comm.all_reduce(x)
        plan = comm.plan("all_reduce", x)
        comm.finalize()
        comm.finalize()
        empty = partial(comm.empty, 3, "f4", device=comm.device)
        all_raise(UsageError, "finalize", lambda: comm.all_reduce(x), plan, empty)
