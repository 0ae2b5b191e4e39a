"""The stand-in's NCCL refuses what NCCL refuses, and sees code that breaks its rules.

``tests/standin/README.md`` has the rules and their sources. No GPU has shown them.
"""

import ctypes
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from held import in_thread
from raw_ranks import broken, on_ranks, raw, sound, status_of
from until import until

control = pytest.importorskip("standin.control")
cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

calls = import_module("standin.nccl.calls")
library = import_module("standin.nccl.library").library
runtime = cupy.cuda.runtime

pytestmark = pytest.mark.standin

SIZE = 3
FLOAT32 = nccl.NCCL_FLOAT32
SUM, AVG = nccl.NCCL_SUM, nccl.NCCL_AVG


def summed(c, x, stream, **how):
    """Return the status of a sum of float32 in place; by default of one element."""
    given = {"count": 1, "datatype": FLOAT32, "op": SUM, **how}
    return status_of(c.allReduce, x, x, *given.values(), stream.ptr)


@pytest.mark.parametrize(("version", "float8"), [("22304", 4), ("22400", 0)])
def test_what_nccl_has_no_number_for_is_refused(version, float8, monkeypatch):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", version)

    def main(rank, c, stream):
        x = cupy.zeros(4).data.ptr
        wrong = ({"datatype": 10}, {"datatype": 12}, {"op": 5})
        told = [summed(c, x, stream, **how) for how in wrong]
        told.append(status_of(c.broadcast, x, x, 1, FLOAT32, SIZE, stream.ptr))
        told.append(status_of(c.send, x, 1, FLOAT32, -1, stream.ptr))
        return [*told, summed(c, 0, stream)]

    assert sound(on_ranks(main)) == [[float8] + [4] * 5] * SIZE


BARRIER = threading.Barrier(2)


@raw(2)
def test_two_sends_without_a_group_block_their_streams_until_an_abort(rank, c, stream):
    x, y = cupy.zeros(1), cupy.zeros(1)
    stream.synchronize()
    c.send(x.data.ptr, 1, FLOAT32, 1 - rank, stream.ptr)
    c.recv(y.data.ptr, 1, FLOAT32, 1 - rank, stream.ptr)
    BARRIER.wait(20)
    assert not stream.done
    c.abort()
    stream.synchronize()
    assert (c.comm, status_of(c.size)) == (0, 4)


@raw()
def test_an_error_in_a_group_has_nothing_of_it_done(rank, c, stream):
    x = cupy.ones(1, np.float32)
    nccl.groupStart()
    summed(c, x.data.ptr, stream)
    assert summed(c, x.data.ptr, stream, datatype=99) == 4
    assert (status_of(nccl.groupEnd), status_of(nccl.groupEnd)) == (4, 5)
    assert x.get() == 1


@raw(breaks="differs between the ranks", times=SIZE)
def test_calls_that_differ_are_an_error_that_nccl_notices(rank, c, stream):
    x = cupy.ones(4, np.float32).data.ptr
    summed(c, x, stream, count=1 + (rank == 1))
    until(lambda: status_of(c.check_async_error))
    assert (summed(c, x, stream), stream.done) == (5, False)
    c.abort()


@raw(breaks="overlaps", times=3 * SIZE)
def test_memory_of_one_group_overlaps_nowhere(rank, c, stream):
    x = cupy.ones(2 * SIZE, np.float32)
    at, own = x.data.ptr, x.data.ptr + rank * 4
    for send, recv, count in [(at, at + 4, 1), (at, at, 1), (at, at + 4, 2)]:
        nccl.groupStart()
        c.send(send, count, FLOAT32, (rank + 1) % SIZE, stream.ptr)
        c.recv(recv, count, FLOAT32, (rank - 1) % SIZE, stream.ptr)
        nccl.groupEnd()
    # In place, as it is meant.
    c.allGather(own, at, 1, FLOAT32, stream.ptr)
    c.reduceScatter(at, own, 1, FLOAT32, SUM, stream.ptr)
    c.allReduce(at, at, 2, FLOAT32, SUM, stream.ptr)
    # And not.
    c.allReduce(at, at + 4, 2, FLOAT32, SUM, stream.ptr)
    stream.synchronize()


