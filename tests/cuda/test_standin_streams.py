"""The stand-in's streams, events, memory and graphs keep CUDA's rules, and see code that breaks them.

``tests/standin/README.md`` has the rules and their sources. No GPU has shown them.
"""

import ctypes
import threading
from importlib import import_module

import numpy as np
import pytest
from alone import alone
from held import Held, in_thread
from raw_ranks import broken
from until import until

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


def test_work_runs_later_and_in_order():
    held = Held(cupy.cuda.Stream(non_blocking=True))
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
    free, held = Held(cupy.cuda.Stream(non_blocking=True)), Held(cupy.cuda.Stream())
    null = cupy.cuda.Stream.null
    x = cupy.zeros(1)
    assert runtime.streamQuery(null.ptr) == 600
    held.let_go()
    null.synchronize()
    assert x.get() == 0
    assert not free.stream.done
    free.let_go()
    free.stream.synchronize()


def test_an_event_belongs_to_the_device_it_was_made_on_and_tells_the_time_if_it_is_to():
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    refused(400, cupy.cuda.Event().record, stream)
    events = [cupy.cuda.Event(disable_timing=timeless) for timeless in (True, False, False)]
    for event in events:
        event.record()
    event.synchronize()
    assert cupy.cuda.get_elapsed_time(*events[1:]) >= 0
    refused(400, cupy.cuda.get_elapsed_time, *events[:2])


# Threads.


def test_the_driver_makes_no_context_and_wants_one():
    from standin.driver import Loader

    driver = Loader("libcuda.so.1")
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    event.synchronize()
    assert driver.cuEventQuery(ctypes.c_void_p(event.ptr)) == 0
    assert in_thread(lambda: driver.cuEventQuery(ctypes.c_void_p(event.ptr))) == 201


@pytest.mark.parametrize("asked", ["eventQuery", "setDevice"])
def test_a_stream_has_room_for_so_much_and_whoever_puts_more_on_it_waits(asked, monkeypatch):
    """A launch, a record and a copy wait for it (PyTorch pull requests 97066, 122732).

    CuPy's eventQuery and setDevice hold the interpreter's lock (CuPy 14.2, runtime.pyx:1077, 417: no nogil),
    and may wait in the driver for a lock of the thread that waits there.
    """
    monkeypatch.setenv("STANDIN_QUEUE", "3")
    with cupy.cuda.Device(1):
        held = Held(cupy.cuda.Stream(non_blocking=True))
        event = cupy.cuda.Event(disable_timing=True)
        there = import_module("standin.streams").find(held.stream.ptr)
        thread = threading.Thread(target=lambda: [event.record(held.stream) for _ in range(5)])
        thread.start()
        until(lambda: there.crowd)
        threading.Thread(target=lambda: until(lambda: control.violations) or held.let_go()).start()
        in_thread(lambda: getattr(runtime, asked)(event.ptr if asked == "eventQuery" else 1))
        thread.join()
    broken("holds the interpreter's lock")


# Memory.


def test_pinned_memory_is_not_kept_and_to_free_it_waits_for_the_device():
    pinned, held = [cupy.cuda.PinnedMemory(64)], Held(cupy.cuda.Stream(non_blocking=True))
    block = heap.find(pinned[0].ptr)
    block.bytes[:] = 1
    thread = threading.Thread(target=pinned.clear)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    held.let_go()
    thread.join()
    assert heap.find(block.pointer) is None
    assert (block.bytes == heap.POISON).all()


def test_memory_let_go_of_while_another_stream_uses_it_is_seen():
    held = Held(cupy.cuda.Stream(non_blocking=True))
    x, y = cupy.ones(4), cupy.zeros(4)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        cupy.add(x, 0, out=y)
    del x
    cupy.cuda.Stream.null.synchronize()
    held.let_go()
    held.stream.synchronize()
    assert (y.view(np.uint8).get() == heap.POISON).all()


def test_memory_written_after_it_was_let_go_of_is_seen_when_it_is_used_again():
    held = Held(cupy.cuda.Stream(non_blocking=True))
    x = cupy.ones(77)
    cupy.cuda.Stream.null.synchronize()
    with held.stream:
        x.fill(5)
    del x
    cupy.cuda.Stream.null.synchronize()
    held.let_go()
    held.stream.synchronize()
    cupy.empty(77).get()
    broken("written after it was freed")


# Graphs.


