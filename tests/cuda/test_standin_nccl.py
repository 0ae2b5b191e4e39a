"""The stand-in's NCCL really moves and reduces bytes between ranks, and keeps NCCL's rules."""

import subprocess
import sys
import threading
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
from alone import alone
from raw_ranks import on_ranks, sound, status_of

control = pytest.importorskip("standin.control")
cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

calls, reductions = import_module("standin.nccl.calls"), import_module("standin.nccl.reductions")
runtime = cupy.cuda.runtime

pytestmark = pytest.mark.standin

SIZE = 3
INT32, FLOAT32 = nccl.NCCL_INT32, nccl.NCCL_FLOAT32
SUM, MAX, AVG = nccl.NCCL_SUM, nccl.NCCL_MAX, nccl.NCCL_AVG


def values_of(rank):
    """Return what a rank puts in: float32[SIZE]."""
    return np.arange(SIZE, dtype=np.float32) + 10 * rank


ALL = np.array([values_of(rank) for rank in range(SIZE)])


def expected(kind, rank):
    """Return what a collective gives a rank."""
    return {
        "allReduce": ALL.sum(0),
        "reduce": ALL.sum(0) if rank == 1 else None,
        "broadcast": ALL[1],
        "bcast": ALL[1],
        "reduceScatter": ALL.sum(0)[rank : rank + 1],
        "allGather": ALL.ravel(),
        "sendrecv": ALL[rank - 1],
    }[kind]


@pytest.mark.parametrize(
    "kind", ["allReduce", "reduce", "broadcast", "bcast", "reduceScatter", "allGather", "sendrecv"]
)
def test_collectives(kind):
    def main(rank, c, stream):
        x = cupy.asarray(values_of(rank))
        out = cupy.empty(SIZE * SIZE, np.float32)
        send, recv, s = x.data.ptr, out.data.ptr, stream.ptr
        if kind == "allReduce":
            c.allReduce(send, recv, SIZE, FLOAT32, SUM, s)
        elif kind == "reduce":
            c.reduce(send, recv, SIZE, FLOAT32, SUM, 1, s)
        elif kind == "broadcast":
            c.broadcast(send, recv, SIZE, FLOAT32, 1, s)
        elif kind == "bcast":
            c.bcast(send, SIZE, FLOAT32, 1, s)
            out[:SIZE] = x
        elif kind == "reduceScatter":
            c.reduceScatter(send, recv, 1, FLOAT32, SUM, s)
        elif kind == "allGather":
            c.allGather(send, recv, SIZE, FLOAT32, s)
        else:
            nccl.groupStart()
            c.send(send, SIZE, FLOAT32, (rank + 1) % SIZE, s)
            c.recv(recv, SIZE, FLOAT32, (rank - 1) % SIZE, s)
            nccl.groupEnd()
        return out.get()

    for rank, got in enumerate(sound(on_ranks(main))):
        wanted = expected(kind, rank)
        if wanted is not None:
            np.testing.assert_array_equal(got[: len(wanted)], wanted)


def test_split_makes_communicators_a_color():
    def main(rank, c, stream):
        part = c.commSplit(-1 if rank == 0 else 1, -rank)
        if part is None:
            return None
        told = part.size(), part.rank_id()
        x = cupy.full(1, rank, np.int32)
        part.allReduce(x.data.ptr, x.data.ptr, 1, INT32, SUM, stream.ptr)
        total = int(x.get()[0])
        part.destroy()
        return (*told, total)

    assert sound(on_ranks(main)) == [None, (2, 1, 3), (2, 0, 3)]


def test_integers_wrap_and_their_average_goes_towards_zero():
    parts = [np.array([2**31 - 1, -7, 7], np.int32), np.array([1, 0, 0], np.int32)]
    assert reductions.reduced(parts, AVG).tolist() == [-(2**30), -3, 3]
    assert reductions.reduced(parts, SUM).tolist() == [-(2**31), -7, 7]


def test_narrow_floats_are_rounded_at_each_hop_and_float8_saturates():
    parts = [np.array([x], np.float16) for x in (2048, 1, 1)]
    assert reductions.reduced(parts, SUM)[0] in (2048, 2050)
    parts = [np.array([x], ml_dtypes.float8_e4m3fn) for x in (448, 448)]
    assert reductions.reduced(parts, SUM)[0] == 448


def test_a_maximum_passes_over_nan():
    parts = [np.array([np.nan, 1.0]), np.array([2.0, np.nan])]
    assert reductions.reduced(parts, MAX).tolist() == [2.0, 1.0]


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


