"""Device arrays through pinned host memory: in parts, in order, and in memory of their own."""

import threading
from functools import partial

import cupy
import numpy as np
import pytest
from device_trials import carried_out
from held import Held
from nccl_ranks import ranked, run_ranks

from hpccomm.calls.staged import ROW_BYTES
from hpccomm.errors import BufferMismatch
from hpccomm.memory.cuda import memory
from hpccomm.memory.cuda.memory import Pool
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, WITH_DATA, Spec

PART = 1 << 12
"""Bytes of a part here: small arrays have several."""

F64 = np.dtype(np.float64)


pytestmark = pytest.mark.usefixtures("late")


# What comes out.


def in_parts(comm):
    """Have a communicator's arrays go by the host in parts of `PART` bytes; return what decides that."""
    dispatch = comm._core.lanes.device.dispatch  # no setting: else arrays take 20 MiB
    dispatch.part_bytes = PART
    return dispatch


def checked(comm, count, results, collectives=WITH_DATA, **how):
    in_parts(comm)
    for collective in collectives:
        spec = Spec(collective, count, F64, root=comm.size - 1, results=(results,))
        carried_out(comm, spec, **how)


@pytest.mark.pairs
@pytest.mark.standin
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("results", [OUT, IN_PLACE])
@pytest.mark.parametrize("count", [0, 1, PART // 8, PART // 8 + 1, 5 * PART // 8 + 3])
def test_every_collective_in_parts(count, results, size) -> None:
    run_ranks(size, checked, count, results)


@pytest.mark.standin
@pytest.mark.parametrize("algorithm", ["pairwise", "shm"])
@pytest.mark.parametrize("pitch", [2**31 - 1, 100])  # CUDA's limit, beyond which rows go one by one
def test_exchanged_parts_do_not_share_their_memory(algorithm, pitch, monkeypatch) -> None:
    """Blocks of several rows: what is sent and what is received then lies alike in every part.

    Uneven calls stay whole: each rank would have its own number of parts, and none of a block of nothing.
    """
    monkeypatch.setattr(memory, "_LARGEST_PITCH", pitch)  # else an array of 2 GiB
    check = partial(checked, collectives=["all_to_all"], algorithm=algorithm)
    run_ranks(3, check, 2 * ROW_BYTES // 8 + 3, OUT)
    check = partial(checked, collectives=["all_gather", "all_to_all"])
    run_ranks(3, check, (100 * PART // 8, 0, 3), OUT)


@pytest.mark.standin
@ranked(4, backend="loopback")
def test_deterministic_results_have_the_hosts_bits_whatever_the_parts(comm) -> None:
    in_parts(comm)
    x = (np.random.default_rng(comm.rank).random(4 * PART) * 10.0**comm.rank).astype(np.float32)
    assert comm.explain("all_reduce", cupy.asarray(x)).segment == PART
    expected = comm.all_reduce(x.copy(), deterministic=True)
    got = comm.all_reduce(cupy.asarray(x), deterministic=True)
    assert cupy.asnumpy(got).tobytes() == expected.tobytes()


@pytest.mark.standin
@ranked(2, backend="loopback")
def test_a_part_is_copied_while_the_one_before_is_communicated(comm, seen) -> None:
    in_parts(comm)
    x, own = cupy.arange(4 * PART // 8), []

    def folded(a, b):
        if a.size > 8:  # the others are a test of the function
            seen.append(("fold", comm.rank))
        return a + b

    comm.all_reduce(x, folded)
    assert np.array_equal(cupy.asnumpy(x), 2 * np.arange(x.size))
    for name, *of in tuple(seen):
        if name == "fold" and of == [comm.rank]:
            own.append("fold")
        elif name == "memcpyAsync" and x.data.ptr <= of[1] < x.data.ptr + x.nbytes:
            own.append("fetch")
        elif name == "memcpyAsync" and x.data.ptr <= of[0] < x.data.ptr + x.nbytes:
            own.append("return")
    assert own == ["fetch", *["fetch", "fold", "return"] * 3, "fold", "return"]


# Pinned memory.


@pytest.mark.standin
def test_what_calls_pin_together_stays_pinned(seen) -> None:
    """cudaFreeHost waits for the device (CUDA Runtime API), and pinning takes as long as copying."""
    from standin import heap

    pool, before = Pool(kept=1 << 20), heap.used(-1)
    for _ in range(5):
        blocks = [pool.take(3 << 20, 0) for _ in range(2)]
        for block in blocks:
            pool.give_back(block)
    assert [name for name, *_ in seen].count("hostAlloc") == 2
    assert pool.take(2 << 20, 0) in blocks  # a little smaller
    del blocks, block
    lost = pool.take((40 << 20) + 1, 0)
    assert lost.bytes.size > 40 << 20
    del lost  # a call that failed
    for _ in range(1500):
        pool.give_back(pool.take(1000, 0))
    assert heap.used(-1) - before <= 1 << 20


# Messages.


@ranked(2, backend="loopback")
def test_messages_of_one_tag_leave_in_order_whichever_copy_is_ready_first(comm) -> None:
    x, y = (cupy.full(10, 0.0 if comm.rank else number) for number in (1.0, 2.0))
    slow, quick = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    if comm.rank:
        comm.recv(x, 0, 5)
        comm.recv(y, 0, 5)
        assert [float(x[0]), float(y[0])] == [1.0, 2.0]
    else:
        held = Held(slow)
        work = comm.send(x, 1, 5, stream=slow, async_op=True)
        threading.Timer(0.05, held.let_go).start()
        comm.send(y, 1, 5, stream=quick)
        work.wait()


@pytest.mark.standin
@ranked(2, backend="loopback")
def test_trap_a_result_is_on_the_device_before_another_call_has_its_pinned_memory(comm) -> None:
    x, y = (cupy.full(100, 10.0 * comm.rank + n) for n in (1, 2))
    other = comm.dup()
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as before:  # which the result's copy waits for
        held = Held(before) if comm.rank else None
        work = comm.broadcast(x, 0, async_op=True)
    for _ in range(50):  # some come when the host has done its part of that
        other.broadcast(y, 0)
    if held:
        held.let_go()
    work.wait(block=True)
    assert [x.get()[0], y.get()[0]] == [1.0, 2.0]
    other.finalize()


@pytest.mark.standin
@ranked(2, backend="loopback")
def test_messages_match_those_of_host_arrays_and_their_sizes_are_checked(comm) -> None:
    peer = 1 - comm.rank
    host, device = np.arange(6.0), cupy.arange(6, dtype=F64)
    if comm.rank:
        comm.send(device + 1.0, peer, 3)
        comm.recv(device, peer, 3)
        assert np.array_equal(cupy.asnumpy(device), host)
        comm.send(device[:5], peer)
    else:
        comm.recv(out := np.empty(6), peer, 3)
        assert np.array_equal(out, host + 1.0)
        comm.send(host, peer, 3)
        with pytest.raises(BufferMismatch, match="40 bytes"):
            comm.recv(device, peer)
    assert np.array_equal(cupy.asnumpy(comm.all_reduce(cupy.full(3, 2.0))), np.full(3, 4.0))
