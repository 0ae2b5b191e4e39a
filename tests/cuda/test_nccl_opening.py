"""Making NCCL's communicators: one outcome for all ranks, under a deadline, and nothing hangs."""

import cupy
import numpy as np
import pytest
from nccl_ranks import bare, on_ranks, ranked, sound
from until import until

from hpccomm.backends.nccl import libnccl
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted, RankMismatch
from hpccomm.memory.cuda import memory
from hpccomm.reductions import ReduceOp

SUM = Signature("all_reduce", np.dtype("f4"), (1,), op=ReduceOp.SUM, in_place=True)
LONG = 60.0
"""A deadline that no test waits for: `on_ranks` gives up before, and a rank that reaches it fails."""


def summed(backend, algorithm="native"):
    """Return the sum of the ranks' numbers, each one more than its rank."""
    with cupy.cuda.Device(backend.device):
        # Its own: threads that share a GPU share its default stream as well.
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.full(1, backend.rank + 1, np.float32)
        pinned = backend.native(SUM, algorithm)
        if pinned.needs is not None:
            pinned.needs.make()
        pinned.launch(x.data.ptr, x.data.ptr, stream.ptr)
        stream.synchronize()
        return float(x.get()[0])


def refused(rank):
    """Return why NCCL could not be opened."""
    backend, why = rank.open()
    if backend is not None:
        backend.close()
    return why


def the_same(results):
    """Return what all ranks were told."""
    sound(results)
    assert len(set(results)) == 1, results
    assert results[0]
    return results[0]


@pytest.mark.standin
@ranked(2)
def test_a_node_that_is_the_world_has_no_nccl_communicator_of_its_own(comm, nccl_made):
    """Each takes NCCL's setup and buffers once more."""
    x = cupy.full(2, comm.rank + 1, np.float32)
    assert comm.node_comm.backends["cuda"] == "nccl"
    assert comm.node_comm.explain("all_reduce", x).backend == "nccl"
    assert comm.node_comm.all_reduce(x).get().tolist() == [3, 3]
    assert len(nccl_made()) == 2
    comm.barrier()


def not_asked():
    """Fail a test in which NCCL is asked for an id."""
    pytest.fail("NCCL was called")


@pytest.mark.standin
@pytest.mark.parametrize(
    ("devices", "asked", "failing", "words"),
    [
        ([0, 1, 1], not_asked, "", "ranks 1 and 2 have the same GPU"),
        ([0, None], not_asked, "", "rank 1 ("),
        ([0, 1, 2], lambda: libnccl.check(2), "", "rank 0 gets no unique id"),
        # The others are in NCCL, and would wait there for the one that failed.
        *(([0, 1, 2], None, rank, f"rank {rank}: NcclError") for rank in ("0", "2")),
    ],
)
def test_trap_a_failure_is_told_on_all(interrupted, monkeypatch, devices, asked, failing, words):
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    monkeypatch.setenv("STANDIN_FAIL_INIT", failing)
    if asked is not None:
        interrupted("ncclGetUniqueId", asked)
    assert words in the_same(on_ranks(len(devices), refused, devices=devices, timeout=LONG))


@pytest.mark.standin
@bare(2, devices=[0, 0])
def test_ranks_share_a_gpu_where_nccl_lets_them(rank, monkeypatch):
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    backend = rank.opened()
    assert summed(backend) == 3
    backend.close()


@pytest.mark.standin
def test_trap_a_device_that_cuda_aware_mpi_uses_is_told_on_all(interrupted):
    interrupted("ncclGetUniqueId", not_asked)
    assert memory.claim(1, memory.MPI) == ""
    try:
        why = the_same(on_ranks(2, refused, timeout=LONG))
    finally:
        memory.release(1, memory.MPI)
    assert why.startswith("rank 1 (")
    assert "in use by CUDA-aware MPI" in why
    # Rank 0's own device was free, and is again.
    assert memory.claim(0, memory.MPI) == ""
    memory.release(0, memory.MPI)


@pytest.mark.standin
def test_trap_a_rank_that_does_not_come_ends_in_a_timeout(monkeypatch):
    monkeypatch.setenv("STANDIN_LATE_RANK", "1")

    def hurried(rank):
        drive = rank.waits.drive

        def driven(name, steps):
            rank.waits.timeout = 0.3 if name == "making NCCL's communicator" else LONG
            drive(name, steps)

        rank.waits.drive = driven
        return refused(rank)

    results = on_ranks(3, hurried)
    assert [type(each) for each in results] == [CollectiveTimeout] * 3
    assert all("NCCL_SOCKET_IFNAME" in str(each) for each in results)
    assert memory.claim(0, memory.MPI) == ""  # nothing is left claimed
    memory.release(0, memory.MPI)


@bare(3)
def test_groups_and_several_communicators_of_the_same_ranks(rank):
    whole = rank.opened()
    part = rank.group([0, 2] if rank.rank in (0, 2) else [1], 7).opened()
    assert (summed(whole), summed(part), summed(whole)) == (6, 1 if rank.rank == 1 else 3, 6)
    part.close()
    assert memory.claim(rank.device, memory.MPI) != ""
    assert summed(whole) == 6
    whole.close()


@pytest.mark.standin
@bare(1)
def test_no_registered_memory_where_the_library_has_none(rank, monkeypatch):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "21805")
    backend = rank.opened()
    assert (backend.empty(64), backend.place(4096, 1)) == (None, None)
    assert summed(backend) == 1.0
    backend.close()


@pytest.mark.usefixtures("pinned")
@pytest.mark.standin
@bare(2, timeout=LONG)
def test_a_pinned_communicator_that_fails_is_told_on_all(rank, monkeypatch):
    backend = rank.opened()
    rank.control.all_gather(b"")
    monkeypatch.setenv("STANDIN_FAIL_INIT", "1")
    with pytest.raises(CommunicationError, match="rank 1: NcclError"):
        backend.native(SUM, "tree").needs.make()
    assert summed(backend) == 3  # the others go on
    backend.close()


@pytest.mark.usefixtures("pinned")
@bare(2, timeout=LONG)
def test_trap_ranks_that_pin_different_algorithms_are_told_before_nccl_is_called(rank):
    """NCCL connects them as if they were of one mind."""
    backend = rank.opened()
    needs = backend.native(SUM, "tree" if rank.rank else "ring").needs
    with pytest.raises(RankMismatch, match="rank 0: 'ring', rank 1: 'tree'"):
        needs.make()
    assert not needs.done()
    assert summed(backend, "ring") == 3  # nothing was begun
    backend.close()


@pytest.mark.standin
@bare(1, timeout=LONG)
def test_what_is_made_while_another_thread_aborts_is_not_there(rank, interrupted, nccl_made):
    backend = rank.opened()
    interrupted("ncclCommInitRank", lambda _: backend.abort())
    with pytest.raises(CommunicatorAborted, match="'ring' has no communicator"):
        backend._communicators.make("ring")  # a call's `needs` there are of several ranks
    until(lambda: not nccl_made())  # aborted as well
