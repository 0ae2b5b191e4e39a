"""The stand-in for CuPy, NCCL and PyTorch is like them: their names, their order, their rules."""

import inspect
import json
import os
import subprocess
import sys
import threading
from functools import partial
from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

control = pytest.importorskip("standin.control")
cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

heap, surface = import_module("standin.heap"), import_module("standin.surface")
calls, reductions = import_module("standin.nccl.calls"), import_module("standin.nccl.reductions")
runtime = cupy.cuda.runtime

pytestmark = pytest.mark.standin

SIZE = 3
INT32, INT64, FLOAT16, FLOAT32, BFLOAT16, FLOAT8 = 2, 4, 6, 7, 9, 10
SUM, MAX, AVG = nccl.NCCL_SUM, nccl.NCCL_MAX, nccl.NCCL_AVG


def alone(code, **environment):
    """Run code in a process of its own, which may lose its device."""
    return subprocess.run(
        [sys.executable, "-c", "import cupy, numpy as np\n" + code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(status, function, *arguments):
    """Check that CUDA refuses a call."""
    with pytest.raises(runtime.CUDARuntimeError) as raised:
        function(*arguments)
    assert raised.value.status == status


# It looks like the real one.

EXACT = ("cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nccl", "cupy.cuda.stream")


def public(module):
    """Return the names of a module that are CuPy's, as `surface` takes them."""
    names = []
    for name, value in vars(import_module(module)).items():
        ours = getattr(value, "__module__", "cupy").partition(".")[0] in ("cupy", "standin")
        if name.startswith("_") or inspect.ismodule(value) or not ours:
            continue
        names.append(f"{module}:{name}")
        if inspect.isclass(value):
            names += [f"{module}:{name}.{part}" for part in vars(value) if part[0] != "_"]
    return names


@pytest.fixture(scope="module")
def real():
    """What the real CuPy looks like, from a process that has it."""
    names = [name for module in ("cupy", *EXACT) for name in public(module)]
    names += [f"cupy:{name}.types" for name in cupy._loops.TYPES]
    done = subprocess.run(
        [sys.executable, surface.__file__],
        input=json.dumps(names),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"there is no real CuPy to compare with ({why}); install cupy-cuda12x")
    found = json.loads(done.stdout)
    if found["version"].split(".")[0] != cupy.__version__.split(".")[0]:
        pytest.skip(f"CuPy {found['version']} is another version than the stand-in's")
    return found


def test_every_name_is_cupys(real):
    missing = [name for name, found in real["names"].items() if found == {"missing": True}]
    assert missing == []


def test_arguments_and_numbers_are_cupys(real):
    unlike = ("Graph", "MemoryPool", "from_pci_bus_id")
    for name, found in real["names"].items():
        told = found != {"arguments": None}  # an attribute of instances tells nothing
        if name.partition(":")[0] in EXACT and told and not name.endswith(unlike):
            assert surface.described(name) == found, name


def test_functions_of_elements_have_cupys_loops(real):
    for name, loops in cupy._loops.TYPES.items():
        told = real["names"][f"cupy:{name}.types"]["value"]
        assert loops == [loop for loop in told if "V" not in loop], name


def test_errors_say_what_the_real_ones_say(real):
    assert surface.texts("cupy") == real["texts"]


def test_status_7_of_nccl_is_a_key_error():
    with pytest.raises(KeyError):
        nccl.NcclError(7)


# Arrays.


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, "U3", "M8[s]"])
def test_some_dtypes_lie_in_memory_but_nothing_is_computed_with_them(dtype):
    x = cupy.ndarray(4, dtype, cupy.cuda.alloc(4 * np.dtype(dtype).itemsize))
    assert x.dtype == np.dtype(dtype)
    with pytest.raises((TypeError, ValueError)):
        cupy.add(x, x)
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.empty(4, dtype)


def test_numbers_of_python_follow_the_array_and_those_of_numpy_do_not():
    x = cupy.ones(2, np.float16)
    assert (x + 2).dtype == np.float16
    assert (x + np.float32(2)).dtype == np.float32
    assert (cupy.ones(2, np.int8) / 2).dtype == np.float64


def test_views_share_memory_and_tell_their_form():
    x = cupy.asarray(np.arange(24, dtype=np.float32).reshape(4, 6))
    part = x[1:, ::2]
    part[...] = 7
    assert (x.get()[1:, ::2] == 7).all()
    assert (x.get()[0] == np.arange(6)).all()
    assert part.base is x
    assert not part.flags.c_contiguous
    assert x[2].data.ptr == x.data.ptr + 2 * 24
    assert x.view(np.uint8).shape == (4, 24)


def test_arrays_go_through_dlpack_and_live_as_long_as_needed():
    taken = cupy.from_dlpack(cupy.arange(5, dtype=np.int32))
    cupy.full(5, 9, np.int32)  # would take the memory if it were free
    assert taken.get().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError):
        cupy.from_dlpack(np.zeros(3))


def test_an_array_of_another_device_is_refused():
    with cupy.cuda.Device(1):
        x = cupy.zeros(2)
    with pytest.raises(ValueError, match="Array device must be same"):
        x + 1


