"""Calls of a communicator on its device: single, planned, in batches, refused, and abandoned."""

import contextlib
import threading
from functools import partial

import cupy
import numpy as np
import pytest
from held import Held
from nccl_ranks import on_devices, ranked
from until import until

import hpccomm


@pytest.mark.processes
@ranked(2)
def test_a_batch_keeps_its_order_whichever_ranks_are_in_place(comm):
    a = cupy.asarray(np.full(2, 10 + comm.rank, np.float32))
    b = cupy.asarray(np.full(2, 20 + comm.rank, np.float32))
    here = comm.rank == 0
    with comm.batch():
        got_a = comm.all_to_all(a, out=a if here else None)
        got_b = comm.all_to_all(b)
    assert got_a.get().tolist() == [10, 11]
    assert got_b.get().tolist() == [20, 21]
    x = cupy.asarray(np.full(2, comm.rank, np.float32))
    y, out = cupy.zeros(2, np.float32), cupy.zeros(2, np.float32)
    peer = 1 - comm.rank
    with comm.batch():
        comm.send_recv(x, peer, x if here else out, peer)
        if here:
            comm.recv(y, peer)
        else:
            comm.send(cupy.asarray(np.full(2, 30, np.float32)), peer)
    assert (x if here else out).get().tolist() == [peer, peer]
    assert y.get().tolist() == ([30, 30] if here else [0, 0])


@pytest.mark.processes
@ranked(2)
def test_calls_of_a_batch_that_share_what_one_writes_are_refused(comm):
    whole, out = cupy.zeros(100, np.float32), cupy.zeros((comm.size, 100), np.float32)
    gathered, read = partial(comm.all_gather, whole, out=out), partial(comm.all_gather, whole)

    def summed(*part):
        return partial(comm.all_reduce, whole[slice(*part)])

    for first, second, shared in (
        (summed(50), summed(50, None), False),
        (summed(51), summed(50, None), True),
        (summed(None), summed(10, 20), True),
        (gathered, summed(20, 30), True),
        (summed(20, 30), gathered, True),
        (read, read, False),  # to read the same is no harm
    ):
        refusal = pytest.raises(hpccomm.UsageError, match="share memory")
        with refusal if shared else contextlib.nullcontext(), comm.batch():
            first()
            second()


@pytest.mark.processes
@ranked(2)
def test_a_message_to_oneself_whose_other_end_is_missing_is_refused_before_nccl_is_called(comm):
    me, x, y = comm.rank, cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
    nothing = cupy.zeros(0, np.float32)
    with pytest.raises(hpccomm.UsageError, match="to itself"):
        comm.send(x, me)
    with pytest.raises(hpccomm.UsageError, match="to itself"):
        comm.send_recv(x, me, y[:2], me)

    def batched(*received):
        with comm.batch():
            comm.send(x, me)
            for each in received:
                comm.recv(each, me)

    for wrong in ((), (y[:2],)):
        with pytest.raises(hpccomm.UsageError, match="to itself"):
            batched(*wrong)
    comm.send(nothing, me)
    batched(y)
    assert y.get().tolist() == [1] * 4


@pytest.mark.usefixtures("pinned")
@pytest.mark.processes
@ranked(2)
def test_a_call_that_a_capture_refuses_leaves_the_communicator_as_it_was(comm):
    x, out = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
    with cupy.cuda.Stream(non_blocking=True) as own:
        own.synchronize()
        for refused in (
            lambda: comm.all_gather(x),  # makes its result
            lambda: comm.all_reduce(x, algorithm="ring"),  # has no communicator yet
        ):
            own.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            with pytest.raises(hpccomm.UsageError, match="captured"):
                refused()
            own.end_capture()
        comm.all_reduce(x, out=out)
        assert out.get().tolist() == [comm.size] * 4


@ranked(1)
def test_trap_a_plans_new_result_waits_for_what_its_memory_was_used_for(comm):
    """A pool gives memory again for the same stream alone, whose work may be under way; a plan takes any stream."""
    held, x = Held(cupy.cuda.Stream(non_blocking=True)), cupy.ones(1000)
    cupy.cuda.get_current_stream().synchronize()
    with held.stream:
        cupy.empty((1, 1000)).fill(5)
        threading.Timer(0.1, held.let_go).start()
        plan = comm.plan("all_gather", x)
    with cupy.cuda.Stream(non_blocking=True) as other:
        result = plan()
        other.synchronize()
    held.stream.synchronize()
    assert (result.get() == 1).all()


@pytest.mark.processes
@ranked(2)
def test_ranks_that_plan_on_different_kinds_of_arrays_are_told(comm):
    x = cupy.ones(4, np.float32) if comm.rank else np.ones(4, np.float32)
    with pytest.raises(hpccomm.RankMismatch, match="cuda"):
        comm.plan("all_reduce", x)


@pytest.mark.processes
@ranked(2, timeout=60)
def test_ranks_whose_first_asynchronous_calls_differ_are_told(comm):
    x = cupy.zeros(4, bool if comm.rank else np.uint8)  # which are the same to NCCL
    work = comm.all_reduce(x, op=hpccomm.ReduceOp.MAX, async_op=True)
    until(work.exception)  # it waits for nobody: the ranks may learn of it later
    with pytest.raises(hpccomm.RankMismatch, match="dtype uint8"):
        work.wait()


@pytest.mark.standin
@ranked(3)
def test_trap_nothing_is_under_way_on_a_communicator_that_nccl_shrinks(comm, nccl_made):
    x, held = cupy.ones(4, np.float32), Held(cupy.cuda.Stream(non_blocking=True))
    cupy.cuda.get_current_stream().synchronize()
    comm.all_reduce(x, stream=held.stream)
    threading.Timer(0.1, held.let_go).start()
    if comm.rank < 2:
        with comm.shrink([2]) as fewer:
            assert any("shrunk" in each.name for each in nccl_made())
            fewer.all_reduce(x)
            cupy.cuda.get_current_stream().synchronize()
            assert x.get().tolist() == [6] * 4
    comm.barrier()


@pytest.mark.standin
@pytest.mark.parametrize("high", [False, True])
def test_asynchronous_calls_have_the_priority_that_is_asked_for(high, seen):
    def call(comm):
        comm.all_reduce(cupy.ones(4), async_op=True).wait()

    on_devices(2, call, options=hpccomm.CommOptions(high_priority_stream=high))
    # CUDA: the smaller the number, the sooner the stream's work runs.
    assert high == any(of[1] < 0 for name, *of in seen if name == "streamCreateWithPriority")
