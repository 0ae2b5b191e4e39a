"""hpccomm's own schedules on device arrays, put on a stream and moved by NCCL's messages."""

import threading
from dataclasses import replace

import cupy
import numpy as np
import pytest
from cupy.cuda import nccl
from told import BLOCKWISE, arrays, signature, views

from hpccomm import dtypes
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.device_schedules import DeviceSchedules
from hpccomm.dispatch.policy import Pick, PolicyChoice
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.memory import Scratch
from hpccomm.memory.folding import Folder, premultiply
from hpccomm.reductions import PremulSum, ReduceOp, identity
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.topology import Topology

I32, F32 = np.dtype(np.int32), np.dtype(np.float32)


def at_once(n, function):
    """Return what ``function(rank)`` gives on `n` threads, each with a device of its own."""
    if cupy.cuda.runtime.getDeviceCount() < n:
        pytest.skip(f"ranks of one process want a GPU each: fewer than {n} are visible")
    results, failures = [None] * n, []

    def main(rank):
        try:
            with cupy.cuda.Device(rank):
                results[rank] = function(rank)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failures.append(error)

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def exchanging(communicator):
    """Return what puts messages on a stream, as bytes."""

    def exchange(receives, sends, stream):
        nccl.groupStart()
        for peer, data in receives:
            communicator.recv(data.pointer, data.nbytes, nccl.NCCL_INT8, peer, stream)
        for peer, data in sends:
            communicator.send(data.pointer, data.nbytes, nccl.NCCL_INT8, peer, stream)
        nccl.groupEnd()

    return exchange


def run(calls, algorithm, sends, *, deterministic=False, segment=256, topology=None):
    """Return what each rank receives; `sends` holds its array, or the number of elements it gets.

    In place, both are the array that is sent.
    """
    n = len(calls)
    unique = nccl.get_unique_id()

    def rank_main(rank):
        communicator = nccl.NcclCommunicator(n, unique, rank)
        call, sent = calls[rank], sends[rank]
        _, received = (int(x[0]) for x in call.lengths(np.array([rank])))
        given = None if sent is None else cupy.asarray(sent.view(np.uint8))
        if call.collective == "broadcast":
            recv, given = given, None
        elif call.in_place:
            recv = given
        else:
            recv = cupy.asarray(np.full(received * call.dtype.itemsize, 0xA5, np.uint8))
        schedules = DeviceSchedules(rank, topology or Topology((0,) * n), rank, segment)
        planned = schedules.planned(call, PolicyChoice(Pick(algorithm)), deterministic)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device(rank).synchronize()
        pointer = 0 if given is None else given.data.ptr
        with streams.used(stream.ptr, rank):
            begun = planned.begin(pointer, recv.data.ptr, stream.ptr)
            planned.program.enqueue(exchanging(communicator), begun.send, begun.recv, stream.ptr)
            begun.end()
        del begun
        stream.synchronize()
        if given is not None and not call.in_place:
            assert (given.get() == sent.view(np.uint8)).all(), "what was sent was written to"
        communicator.destroy()
        return recv.get().view(call.dtype)[:received]

    return at_once(n, rank_main)


def fold(op, contributions, average_over=0):
    out = np.empty_like(contributions[0])
    Folder(op, out.dtype, average_over)(contributions, out)
    return out


def numbers(n, count, dtype=I32):
    random = np.random.default_rng(count)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return [random.integers(bounds.min, bounds.max, count, dtype) for _ in range(n)]
    return [random.normal(size=count).astype(dtype) for _ in range(n)]


def told_of(n, collective):
    """Return a collective's call, what is sent, and what is to come, by rank."""
    blocks = collective in (*BLOCKWISE, "neighbor_all_to_all")
    parts = views(n, collective, 30 if blocks else 30 * n, dtype=I32)
    sends, expected = zip(*map(arrays, parts), strict=True)
    if collective == "broadcast":
        sends = [part.all_given()[part.rank] for part in parts]
    nothing = np.empty(0, I32)
    return signature(parts[0]), sends, [nothing if x is None else x for x in expected]


ALL = [
    pytest.param(collective, name, id=f"{collective}-{name}")
    for collective, known in ALGORITHMS.items()
    if collective != "barrier"
    for name, each in known.items()
    if not each.shared
]


@pytest.mark.pairs
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_every_algorithm_moves_and_folds_device_arrays(n, collective, algorithm):
    call, sends, expected = told_of(n, collective)
    topology = Topology(tuple(rank // 2 for rank in range(n)))
    found = run([call] * n, algorithm, sends, topology=topology)
    for rank in range(n):
        assert found[rank].tolist() == expected[rank].tolist(), f"rank {rank}"


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "scan"])
def test_schedules_work_in_place(collective):
    call, sends, expected = told_of(3, collective)
    algorithm = {"all_reduce": "ring", "all_to_all": "pairwise", "scan": "binomial"}[collective]
    # In place on two ranks of three: whether it is, is each rank's own affair.
    calls = [replace(call, in_place=rank != 1) for rank in range(3)]
    found = run(calls, algorithm, sends)
    assert [x.tolist() for x in found] == [x.tolist() for x in expected]


def test_blocks_may_be_uneven_and_empty():
    counts = ((0, 3, 2), (5, 0, 1), (4, 4, 0))  # what each rank sends to each
    received = tuple(zip(*counts, strict=True))
    sends = [np.arange(sum(counts[rank]), dtype=I32) + 100 * rank for rank in range(3)]
    calls = [Signature("all_to_all", I32, counts[r], received[r], uniform=False) for r in range(3)]
    found = run(calls, "pairwise", sends, segment=8)
    starts = [np.cumsum((0, *each)) for each in counts]
    for rank in range(3):
        parts = [sends[of][starts[of][rank] : starts[of][rank + 1]] for of in range(3)]
        assert found[rank].tolist() == np.concatenate(parts).tolist()