# Streams and events.


class Held:
    """A stream that goes no further until it is let."""

    def __init__(self, **keywords):
        self.stream = cupy.cuda.Stream(**keywords)
        self._go = threading.Event()
        self.stream.launch_host_func(lambda _: self._go.wait(30), None)

    def let_go(self):
        """Let it."""
        self._go.set()


def test_work_runs_later_and_in_order():
    held = Held(non_blocking=True)
    x = cupy.zeros(1)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        x += 1
        x *= 3
    event = held.stream.record()
    assert runtime.eventQuery(event.ptr) == 600
    assert not event.done
    assert x.get(stream=cupy.cuda.Stream.null) == 0
    held.let_go()
    event.synchronize()
    assert x.get() == 3


def test_the_default_stream_waits_for_blocking_streams_alone():
    free, held = Held(non_blocking=True), Held()
    null = cupy.cuda.Stream.null
    x = cupy.zeros(1)
    assert runtime.streamQuery(null.ptr) == 600
    held.let_go()
    null.synchronize()
    assert x.get() == 0
    assert not free.stream.done
    free.let_go()
    free.stream.synchronize()


def test_a_stream_waits_for_an_event():
    held, other = Held(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x = cupy.zeros(1)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        x += 5
    other.wait_event(held.stream.record())
    with other:
        x *= 2
    assert not other.done
    held.let_go()
    other.synchronize()
    assert x.get() == 10


def test_the_current_device_and_stream_are_the_threads_own():
    found = []
    stream = cupy.cuda.Stream(non_blocking=True)

    def look():
        found.append((runtime.getDevice(), cupy.cuda.get_current_stream().ptr))

    with cupy.cuda.Device(0), stream:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [(0, 0)]


def test_an_event_belongs_to_the_device_it_was_made_on():
    event = cupy.cuda.Event()
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    refused(400, event.record, stream)


def test_events_without_time_tell_none():
    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    last.record()
    last.synchronize()
    assert cupy.cuda.get_elapsed_time(first, last) >= 0
    timeless = cupy.cuda.Event(disable_timing=True)
    timeless.record()
    timeless.synchronize()
    refused(400, cupy.cuda.get_elapsed_time, timeless, last)


# Memory.


def test_memory_let_go_of_while_another_stream_uses_it_is_seen():
    held = Held(non_blocking=True)
    x, y = cupy.ones(4), cupy.zeros(4)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        cupy.add(x, 0, out=y)
    del x
    cupy.cuda.Stream.null.synchronize()
    held.let_go()
    held.stream.synchronize()
    assert (y.view(np.uint8).get() == heap.POISON).all()


def test_memory_let_go_of_in_the_order_of_its_stream_is_not_missed():
    x = cupy.ones(4)
    for _ in range(20):
        x = x + 1
    assert (x.get() == 21).all()


def test_memory_written_after_it_was_let_go_of_is_seen_when_it_is_used_again():
    held = Held(non_blocking=True)
    x = cupy.ones(77)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        x.fill(5)
    del x
    cupy.cuda.Stream.null.synchronize()
    held.let_go()
    held.stream.synchronize()
    cupy.empty(77).get()
    assert "written after it was freed" in control.violations[0]
    control.violations.clear()


def test_pinned_memory_is_not_kept():
    pinned = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(64), 0)
    values = np.frombuffer(pinned, np.uint8, 64)
    values[:] = 1
    address, block = pinned.ptr, heap.find(pinned.ptr)
    del values, pinned
    assert heap.find(address) is None
    assert (block.bytes == heap.POISON).all()


def test_an_illegal_address_loses_the_device():
    done = alone(
        "host = np.zeros(4)\n"
        "x = cupy.cuda.UnownedMemory(host.ctypes.data, 32, host, 0)\n"
        "x = cupy.ndarray(4, float, cupy.cuda.MemoryPointer(x, 0))\n"
        "x += 1\n"
        "cupy.cuda.Stream.null.synchronize()\n"
    )
    assert "cudaErrorIllegalAddress" in done.stderr


def test_a_copy_of_pageable_memory_has_read_it_when_it_returns():
    x, host = cupy.zeros(3), np.ones(3)
    held = Held(non_blocking=True)
    runtime.memcpyAsync(x.data.ptr, host.ctypes.data, 24, 1, held.stream.ptr)
    host[:] = 5
    held.let_go()
    held.stream.synchronize()
    assert (x.get() == 1).all()