@pytest.mark.parametrize(
    ("mine", "capture", "own", "spoils"),
    [
        (0, 0, True, True), (0, 0, False, True), (0, 1, True, True), (0, 1, False, False),
        (1, 0, True, True), (1, 0, False, False), (1, 1, True, True), (1, 2, True, False),
        (2, 0, True, False), (2, 0, False, False), (2, 1, True, False), (0, 2, True, False),
    ],
)  # fmt: skip
def test_the_mode_of_a_thread_says_which_captures_forbid_it(mine, capture, own, spoils):
    """CUDA Runtime API, cudaThreadExchangeStreamCaptureMode."""
    graphs = import_module("standin.graphs")
    event = cupy.cuda.Event(disable_timing=True)
    stream = cupy.cuda.Stream(non_blocking=True)

    def ask():
        before = graphs.exchange_mode(mine)
        status = runtime.eventQuery(event.ptr)
        graphs.exchange_mode(before)
        return status

    stream.begin_capture(capture)
    assert (ask() if own else in_thread(ask)) == (900 if spoils else 0)
    if spoils:
        with pytest.raises(RuntimeError, match="invalidated"):
            stream.is_capturing()
        refused(901, stream.end_capture)
    else:
        stream.end_capture()


LOADED = import_module("cupy._arrays")._loaded
# What is done while a stream is captured, and CUDA's answers in thread-local and in relaxed mode.
SPOILS = {
    "a query": (lambda stream, x, event: runtime.streamQuery(stream.ptr), 900, 900),
    "a wait": (lambda stream, x, event: stream.synchronize(), 900, 900),
    "a query of its event": (lambda stream, x, event: runtime.eventQuery(event.ptr), 900, 907),
    "a copy to the host": (lambda stream, x, event: x.get(stream), 900, 900),
    "an event of before": (lambda stream, x, event: stream.wait_event(BEFORE[0]), 905, 905),
    "the default stream": (lambda stream, x, event: x.fill(1), 906, 906),
    "memory of CUDA's": (lambda stream, x, event: heap.malloc(8), 900, 0),
    "a kernel's first use": (lambda s, x, e: LOADED.clear() or cupy.hypot(x, x, out=x), 900, 0),
}
BEFORE = []


@pytest.mark.parametrize("what", SPOILS)
def test_what_spoils_a_capture(what):
    call, *expected = SPOILS[what]
    BEFORE[:] = [cupy.cuda.Stream.null.record(cupy.cuda.Event(disable_timing=True))]
    blocking = what == "the default stream"
    stream, x = cupy.cuda.Stream(non_blocking=not blocking), cupy.zeros(3)
    modes = runtime.streamCaptureModeThreadLocal, runtime.streamCaptureModeRelaxed
    for mode, status in zip(modes, expected, strict=True):
        stream.begin_capture(mode)
        event = stream.record(cupy.cuda.Event(disable_timing=True))
        try:
            with cupy.cuda.Stream.null if blocking else stream:
                answer = call(stream, x, event)
        except runtime.CUDARuntimeError as error:
            answer = error.status
        if status:
            assert answer == status
            refused(901, stream.end_capture)
        else:
            stream.end_capture()


def test_a_capture_is_joined_before_it_ends():
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros(1)
    stream.begin_capture()
    other.wait_event(stream.record(cupy.cuda.Event(disable_timing=True)))
    with other:
        x += 1
    refused(904, stream.end_capture)


# Processes of their own.

ALONE = {
    "the first call of a thread makes a context on device 0": (
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
        "print(devices.contexts())\n",
        "[1]\n[1]\n[0, 1]\n",
    ),
    "an illegal address loses the device": (
        "host = np.zeros(4)\n"
        "x = cupy.cuda.UnownedMemory(host.ctypes.data, 32, host, 0)\n"
        "x = cupy.ndarray(4, float, cupy.cuda.MemoryPointer(x, 0))\n"
        "x += 1\n"
        "cupy.cuda.Stream.null.synchronize()\n",
        "cudaErrorIllegalAddress",
    ),
    "after a fork CUDA cannot be used": (
        "import os\n"
        "cupy.zeros(1).get()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        cupy.zeros(1)\n"
        "    except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "        print('status', error.status, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n",
        "status 3",
    ),
}
"""Programs, and what is among what they print. Contexts: CUDA Runtime API, cudaSetDevice, Initialization."""


@pytest.mark.parametrize("what", ALONE)
def test_what_spoils_a_process(what):
    program, expected = ALONE[what]
    done = alone(program)
    assert expected in done.stdout + done.stderr
