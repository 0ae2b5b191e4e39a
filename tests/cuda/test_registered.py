"""Registered device memory: on all ranks of a call or on none, with any arguments.

NCCL's user guide, User Buffer Registration: if a rank of a communicator passes registered buffers to a
collective, all its ranks must, else the behaviour is undefined; with NVLS at the same offset. On a node
with NVSwitch, those with such a buffer wait for the others deaf to any abort (NCCL 2.30,
transport/nvls.cc: ncclNvlsLocalRegisterBuffer, misc/shmutils.cc: ncclShmemAllgather).
"""

import os

import cupy
import numpy as np
import pytest
from nccl_ranks import ranked, run_ranks

import hpccomm
from front.device_graphs import capture
from hpccomm.errors import RankMismatch

pytestmark = pytest.mark.standin

COUNT = 1000


def registered(comm, count=COUNT):
    return comm.empty(count, np.float32, device=comm.device)


MIXTURES = [
    # The array of `empty` on one rank, and an ordinary one on the others.
    lambda comm: registered(comm) if comm.rank else cupy.empty(COUNT, np.float32),
    # Views that begin elsewhere on each rank.
    lambda comm: registered(comm, 3 * COUNT)[comm.rank * COUNT :][:COUNT],
    # At the same offset of arrays of different sizes.
    lambda comm: registered(comm, (1 + comm.rank) * COUNT)[:COUNT],
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=["one rank", "other offsets", "other sizes"])
@ranked(2, timeout=30.0)
def test_ranks_may_pass_what_they_like(comm, mixture):
    x = mixture(comm)
    x.fill(1)
    comm.all_reduce(x)
    assert (x.get() == comm.size).all()
    whole = registered(comm)
    plan = comm.plan("all_reduce", x)
    assert not plan.choice.registered
    both = comm.plan("all_reduce", whole)
    assert both.choice.registered
    gathered = comm.plan("all_gather", x, out=registered(comm, (comm.size, COUNT)))
    for call in (plan, lambda: comm.all_reduce(x), plan):
        x.fill(1)
        call()
        assert (x.get() == comm.size).all()
    whole.fill(comm.rank)
    both()
    assert (whole.get() == sum(range(comm.size))).all()
    x.fill(comm.rank)
    assert (gathered().get() == np.arange(comm.size)[:, None]).all()
    # Messages, of which one end alone has such an array.
    peer = comm.size - 1 - comm.rank
    comm.send_recv(x, peer, whole, peer)
    assert (whole.get() == peer).all()
    with comm.batch():
        comm.all_reduce(x)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        with capture(stream) as graph:
            comm.all_reduce(x)
        x.fill(1)
        graph[0].launch(stream)
        assert (x.get(stream) == comm.size).all()
    comm.barrier()
    graph.clear()


@ranked(3, timeout=30.0)
def test_what_all_ranks_have_alike_is_registered_once(comm, nccl_made):
    whole = registered(comm, (comm.size, COUNT))
    x = registered(comm)
    plans = [
        comm.plan("all_gather", whole[comm.rank], out=whole),  # in place: the own block
        comm.plan("reduce_scatter", whole, out=x),
        comm.plan("all_reduce", x, async_op=True),
        comm.plan("broadcast", x[10:20]),
        comm.plan("reduce", x, comm.size - 1),
    ]
    assert all(plan.choice.registered for plan in plans), plans
    mine = [each for each in nccl_made() if each.rank == comm.rank]
    assert [len(each.registered) for each in mine] == [0, 2]
    for _ in range(2):
        whole[comm.rank].fill(comm.rank)
        plans[0]()
        assert (whole.get() == np.arange(comm.size)[:, None]).all()
        plans[1]()
        assert (x.get() == comm.size * comm.rank).all()
        plans[2]().wait()
        assert (x.get() == comm.size * sum(range(comm.size))).all()
        plans[3]()
    # The memory of one rank is gone, and made anew: what the others have is no match for it.
    del plans, whole
    y = x if comm.rank else registered(comm)
    plan = comm.plan("all_reduce", y)
    assert not plan.choice.registered
    y.fill(1)
    plan()
    assert (y.get() == comm.size).all()


@ranked(2, timeout=30.0)
def test_what_one_rank_cannot_register_is_registered_on_none(comm, monkeypatch, nccl_made):
    cases = (
        ("STANDIN_FAIL_REGISTER", "1"),
        ("STANDIN_FAIL_REGISTER", ""),
        ("NCCL_LOCAL_REGISTER", "0"),
    )
    for name, value in cases:
        comm.barrier()
        monkeypatch.setenv(name, value)
        comm.barrier()
        x = registered(
            comm
        )  # before it, that of the turn before is freed, which is registered no more
        for _ in range(2):
            assert comm.plan("all_reduce", x).choice.registered == (not value)
        # What carries most calls knows no memory, what registered memory is for does.
        mine = [len(each.registered) for each in nccl_made() if each.rank == comm.rank]
        assert mine == [0, int(not value)]
        del x


# Calls that are captured.


def batch(comm, x):
    with comm.batch():
        comm.all_reduce(x)
        comm.broadcast(cupy.ones(10))


def apart(comm, x):
    comm.all_reduce(x, async_op=True).wait()


@pytest.mark.parametrize("calls", [hpccomm.Communicator.all_reduce, batch, apart])
@ranked(2, timeout=30.0)
def test_a_call_is_captured_on_all_ranks_or_on_none(comm, calls):
    x = cupy.ones(COUNT, np.float32)
    calls(comm, x)  # from now on such calls are not agreed
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        calls(comm, x)
        graph = stream.end_capture()
        x.fill(1)
        graph.launch(stream)
        assert (x.get() == comm.size).all()
        if comm.rank:
            stream.begin_capture()

        def both():
            calls(comm, x)
            comm.broadcast(x[:7])  # which is agreed, as it is the first of its kind

        with pytest.raises(RankMismatch, match="captured"):
            both()
    del graph


def test_nccl_registers_no_captured_arrays_by_itself(monkeypatch):
    """Each rank goes by its own memory (NCCL 2.30, enqueue.cc:283, transport/p2p.cc:1100).

    With cudaMalloc's on one and ncclMemAlloc's on another they wait for an address for ever
    (device/prims_simple.h:758).
    """
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    run_ranks(1, lambda comm: None, backend="nccl")
    assert os.environ["NCCL_GRAPH_REGISTER"] == "0"
