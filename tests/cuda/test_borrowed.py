"""NCCL communicators of the program, given to `new_comm`: their owner ends them.

The owners are as their sources have them: cupy 14.2 (cupy_backends/cuda/libs/nccl.pyx), nccl4py 0.6
(nccl/core/communicator.py), PyTorch's ProcessGroupNCCL.cpp (getCommPtr) and NCCLUtils.cpp (getNcclComm). Revocation: NCCL's nccl.h,
ncclCommRevoke, and enqueue.cc, ncclEnqueueCheck.
"""

import gc
import re

import cupy
import numpy as np
import pytest
from device_trials import every_kind
from nccl_ranks import ranked, run_ranks
from until import until

import hpccomm
from hpccomm.backends.nccl import opening

nccl = pytest.importorskip("cupy.cuda.nccl")


class OfNccl4py:
    """Has the pointer as nccl4py's Communicator has it: 0 once it is ended."""

    def __init__(self, own):
        self._own = own

    @property
    def ptr(self):
        return self._own.comm


class OfTorch:
    """Has it as a process group of PyTorch: that of the current device, 0 if there is none; it raises once that is freed."""

    def __init__(self, own=None):
        pytest.importorskip("torch")
        self.own = own

    def _get_backend(self, device):
        assert device.type == "cuda"
        return self.Backend(self)

    class Backend:
        def __init__(self, group):
            self.group = group

        def _comm_ptr(self):
            own, device = self.group.own, cupy.cuda.runtime.getDevice()
            if own is not None and not own.comm:
                raise RuntimeError("NCCL communicator was aborted on rank 0.")
            return own.comm if own is not None and own.device_id() == device else 0


OWNERS = {
    "cupy": lambda own: own,
    "nccl4py": OfNccl4py,
    "torch": OfTorch,
    "backend of torch": lambda own: OfTorch.Backend(OfTorch(own)),
    "pointer": lambda own: own.comm,
}


def made(world, *, size=None, rank=None):
    """Return CuPy's communicator of the ranks of `world`, on this rank's device."""
    size, rank = size or world.size, world.rank if rank is None else rank
    with cupy.cuda.Device(world.rank):
        alone = size == 1
        unique = nccl.get_unique_id() if world.rank == 0 or alone else None
        unique = unique if alone else world.broadcast_object(unique)
        return nccl.NcclCommunicator(size, unique, rank)


def summed(call, rank, size):
    """Tell whether a sum of the ranks' numbers is right."""
    with cupy.cuda.Device(rank):
        x = cupy.full(3, rank + 1, np.float32)
        call(x)
        return x.get().tolist() == [size * (size + 1) / 2] * 3


def by_owner(own):
    """Return the owner's own sum in place."""
    return lambda x: own.allReduce(
        x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr
    )


@pytest.mark.processes
@pytest.mark.parametrize("owner", OWNERS)
@ranked(2, backend="loopback", current=False)
def test_calls_go_over_it_and_it_stays(world, owner):
    own, rank, size = made(world), world.rank, world.size
    with hpccomm.new_comm(nccl=OWNERS[owner](own), timeout=30.0) as comm:
        assert comm.backends["cuda"] == "nccl"
        every_kind(comm)
        with cupy.cuda.Device(rank):
            work = comm.all_reduce(x := cupy.ones(2, np.float32), async_op=True)
            work.wait(block=True)
            assert x.get().tolist() == [size] * 2
            x = comm.empty(4, np.float32, device=comm.device)
            x.fill(1)
            plan = comm.plan("all_reduce", x)
            plan()
            assert plan.choice.registered
            assert x.get().tolist() == [size] * 4
            del x, plan
        assert summed(by_owner(own), rank, size)
        assert summed(comm.all_reduce, rank, size)
    assert summed(by_owner(own), rank, size)
    own.destroy()


@pytest.mark.standin
@ranked(3, backend="loopback", current=False, ranks_per_node=2)
def test_nccl_makes_no_communicator_and_those_of_groups_are_hpccomms(world, nccl_made):
    rank, size = world.rank, world.size
    own, counts = made(world), []

    def count():
        world.barrier()
        counts.append(len(nccl_made()))
        world.barrier()

    count()
    with hpccomm.new_comm(nccl=own, device=rank) as comm:
        count()
        with pytest.raises(hpccomm.BackendUnavailable, match=r"comm.split\(comm.node\)"):
            summed(comm.node_comm.all_reduce, rank, size)
        with comm.split(0) as group, comm.dup() as twin:
            assert summed(group.all_reduce, rank, size)
            assert summed(twin.all_reduce, rank, size)
        if rank < 2:
            with comm.shrink([2]) as left:  # not by NCCL's, which may share memory with it
                assert summed(left.all_reduce, rank, 2)
                assert not any("shrunk" in each.name for each in nccl_made())
        count()
        assert summed(comm.all_reduce, rank, size)
    count()
    own.destroy()
    count()
    assert counts == [3, 3, 3, 3, 0]


def misfits(world):
    """Return communicators that do not fit, with the error's words for each."""
    other = 1 - world.rank
    ended = made(world)
    ended.destroy()
    alone, turned, fitting = made(world, size=1, rank=0), made(world, rank=other), made(world)
    return [
        (alone, {}, "rank(s 0 and 1| 0).*nccl= is of size 1 and mpi_comm of 2"),
        (turned, {}, "the ranks in another order"),
        (fitting, {"device": other}, "rank 0 .*: nccl= is on device 0 and not on 1; give device=0"),
        (ended, {}, "has been ended"),
        (OfTorch(), {}, "PyTorch has not made it for this device"),
        (fitting if world.rank else ended, {}, "rank 0 .*has been ended"),
        (OfTorch.Backend(None), {}, "is not to be used .AttributeError"),
        ("world", {}, "AttributeError.*give CuPy's or nccl4py's, a process group"),
        (True, {}, "nccl= has been ended"),
    ], [alone, turned, fitting]


