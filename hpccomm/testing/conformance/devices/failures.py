"""How calls on a device fail: what waits on a stream is released, and the communicator says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpccomm.errors import CollectiveTimeout, CommunicatorAborted, UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises
from hpccomm.testing.conformance.devices.inputs import filled, stream_of
from hpccomm.testing.conformance.failures import SHORT, SOON

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

FAILURES = Behaviours("devices.failures")


def has_failed(comm: Communicator) -> None:
    """Assert that calls on `comm` raise at once; a device array's among them."""
    before = time.monotonic()
    x = filled(comm, 3)
    with raises(CommunicatorAborted, comm.name):
        comm.all_reduce(x)
    with raises(CommunicatorAborted, comm.name):
        comm.all_reduce(x, async_op=True)
    with raises(CommunicatorAborted, comm.name):
        comm.send(x, comm.rank)
    with raises(CommunicatorAborted, comm.name):
        comm.barrier()
    assert time.monotonic() - before < SOON, "failed calls return at once"


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
            comm.all_reduce(x, timeout=SHORT)
            stream.synchronize()
            took = time.monotonic() - before
            assert SHORT / 2 < took < SHORT + SOON, f"released after {took:.3f} s"
            while time.monotonic() < before + SOON:
                try:
                    comm.explain("all_reduce", x)
                    comm.stats()
                    comm.broadcast_object(None, timeout=0.01)
                except CommunicatorAborted:
                    break
                except CollectiveTimeout:
                    break
            has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def wait_times_out(comm: Communicator) -> None:
    """`Work.wait` with a timeout, or with ``block=True``, raises when the deadline passes."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)
        comm.barrier()
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True, timeout=SHORT)
            before = time.monotonic()
            with raises(CollectiveTimeout, "all_reduce", comm.name) as caught:
                work.wait(block=True)
            took = time.monotonic() - before
            assert took < SHORT + SOON, f"gave up after {took:.3f} s"
            error = caught[0]
            assert isinstance(error, CollectiveTimeout)
            assert error.nbytes == x.nbytes, error.nbytes
            assert error.rank == comm.rank, error.rank
            assert isinstance(work.exception(), CollectiveTimeout), work.exception()
            assert work.done(), "a failed call is done"
            stream.synchronize()
            has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def abort_releases_the_stream(comm: Communicator) -> None:
    """`abort` ends what waits on the device; a work of it raises."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)
        comm.barrier()
        if comm.rank == 0:
            work = comm.all_reduce(x, async_op=True)
            before = time.monotonic()
            comm.abort()
            with raises(CommunicatorAborted):
                work.wait(block=True)
            stream.synchronize()
            assert time.monotonic() - before < SOON, "released late"
            has_failed(comm)
        comm.abort()


@FAILURES.behaviour(fails=True)
def finalized(comm: Communicator) -> None:
    """After `finalize`, calls on device arrays are refused."""
    with stream_of(comm):
        x = filled(comm)
        comm.all_reduce(x)
        comm.finalize()
        comm.finalize()
        with raises(UsageError, "finalize"):
            comm.all_reduce(x)
        with raises(UsageError, "finalize"):
            comm.empty(3, "f4", device=comm.device)
