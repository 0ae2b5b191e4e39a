"""The stand-in's NCCL refuses what NCCL refuses, and sees code that breaks its rules.

The rules are those of NCCL's user guide; where its source has one, its test names it. No GPU has shown them.
"""

import ctypes
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from raw_ranks import on_ranks, sound, status_of
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


def test_what_nccl_has_no_number_for_is_refused(monkeypatch):
    def main(rank, c, stream):
        x = cupy.zeros(4).data.ptr
        told = [status_of(c.allReduce, x, x, 1, datatype, SUM, stream.ptr) for datatype in (10, 12)]
        told.append(status_of(c.allReduce, x, x, 1, FLOAT32, 5, stream.ptr))
        told.append(status_of(c.broadcast, x, x, 1, FLOAT32, SIZE, stream.ptr))
        told.append(status_of(c.send, x, 1, FLOAT32, -1, stream.ptr))
        told.append(status_of(c.allReduce, 0, x, 1, FLOAT32, SUM, stream.ptr))
        return told

    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22304")
    assert sound(on_ranks(main)) == [[4] * 6] * SIZE
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22400")
    assert sound(on_ranks(main)) == [[0] + [4] * 5] * SIZE


def test_two_sends_without_a_group_block_their_streams_until_an_abort():
    barrier = threading.Barrier(2)

    def main(rank, c, stream):
        x, y = cupy.zeros(1), cupy.zeros(1)
        stream.synchronize()
        c.send(x.data.ptr, 1, FLOAT32, 1 - rank, stream.ptr)
        c.recv(y.data.ptr, 1, FLOAT32, 1 - rank, stream.ptr)
        barrier.wait(20)
        stuck = runtime.streamQuery(stream.ptr)
        c.abort()
        stream.synchronize()
        return stuck, c.comm, status_of(c.size)

    assert sound(on_ranks(main, 2)) == [(600, 0, 4)] * 2


def test_an_error_in_a_group_has_nothing_of_it_done():
    def main(rank, c, stream):
        x = cupy.ones(1, np.float32)
        nccl.groupStart()
        c.allReduce(x.data.ptr, x.data.ptr, 1, FLOAT32, SUM, stream.ptr)
        inside = status_of(c.allReduce, x.data.ptr, x.data.ptr, 1, 99, SUM, stream.ptr)
        ended = status_of(nccl.groupEnd)
        return inside, ended, float(x.get()[0]), status_of(nccl.groupEnd)

    assert sound(on_ranks(main)) == [(4, 4, 1.0, 5)] * SIZE


def test_calls_that_differ_are_an_error_that_nccl_notices():
    def main(rank, c, stream):
        x = cupy.ones(4, np.float32)
        c.allReduce(x.data.ptr, x.data.ptr, 1 + (rank == 1), FLOAT32, SUM, stream.ptr)
        while not status_of(c.check_async_error):
            pass
        again = status_of(c.allReduce, x.data.ptr, x.data.ptr, 1, FLOAT32, SUM, stream.ptr)
        stuck = runtime.streamQuery(stream.ptr)
        c.abort()
        return again, stuck

    assert sound(on_ranks(main)) == [(5, 600)] * SIZE
    assert "differs between the ranks" in control.violations[0]
    control.violations.clear()


def test_memory_of_one_group_overlaps_nowhere():
    def main(rank, c, stream):
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

    sound(on_ranks(main))
    assert ["overlaps" in what for what in control.violations] == [True] * 3 * SIZE
    control.violations.clear()


def test_one_thread_at_a_time_uses_a_communicator():
    def main(rank, c, stream):
        x = cupy.ones(1, np.float32)
        communicator = calls.find(c.comm)
        with communicator.using:  # as another thread inside a call has it
            return status_of(c.allReduce, x.data.ptr, x.data.ptr, 1, FLOAT32, SUM, stream.ptr)

    assert sound(on_ranks(main, 1)) == [5]
    assert "two threads" in control.violations[0]
    control.violations.clear()


def test_a_communicator_ends_once():
    def main(rank, c, stream):
        handle = c.comm
        c.destroy()
        c.destroy()
        x = cupy.ones(1).data.ptr
        assert status_of(c.allReduce, x, x, 1, FLOAT32, SUM, stream.ptr) == 4
        return handle

    (handle,) = sound(on_ranks(main, 1))
    assert control.violations == []
    assert calls.destroy(handle) == 4  # through the raw pointer
    assert "had ended" in control.violations[0]
    control.violations.clear()


