"""Rules of CUDA and NCCL that the stand-in keeps, and code that breaks them: see test_standin.py for the list."""

import ctypes
import threading
from importlib import import_module

import cupy
import numpy as np
import pytest
from alone import alone
from cupy.cuda import nccl
from raw_ranks import on_ranks, sound, status_of
from until import until

pytestmark = pytest.mark.standin

control = pytest.importorskip("standin.control")
calls, devices = import_module("standin.nccl.calls"), import_module("standin.devices")
library = import_module("standin.nccl.library").library
runtime = cupy.cuda.runtime

SIZE = 3
FLOAT32, SUM = nccl.NCCL_FLOAT32, nccl.NCCL_SUM


# CUDA.


def in_thread(function):
    """Call it in a new thread; return what it returned."""
    got = []
    thread = threading.Thread(target=lambda: got.append(function()))
    thread.start()
    thread.join()
    return got[0]


def test_the_first_call_of_a_thread_makes_a_context_on_device_0():
    done = alone(
        "import threading\n"
        "from standin import devices\n"
        "runtime = cupy.cuda.runtime\n"
        "runtime.setDevice(1)\n"
        "event = runtime.eventCreateWithFlags(0)\n"
        "print(devices.contexts())\n"
        "for harmless in runtime.getDevice, runtime.getDeviceCount:\n"
        "    threading.Thread(target=harmless).start()\n"
        "print(devices.contexts())\n"
        "thread = threading.Thread(target=lambda: runtime.eventQuery(event))\n"
        "thread.start(); thread.join()\n"
        "print(devices.contexts())\n"
    )
    assert done.stdout.splitlines() == ["[1]", "[1]", "[0, 1]"], done.stderr


def test_the_driver_makes_no_context_and_wants_one():
    from standin.driver import Loader

    driver = Loader("libcuda.so.1")
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    event.synchronize()
    assert driver.cuEventQuery(ctypes.c_void_p(event.ptr)) == 0
    assert in_thread(lambda: driver.cuEventQuery(ctypes.c_void_p(event.ptr))) == 201


@pytest.mark.parametrize(
    ("mine", "capture", "own", "refused"),
    [
        (0, 0, True, True), (0, 0, False, True), (0, 1, True, True), (0, 1, False, False),
        (1, 0, True, True), (1, 0, False, False), (1, 1, True, True), (1, 2, True, False),
        (2, 0, True, False), (2, 0, False, False), (2, 1, True, False), (0, 2, True, False),
    ],
)  # fmt: skip
def test_the_mode_of_a_thread_says_which_captures_forbid_it(mine, capture, own, refused):
    graphs = import_module("standin.graphs")
    event = cupy.cuda.Event(disable_timing=True)
    stream = cupy.cuda.Stream(non_blocking=True)

    def ask():
        before = graphs.exchange_mode(mine)
        status = runtime.eventQuery(event.ptr)
        graphs.exchange_mode(before)
        return status

    stream.begin_capture(capture)
    assert (ask() if own else in_thread(ask)) == (900 if refused else 0)
    if not refused:
        stream.end_capture()


def test_a_stream_has_room_for_so_much_and_whoever_puts_more_on_it_waits(monkeypatch):
    monkeypatch.setenv("STANDIN_QUEUE", "3")
    stream = cupy.cuda.Stream(non_blocking=True)
    go, event = threading.Event(), cupy.cuda.Event(disable_timing=True)
    stream.launch_host_func(lambda _: go.wait(60), None)
    there = import_module("standin.streams").find(stream.ptr)
    thread = threading.Thread(target=lambda: [event.record(stream) for _ in range(5)])
    thread.start()
    until(lambda: there.crowd)
    threading.Thread(target=lambda: until(lambda: control.violations) or go.set()).start()
    event.done  # noqa: B018 (CuPy asks with the interpreter's lock held)
    thread.join()
    assert "holds the interpreter's lock" in control.violations.pop()
    control.violations.clear()


def test_a_kernel_is_loaded_at_its_first_use_which_a_capture_may_forbid():
    x = cupy.zeros(3, np.float32)
    import_module("cupy._arrays")._loaded.clear()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        with pytest.raises(runtime.CUDARuntimeError):
            cupy.hypot(x, x, out=x)
        with pytest.raises(runtime.CUDARuntimeError):
            stream.end_capture()
        stream.begin_capture()  # relaxed
        cupy.hypot(x, x, out=x)
        stream.end_capture()


@pytest.mark.parametrize("kind", ["device", "host"])
def test_to_free_memory_waits_for_the_device(kind):
    stream = cupy.cuda.Stream(non_blocking=True)
    go, pointer = (
        threading.Event(),
        (runtime.malloc(8) if kind == "device" else runtime.hostAlloc(8, 0)),
    )
    stream.launch_host_func(lambda _: go.wait(60), None)
    free = runtime.free if kind == "device" else runtime.freeHost
    thread = threading.Thread(target=free, args=(pointer,))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    go.set()
    thread.join()


# NCCL.


def test_instances_of_one_gpu_are_one_device_before_2_30(monkeypatch):
    monkeypatch.setenv("STANDIN_MIG", "1")
    assert on_ranks(lambda *_: "made", 2) == ["made"] * 2
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22809")
    assert [result.status for result in on_ranks(lambda *_: None, 2)] == [5, 5]


def test_collectives_of_a_group_run_by_size_and_not_in_the_order_of_the_calls():
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


def test_memory_is_not_registered_where_that_is_switched_off(monkeypatch):
    monkeypatch.setenv("NCCL_LOCAL_REGISTER", "0")

    def main(rank, c, stream):
        pointer, handle = ctypes.c_void_p(), ctypes.c_void_p(1)
        assert library.ncclMemAlloc(ctypes.byref(pointer), 1) == 0
        assert library.ncclCommRegister(c.comm, pointer, 1, ctypes.byref(handle)) == 0
        assert library.ncclMemFree(pointer) == 0
        return handle.value

    assert sound(on_ranks(main, 1)) == [None]


def test_an_abort_while_a_thread_is_in_a_call_is_seen(monkeypatch):
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