@ranked(2, backend="loopback", current=False)
def test_what_does_not_fit_is_refused_on_every_rank_before_a_call(world):
    cases, owned = misfits(world)
    for given, how, words in cases:
        with pytest.raises(hpccomm.BackendUnavailable) as caught:
            hpccomm.new_comm(nccl=given, timeout=20.0, **how)
        assert re.search(words, str(caught.value)), str(caught.value)
        same = world.all_gather_object(str(caught.value))
        assert len(set(same)) == 1
    with hpccomm.new_comm(nccl=owned[-1]) as comm:  # nothing is left behind
        assert summed(comm.all_reduce, world.rank, world.size)
    for each in owned:
        each.destroy()


@pytest.mark.standin
@pytest.mark.parametrize("fails", [True, False])
@ranked(2, backend="loopback", current=False)
def test_one_that_has_failed_or_is_of_another_library_is_refused(world, fails, monkeypatch):
    from standin.nccl import calls

    own = made(world)
    if fails:
        calls.find(own.comm).notice(7)  # ncclInProgress: it does not block, or is still being made
    else:
        # There is no second NCCL here; tests/backends/test_nccl_libraries.py has two.
        monkeypatch.setattr(opening, "another_library", lambda given: "of another")
    words = "in progress.*and blocks" if fails else r"ranks 0 and 1 \(.*\): of another"
    with pytest.raises(hpccomm.BackendUnavailable, match=words):
        hpccomm.new_comm(nccl=own)
    world.barrier()
    own.abort()


@ranked(2, backend="loopback", current=False)
def test_given_on_some_ranks_or_beside_what_excludes_it_is_refused_before_a_call(world):
    own, refused = made(world), pytest.raises
    with refused(hpccomm.ConfigurationError, match="nccl is 'given' on rank 0 and 'None'"):
        hpccomm.new_comm("nccl", nccl=None if world.rank else own)
    with refused(hpccomm.UsageError, match="leave backend out"):
        hpccomm.new_comm("loopback", nccl=own)
    options = hpccomm.CommOptions(nccl_config={"maxCTAs": 8})
    for rank in range(world.size):  # one after the other: none waits for the others
        if rank == world.rank:
            with refused(hpccomm.UsageError, match=r"has maxCTAs.*leave nccl_config out"):
                hpccomm.new_comm(nccl=own, device=rank, options=options)
        world.barrier()
    own.destroy()


def lost(world, own):
    """Have rank 0 call alone until its deadline; return the stream."""
    comm, noticed, stream = hpccomm.new_comm(nccl=own, timeout=30.0), [], None
    comm.register_abort_hook(noticed.append)
    assert summed(comm.all_reduce, world.rank, world.size)
    if world.rank == 0:
        with cupy.cuda.Device(0):
            stream = cupy.cuda.Stream(non_blocking=True)
            comm.all_reduce(cupy.ones(3, np.float32), stream=stream, timeout=0.3)
            until(lambda: noticed)
            with pytest.raises(hpccomm.CollectiveTimeout, match="all_reduce"):
                comm.finalize()  # no call has told it
            comm.finalize()  # told once
    world.barrier()
    if world.rank:
        comm.abort()
    return stream


@pytest.mark.processes
@ranked(2, backend="loopback", current=False)
def test_after_a_timeout_it_is_revoked_and_its_owner_ends_it(world):
    own = made(world)
    stream = lost(world, own)
    if stream is not None:
        stream.synchronize()
    assert own.size() == 2  # it is there still
    with pytest.raises(nccl.NcclError) as caught:
        summed(by_owner(own), world.rank, 2)
    assert caught.value.status == 5  # ncclInvalidUsage: communicator was revoked
    own.destroy()


@pytest.mark.standin
def test_where_nccl_cannot_revoke_its_owner_is_asked_to_abort(monkeypatch, caplog):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22703")

    def main(world):
        own = made(world)
        stream = lost(world, own)
        assert own.size() == 2
        if stream is not None:
            assert not stream.done
        own.abort()
        if stream is not None:
            stream.synchronize()

    run_ranks(2, main)
    assert "let its owner abort it" in caplog.text


@pytest.mark.standin
@pytest.mark.parametrize("owner", ["cupy", "nccl4py", "torch"])
@ranked(2, backend="loopback", current=False)
def test_what_its_owner_has_freed_is_not_asked_again(world, owner):
    """PyTorch's watchdog aborts by itself, and ncclCommAbort frees: the stand-in sees what comes after it."""
    own, rank = made(world), world.rank
    comm = hpccomm.new_comm(nccl=OWNERS[owner](own))
    assert summed(comm.all_reduce, rank, world.size)
    world.barrier()
    with cupy.cuda.Device(1 - rank):  # whichever device is current
        own.abort()
    with pytest.raises(hpccomm.CommunicationError, match="has been ended"):
        summed(comm.all_reduce, rank, world.size)
    comm.abort()


@pytest.mark.standin
@pytest.mark.parametrize("end", [hpccomm.Communicator.finalize, hpccomm.Communicator.abort])
def test_the_owners_object_lives_as_long_as_the_communicator(end, nccl_made):
    """CuPy's destructor ends NCCL's communicator."""

    def main(world):
        comm = hpccomm.new_comm(nccl=made(world))
        gc.collect()
        assert summed(comm.all_reduce, world.rank, world.size)
        end(comm)
        world.barrier()

    run_ranks(2, main)
    gc.collect()
    until(lambda: not nccl_made())  # an abort goes on in a thread