@pytest.mark.parametrize(
    ("variables", "devices", "status"),
    [
        ({}, [0, 0], 5),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, [0, 0], 0),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "STANDIN_NCCL_VERSION": "22905"}, [0, 0], 5),
        ({"STANDIN_MIG": "1"}, [0, 1], 0),
        ({"STANDIN_MIG": "1", "STANDIN_NCCL_VERSION": "22809"}, [0, 1], 5),
    ],
)
def test_ranks_share_a_gpu_only_where_nccl_lets_them(variables, devices, status, monkeypatch):
    """NCCL 2.28 init.cc:904 goes by its address, 2.30 init.cc:1052 by its UUID, of instances as well."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    results = on_ranks(lambda *_: SimpleNamespace(status=0), 2, devices=devices)
    assert [result.status for result in results] == [status] * 2


def test_a_unique_id_serves_one_communicator():
    unique = nccl.get_unique_id()
    first = nccl.NcclCommunicator(1, unique, 0)
    assert status_of(nccl.NcclCommunicator, 1, unique, 0) == 6
    first.destroy()


def test_one_rank_copies_on_the_current_device_and_has_no_factor_of_float8():
    """Read in src/enqueue.cc (2.30: taskAppend) and src/device/onerank.cu; never run on a GPU."""

    def main(rank, c, stream):
        x = cupy.asarray(np.arange(4, dtype=np.float32))
        y = cupy.zeros(4, np.float32)
        assert c.allReduce(x.data.ptr, x.data.ptr, 4, FLOAT32, SUM, 12345) is None, "nothing to do"
        told = [
            status_of(c.allReduce, x.data.ptr, y.data.ptr, 4, datatype, op, stream.ptr)
            for datatype in (10, 11)
            for op in (SUM, AVG)
        ]
        assert told == [0, 4, 0, 4]
        c.allReduce(x.data.ptr, y.data.ptr, 4, FLOAT32, AVG, stream.ptr)
        assert y.get().tolist() == x.get().tolist()
        assert not control.violations
        with cupy.cuda.Device(1):
            c.allReduce(x.data.ptr, y.data.ptr, 4, FLOAT32, SUM, 0)
        assert "NCCL copies on the current device, 1, and not on that" in control.violations.pop()

    sound(on_ranks(main, size=1))


def test_collectives_of_a_group_run_by_size_and_not_in_the_order_of_the_calls():
    """NCCL 2.30 enqueue.cc: ncclTaskCollSorter."""

    def main(rank, c, stream):
        arrays = [cupy.ones(n, np.float32) for n in (1, SIZE)]
        small, large = (x.data.ptr for x in arrays)
        cupy.cuda.Device().synchronize()
        nccl.groupStart()
        if rank:
            c.allReduce(small, small, 1, FLOAT32, SUM, stream.ptr)
        c.allReduce(large, large, SIZE, FLOAT32, SUM, stream.ptr)
        if not rank:
            c.allReduce(small, small, 1, FLOAT32, SUM, stream.ptr)
        nccl.groupEnd()
        stream.synchronize()
        return True

    assert sound(on_ranks(main, 2)) == [True, True]


def test_registered_memory_is_for_all_ranks_of_a_call_at_one_offset():
    """NCCL user guide, User Buffer Registration."""

    def main(rank, c, stream):
        pointer, handle = ctypes.c_void_p(), ctypes.c_void_p()
        assert library.ncclMemAlloc(ctypes.byref(pointer), 4 * SIZE) == 0
        for registered in ((0, 1), (1,), (0,)):
            if rank in registered:
                library.ncclCommRegister(c.comm, pointer, 4 * SIZE, ctypes.byref(handle))
            c.allReduce(pointer.value, pointer.value, 1, FLOAT32, SUM, stream.ptr)
            moved = pointer.value + 4 * rank
            if registered == (0, 1):
                c.allReduce(moved, moved, 1, FLOAT32, SUM, stream.ptr)
            stream.synchronize()
            if rank in registered:
                assert library.ncclCommDeregister(c.comm, handle) == 0
        return True

    assert sound(on_ranks(main, 2)) == [True, True]
    assert len(control.violations) == 3, control.violations
    assert all("registered on some ranks" in each for each in control.violations)
    control.violations.clear()


@pytest.mark.parametrize("message", [False, True])
@pytest.mark.parametrize(("on", "mixed"), [("1", True), ("0", True), ("1", False)])
def test_a_captured_call_needs_memory_of_one_kind_where_nccl_registers_it(
    message, on, mixed, monkeypatch
):
    """NCCL 2.30 transport/p2p.cc, ncclIpcGraphRegisterBuffer: memory of cudaMalloc is not registered.

    A registered sender waits for an address that no other kind of receiver gives (device/prims_simple.h).
    """
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", on)

    def main(rank, c, stream):
        pointer, x = ctypes.c_void_p(), cupy.zeros(1, np.float32)
        assert library.ncclMemAlloc(ctypes.byref(pointer), 4) == 0
        at = x.data.ptr if rank and mixed else pointer.value
        stream.begin_capture()
        if message:
            (c.recv if rank else c.send)(at, 1, FLOAT32, 1 - rank, stream.ptr)
        else:
            c.allReduce(at, at, 1, FLOAT32, SUM, stream.ptr)
        graph = stream.end_capture()
        graph.launch(stream)
        if on == "0" or not mixed:
            stream.synchronize()
            return True
        until(lambda: control.violations)
        hangs = runtime.streamQuery(stream.ptr) == 600 and not status_of(c.check_async_error)
        aborting = threading.Thread(target=c.abort)
        aborting.start()
        stream.synchronize()
        del graph  # NCCL's abort waits for it
        aborting.join()
        return hangs

    assert sound(on_ranks(main, 2)) == [True, True]
    told, control.violations[:] = list(control.violations), []
    assert len(told) == (on == "1" and mixed), told
    assert all("NCCL_GRAPH_REGISTER" in each for each in told)


def test_an_abort_while_a_thread_is_in_a_call_is_seen(monkeypatch):
    """It frees what the thread uses; a revocation frees nothing (NCCL 2.30 init.cc: commReclaim, ncclCommRevoke)."""
    monkeypatch.setenv("STANDIN_CONNECT", "1")

    def main(rank, c, stream):
        if rank:
            return
        x = cupy.ones(1, np.float32).data.ptr
        inside = threading.Thread(
            target=lambda: statuses.append(
                status_of(c.allReduce, x, x, 1, FLOAT32, SUM, stream.ptr)
            )
        )
        inside.start()
        until(lambda: calls.find(c.comm).inside)
        calls.revoke(c.comm) if revoked else c.abort()
        inside.join()

    for revoked in (True, False):
        statuses: list[int] = []
        sound(on_ranks(main, 2))
        assert statuses == [3]
        assert len(control.violations) == (not revoked), control.violations
    control.violations.clear()