ORDERED = [
    pytest.param(collective, name, id=f"{collective}-{name}")
    for collective in ("all_reduce", "reduce", "reduce_scatter", "scan")
    for name, each in ALGORITHMS[collective].items()
    if each.ordered is not None and not each.shared
]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [F32, np.dtype(np.float64), dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize(("collective", "algorithm"), ORDERED)
def test_in_rank_order_the_bits_are_the_hosts_whatever_the_algorithm(collective, algorithm, dtype):
    n, block = 4, 25
    x = numbers(n, n * block, np.dtype(np.float64))
    x = [each.astype(dtype) for each in x]
    counts = (block,) * n if collective == "reduce_scatter" else (n * block,)
    op = ReduceOp.SUM
    call = Signature(collective, dtype, counts, op=op, root=0 if collective == "reduce" else -1)
    found = run([call] * n, algorithm, x, deterministic=True)
    total = fold(op, x)
    expected = {
        "all_reduce": [total] * n,
        "reduce": [total, *[total[:0]] * (n - 1)],
        "reduce_scatter": list(total.reshape(n, block)),
        "scan": [fold(op, x[: rank + 1]) for rank in range(n)],
    }[collective]
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


@pytest.mark.parametrize("dtype", [I32, F32, dtypes.FLOAT8_E5M2], ids=str)
def test_an_average_is_divided_once(dtype):
    x = [each.astype(dtype) for each in numbers(3, 64, F32)]
    if dtype == I32:
        x = numbers(3, 64)
    call = Signature("all_reduce", dtype, (64,), op=ReduceOp.AVG)
    found = run([call] * 3, "linear", x, deterministic=True)
    expected = fold(ReduceOp.AVG, x, 3)
    assert all(each.tobytes() == expected.tobytes() for each in found)


@pytest.mark.parametrize("dtype", [F32, np.dtype(np.float16)], ids=str)
def test_contributions_are_multiplied_and_the_users_array_left_as_it_is(dtype):
    op = PremulSum(0.3)
    x = [each.astype(dtype) for each in numbers(3, 48, F32)]
    call = Signature("all_reduce", dtype, (48,), op=op)
    found = run([call] * 3, "ring", x, deterministic=True)
    products = [np.empty_like(each) for each in x]
    for each, product in zip(x, products, strict=True):
        premultiply(op, each, product)
    expected = fold(ReduceOp.SUM, products)
    assert all(each.tobytes() == expected.tobytes() for each in found)


@pytest.mark.parametrize("op", [ReduceOp.PROD, ReduceOp.MIN])
def test_an_exclusive_scan_leaves_the_first_rank_the_identity(op):
    x = numbers(3, 40, F32)
    call = Signature("scan", F32, (40,), op=op, exclusive=True)
    found = run([call] * 3, "linear", x, deterministic=True)
    assert (found[0] == identity(op, F32)).all()
    for rank in (1, 2):
        assert found[rank].tobytes() == fold(op, x[:rank]).tobytes()


def test_a_graph_of_a_schedule_is_replayed():
    n, count = 2, 600
    x = numbers(n, count)
    call = Signature("all_reduce", I32, (count,), op=ReduceOp.BXOR)
    unique = nccl.get_unique_id()

    def rank_main(rank):
        communicator = nccl.NcclCommunicator(n, unique, rank)
        planned = DeviceSchedules(rank, Topology((0,) * n), rank, 512).planned(
            call, PolicyChoice(Pick("ring")), True
        )
        send, recv = cupy.asarray(x[rank]), cupy.empty(count, I32)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device(rank).synchronize()

        def enqueue():
            with streams.used(stream.ptr, rank):
                exchange = exchanging(communicator)
                planned.program.enqueue(exchange, send.data.ptr, recv.data.ptr, stream.ptr)

        enqueue()  # its kernels are compiled, and the pool has memory for this stream
        stream.synchronize()
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        enqueue()
        graph = stream.end_capture()
        found = []
        for factor in (1, 3):
            new = x[rank] * factor
            cupy.cuda.runtime.memcpy(send.data.ptr, new.ctypes.data, new.nbytes, 1)  # to the device
            graph.launch(stream)
            stream.synchronize()
            found.append(recv.get())
        del graph  # NCCL frees no communicator while there is one with its calls
        communicator.destroy()
        return found

    for found in at_once(n, rank_main):
        assert found[0].tolist() == (x[0] ^ x[1]).tolist()
        assert found[1].tolist() == ((x[0] * 3) ^ (x[1] * 3)).tolist()


def test_trap_scratch_for_a_graph_is_never_given_to_anything_else():
    """A replay comes back to the memory that the graph was captured with."""
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        warm = scratch.empty(1 << 20, F32).data.ptr
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        captured = scratch.empty(1 << 20, F32).data.ptr
        stream.end_capture()
        assert captured == warm
        assert scratch.empty(1 << 20, F32).data.ptr != captured
        scratch.free()
        taken = [scratch.empty(1 << 20, F32) for _ in range(2)]
        assert captured in [each.data.ptr for each in taken]


def test_trap_a_graph_cannot_have_scratch_that_cuda_has_yet_to_give():
    scratch = Scratch()
    stream = cupy.cuda.Stream(non_blocking=True)
    with streams.used(stream.ptr, 0):
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        with pytest.raises(UsageError, match="make the call once on the same stream"):
            scratch.empty(1 << 22, F32)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
            stream.end_capture()
