"""The stand-in's streams, events, memory and graphs keep CUDA's order, and its rules."""

import threading
from functools import partial
from importlib import import_module

import numpy as np
import pytest
from alone import alone

control = pytest.importorskip("standin.control")
cupy = pytest.importorskip("cupy")

heap = import_module("standin.heap")
runtime = cupy.cuda.runtime

pytestmark = pytest.mark.standin


def refused(status, function, *arguments):
    """Check that CUDA refuses a call."""
    with pytest.raises(runtime.CUDARuntimeError) as raised:
        function(*arguments)
    assert raised.value.status == status


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
    cupy.cuda.Stream.null.synchronize()
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