def test_a_collective_of_nothing_is_dropped_and_a_message_of_nothing_is_not():
    def main(rank, c, stream):
        c.allReduce(0, 0, 0, FLOAT32, SUM, stream.ptr)
        stream.synchronize()
        if rank == 0:
            c.send(0, 0, FLOAT32, 1, stream.ptr)
            before = stream.done
            c.recv(0, 0, FLOAT32, 2, stream.ptr)
            stream.synchronize()
            return before
        if rank == 1:
            c.recv(0, 0, FLOAT32, 0, stream.ptr)
            c.send(0, 0, FLOAT32, 2, stream.ptr)
        else:
            c.recv(0, 0, FLOAT32, 1, stream.ptr)
            c.send(0, 0, FLOAT32, 0, stream.ptr)
        stream.synchronize()
        return None

    sound(on_ranks(main))


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


def test_a_message_to_itself_has_both_sides_in_one_group():
    def main(rank, c, stream):
        x, y = cupy.full(1, rank, np.int32), cupy.empty(1, np.int32)
        alone = status_of(c.send, x.data.ptr, 1, INT32, rank, stream.ptr)
        nccl.groupStart()
        c.recv(y.data.ptr, 1, INT32, rank, stream.ptr)
        c.send(x.data.ptr, 1, INT32, rank, stream.ptr)
        nccl.groupEnd()
        return alone, int(y.get()[0])

    assert sound(on_ranks(main)) == [(5, rank) for rank in range(SIZE)]


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
    results = on_ranks(lambda *_: "made", 2, devices=[0, 0])
    if status:
        assert [result.status for result in results] == [status] * 2
    else:
        assert results == ["made"] * 2


def test_devices_of_one_uuid_are_one_device(monkeypatch):
    monkeypatch.setenv("STANDIN_UUIDS", "a,a")
    assert [result.status for result in on_ranks(lambda *_: None, 2)] == [5, 5]


def test_a_communicator_keeps_the_algorithms_it_was_made_with(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")

    def main(rank, c, stream):
        x = cupy.ones(SIZE, np.float32).data.ptr
        reduced = status_of(c.allReduce, x, x, 1, FLOAT32, SUM, stream.ptr)
        return reduced, status_of(c.bcast, x, 1, FLOAT32, 0, stream.ptr)

    assert sound(on_ranks(main)) == [(0, 5)] * SIZE


def test_a_unique_id_serves_one_communicator():
    unique = nccl.get_unique_id()
    first = nccl.NcclCommunicator(1, unique, 0)
    assert status_of(nccl.NcclCommunicator, 1, unique, 0) == 6
    first.destroy()


def test_a_captured_collective_is_replayed_on_the_same_memory():
    def main(rank, c, stream):
        x = cupy.ones(1, np.float32)
        stream.synchronize()
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        c.allReduce(x.data.ptr, x.data.ptr, 1, FLOAT32, SUM, stream.ptr)
        graph = stream.end_capture()
        before = float(x.get()[0])
        for _ in range(3):
            graph.launch(stream)
        return before, float(x.get()[0])

    assert sound(on_ranks(main)) == [(1.0, float(SIZE**3))] * SIZE


@pytest.mark.parametrize("end", ["destroy", "abort"])
def test_the_end_of_a_communicator_waits_for_graphs_with_its_calls(end):
    def main(rank, c, stream):
        x = cupy.ones(1, np.float32)
        stream.synchronize()
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        c.allReduce(x.data.ptr, x.data.ptr, 1, FLOAT32, SUM, stream.ptr)
        graph = stream.end_capture()
        ending = threading.Thread(target=getattr(c, end))
        ending.start()
        ending.join(0.2)
        waited = ending.is_alive()
        del graph
        ending.join(60)
        return waited, ending.is_alive()

    assert sound(on_ranks(main)) == [(True, False)] * SIZE


def test_host_memory_is_not_for_nccl():
    done = alone(
        "from cupy.cuda import nccl\n"
        "c = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)\n"
        "x = np.zeros(4, np.float32)\n"
        "c.allReduce(x.ctypes.data, x.ctypes.data, 4, 7, nccl.NCCL_AVG, 0)\n"
        "cupy.cuda.Stream.null.synchronize()\n"
    )
    assert "cudaErrorIllegalAddress" in done.stderr


def test_ranks_are_processes_too():
    code = (
        "import sys, cupy, numpy as np\n"
        "from cupy.cuda import nccl\n"
        "rank = int(sys.argv[1])\n"
        "cupy.cuda.Device(rank).use()\n"
        "c = nccl.NcclCommunicator(3, bytes.fromhex(sys.argv[2]), rank)\n"
        "x = cupy.full(1000, rank + 1, np.float64)\n"
        "c.allReduce(x.data.ptr, x.data.ptr, 1000, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)\n"
        "print(set(x.get().tolist()))\n"
        "c.destroy()\n"
    )
    unique = nccl.get_unique_id().hex()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), unique], stdout=subprocess.PIPE, text=True
        )
        for rank in range(3)
    ]
    assert [rank.communicate(timeout=60)[0].strip() for rank in ranks] == ["{6.0}"] * 3


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