@raw(1)
def test_one_thread_at_a_time_uses_a_communicator_which_ends_once(rank, c, stream):
    x, handle = cupy.ones(1, np.float32).data.ptr, c.comm
    with calls.find(handle).using:  # as another thread inside a call has it
        assert summed(c, x, stream) == 5
    broken("two threads")
    for _ in range(2):
        c.destroy()
    assert summed(c, x, stream) == 4
    assert control.violations == []
    for end in (calls.destroy, calls.async_error):  # through the raw pointer
        assert end(handle) in (4, (4, 0))
        broken("had ended")


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, 5),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, 0),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "STANDIN_NCCL_VERSION": "22905"}, 5),
    ],
)
def test_ranks_share_a_gpu_only_where_nccl_lets_them(variables, status, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    results = on_ranks(lambda *_: SimpleNamespace(status=0), 2, devices=[0, 0])
    assert [result.status for result in results] == [status] * 2


def test_a_unique_id_serves_one_communicator():
    unique = nccl.get_unique_id()
    first = nccl.NcclCommunicator(1, unique, 0)
    assert status_of(nccl.NcclCommunicator, 1, unique, 0) == 6
    first.destroy()


@raw(1)
def test_one_rank_copies_on_the_current_device_and_has_no_factor_of_float8(rank, c, stream):
    x, y = cupy.asarray(np.arange(4, dtype=np.float32)), cupy.zeros(4, np.float32)
    given = x.data.ptr, y.data.ptr, 4
    for datatype in (10, 11):
        told = [status_of(c.allReduce, *given, datatype, op, stream.ptr) for op in (SUM, AVG)]
        assert told == [0, 4]
    c.allReduce(*given, FLOAT32, AVG, stream.ptr)
    assert y.get().tolist() == x.get().tolist()
    assert not control.violations
    with cupy.cuda.Device(1):
        c.allReduce(*given, FLOAT32, SUM, 0)
    broken("NCCL copies on the current device, 1, and not on that")


@raw(2)
def test_collectives_of_a_group_run_by_size_and_not_in_the_order_of_the_calls(rank, c, stream):
    arrays = [cupy.ones(n, np.float32) for n in (1, SIZE)]
    cupy.cuda.Device().synchronize()
    nccl.groupStart()
    for x in arrays if rank else arrays[::-1]:
        summed(c, x.data.ptr, stream, count=x.size)
    nccl.groupEnd()
    stream.synchronize()


def allocated(nbytes):
    """Return memory of ncclMemAlloc."""
    pointer = ctypes.c_void_p()
    assert library.ncclMemAlloc(ctypes.byref(pointer), nbytes) == 0
    return pointer


@raw(1)
def test_memory_of_nccl_is_freed_once_when_it_is_registered_no_more(rank, c, stream):
    pointer, handle = allocated(4), ctypes.c_void_p()
    library.ncclCommRegister(c.comm, pointer, 4, ctypes.byref(handle))
    for status, words in ((0, "memory that is registered"), (4, "ncclMemAlloc has not given")):
        assert library.ncclMemFree(pointer) == status
        broken(words)
    assert library.ncclCommDeregister(c.comm, handle) == 0
    assert library.ncclCommDeregister(c.comm, handle) == 4
    broken("what is not registered")


@raw(2, breaks="registered on some ranks", times=3)
def test_registered_memory_is_for_all_ranks_of_a_call_at_one_offset(rank, c, stream):
    pointer, handle = allocated(4 * SIZE), ctypes.c_void_p()
    for registered in ((0, 1), (1,), (0,)):
        if rank in registered:
            library.ncclCommRegister(c.comm, pointer, 4 * SIZE, ctypes.byref(handle))
        summed(c, pointer.value, stream)
        if registered == (0, 1):
            summed(c, pointer.value + 4 * rank, stream)
        stream.synchronize()
        if rank in registered:
            assert library.ncclCommDeregister(c.comm, handle) == 0


@pytest.mark.parametrize("message", [False, True])
@pytest.mark.parametrize(("on", "mixed"), [("1", True), ("0", True), ("1", False)])
def test_a_captured_call_needs_memory_of_one_kind_where_nccl_registers_it(
    message, on, mixed, monkeypatch
):
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", on)

    def main(rank, c, stream):
        pointer, x = allocated(4), cupy.zeros(1, np.float32)
        at = x.data.ptr if rank and mixed else pointer.value
        stream.begin_capture()
        if message:
            (c.recv if rank else c.send)(at, 1, FLOAT32, 1 - rank, stream.ptr)
        else:
            summed(c, at, stream)
        graph = stream.end_capture()
        graph.launch(stream)
        if on == "1" and mixed:
            until(lambda: control.violations)
            assert not stream.done
            assert not status_of(c.check_async_error)
            aborting = threading.Thread(target=c.abort)
            aborting.start()
            stream.synchronize()
            del graph  # NCCL's abort waits for it
            aborting.join()
        stream.synchronize()

    sound(on_ranks(main, 2))
    broken("NCCL_GRAPH_REGISTER", on == "1" and mixed)


@pytest.mark.parametrize("revoked", [True, False])
def test_an_abort_while_a_thread_is_in_a_call_is_seen(revoked, monkeypatch):
    """A revocation frees nothing."""
    monkeypatch.setenv("STANDIN_CONNECT", "1")

    def main(rank, c, stream):
        def leave():
            until(lambda: calls.find(c.comm).inside)
            calls.revoke(c.comm) if revoked else c.abort()

        if not rank:
            ends = threading.Thread(target=leave)
            ends.start()
            x = cupy.ones(1, np.float32).data.ptr
            assert in_thread(lambda: summed(c, x, stream)) == 3
            ends.join()

    sound(on_ranks(main, 2))
    broken("aborted while a thread was in a call", not revoked)