def test_after_a_fork_cuda_cannot_be_used():
    done = alone(
        "import os\n"
        "cupy.zeros(1).get()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        cupy.zeros(1)\n"
        "    except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "        os._exit(error.status)\n"
        "    os._exit(0)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert done.returncode == 3, done.stderr


# Graphs.


def test_a_graph_runs_what_was_captured_on_the_same_memory():
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(3)
    cupy.cuda.Stream.null.synchronize()
    stream.begin_capture()
    with stream:
        x += 1
    other.wait_event(stream.record())
    with other:
        x *= 2
    assert other.is_capturing()
    stream.wait_event(other.record())
    graph = stream.end_capture()
    assert (x.get() == 0).all()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert (x.get() == 14).all()


def poll(event):
    """Ask about an event as a watchdog does; return the status."""
    return runtime.eventQuery(event.ptr)


def from_another_thread(function):
    """Call it there."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize(
    ("mode", "same_thread", "other_thread"),
    [
        (runtime.streamCaptureModeGlobal, 900, 900),
        (runtime.streamCaptureModeThreadLocal, 900, 0),
        (runtime.streamCaptureModeRelaxed, 0, 0),
    ],
)
@pytest.mark.parametrize("same", [True, False])
def test_a_poll_spoils_a_capture_unless_its_mode_lets_it(mode, same_thread, other_thread, same):
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    event.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    expected = same_thread if same else other_thread
    stream.begin_capture(mode)
    assert (poll(event) if same else from_another_thread(partial(poll, event))) == expected
    if expected:
        with pytest.raises(RuntimeError, match="invalidated"):
            stream.is_capturing()
        refused(901, stream.end_capture)
    else:
        stream.end_capture()


def test_what_is_captured_can_be_neither_asked_nor_waited_for():
    for spoil in ("query", "synchronize", "event", "get"):
        stream = cupy.cuda.Stream(non_blocking=True)
        x = cupy.zeros(1)
        stream.begin_capture()
        event = cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        if spoil == "query":
            assert runtime.streamQuery(stream.ptr) == 900
        elif spoil == "synchronize":
            refused(900, stream.synchronize)
        elif spoil == "event":
            assert runtime.eventQuery(event.ptr) == 907
        else:
            refused(900, x.get, stream)
        refused(901, stream.end_capture)


def test_a_capture_is_joined_and_takes_nothing_from_outside():
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(1)
    outside = cupy.cuda.Event(disable_timing=True)
    outside.record()
    stream.begin_capture()
    refused(905, stream.wait_event, outside)
    refused(901, stream.end_capture)
    stream.begin_capture()
    other.wait_event(stream.record(cupy.cuda.Event(disable_timing=True)))
    with other:
        x += 1
    refused(904, stream.end_capture)


def test_the_default_stream_is_not_for_a_blocking_stream_that_is_captured():
    stream = cupy.cuda.Stream()
    x = cupy.zeros(1)
    stream.begin_capture()
    refused(906, x.fill, 1)
    refused(901, stream.end_capture)


def test_memory_is_not_allocated_in_a_capture_but_in_relaxed_mode():
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        refused(900, cupy.empty, 12345)
        refused(901, stream.end_capture)
        stream.begin_capture()
        cupy.empty(54321)
        stream.end_capture()


# NCCL.


def on_ranks(function, size=SIZE, devices=None):
    """Return what ``function(rank, communicator, stream)`` gives on ranks that are threads."""
    unique = nccl.get_unique_id()
    results = [None] * size

    def main(rank):
        with cupy.cuda.Device(rank if devices is None else devices[rank]):
            try:
                communicator = nccl.NcclCommunicator(size, unique, rank)
                stream = cupy.cuda.Stream(non_blocking=True)
                with stream:
                    results[rank] = function(rank, communicator, stream)
                communicator.destroy()
            except BaseException as error:  # noqa: BLE001 (given to the test)
                results[rank] = error

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def sound(results):
    """Return results of which none is an exception."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def status_of(function, *arguments):
    """Return the status with which NCCL refuses a call; 0 if it does not."""
    try:
        function(*arguments)
    except nccl.NcclError as error:
        return error.status
    return 0


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


def test_host_memory_is_not_for_nccl():
    done = alone(
        "from cupy.cuda import nccl\n"
        "c = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)\n"
        "x = np.zeros(4, np.float32)\n"
        "c.allReduce(x.ctypes.data, x.ctypes.data, 4, 7, 0, 0)\n"
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


# Machines on which something is missing.


def test_a_machine_without_a_driver():
    done = alone(
        "try:\n"
        "    cupy.cuda.runtime.getDeviceCount()\n"
        "except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "    print(error.status)\n",
        STANDIN_DRIVER="missing",
    )
    assert done.stdout.strip() == "35"


def test_visible_devices_are_those_of_the_machine():
    code = (
        "r = cupy.cuda.runtime\n"
        "print([r.getDeviceProperties(i)['uuid'] for i in range(r.getDeviceCount())])\n"
    )
    alls = alone(code, STANDIN_DEVICES="3").stdout
    some = alone(code, STANDIN_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0").stdout
    first, _, third = eval(alls)
    assert eval(some) == [third, first]


# PyTorch.


def test_a_tensor_follows_pytorchs_stream_and_not_cupys():
    torch = import_module("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(3, device="cuda:0").add_(1)
        assert torch.cuda.current_stream(0).cuda_stream == stream.cuda_stream
        assert cupy.cuda.get_current_stream().ptr == 0
        assert x.tolist() == [2.0] * 3
    assert torch.cuda.current_stream(0).cuda_stream == 0
    assert x.is_cuda
    assert str(x.dtype) == "torch.float32"
