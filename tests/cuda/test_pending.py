"""Calls under way on a device: how long they keep their arrays, and who checks them."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import cupy
import numpy as np
import pytest
from held import Held, in_thread
from until import until

from hpccomm.contracts.signature import CallFingerprint
from hpccomm.errors import CollectiveTimeout, CommunicationError
from hpccomm.memory.cuda import streams
from hpccomm.runtime.pending import MARK_BYTES, QUIET_SECONDS, PendingCalls, pending_call
from hpccomm.runtime.recorder import LABEL, TIMEOUT, Origin

DEVICE = 0
NOW = 1000.0
"""When calls begin here, whatever this machine is at."""

SMALL = CallFingerprint("all_reduce", 8)
ORIGIN = Origin("", "world", 0, 1)


LARGE = CallFingerprint("all_reduce", MARK_BYTES)
"""Has an event of its own at once; small ones that follow closely share one, which comes later."""


class Owner:
    """What a call holds: something whose end can be seen."""


def pending_calls():
    """Return calls that are looked after, and a list that what is lost goes to."""
    told: list[object] = []

    def take(call, error):
        told.append((call, error))
        return error or CollectiveTimeout("overdue")

    return PendingCalls(DEVICE, lambda: None, take), told


def entry(number, begin, timeout=30.0, label=SMALL):
    """Return the record of a call."""
    return [ORIGIN, number, number, label, "device", None, begin, timeout, None, None]


def noted(pending, stream, label=SMALL, timeout=30.0):
    """Note a call that was put on the stream just now; return a reference to what it holds."""
    held = Owner()
    seen = weakref.ref(held)
    captured = pending.capturing(stream.ptr)
    pending.note(stream.ptr, stream, held, entry(1, NOW, timeout, label), captured)
    return seen


def last_of_two(pending, stream):
    """Note two calls at one time; return a reference to what the last holds, which has no event."""
    queue = streams.user_stream(stream)
    pending.note(*queue, Owner(), entry(1, NOW))
    held = Owner()
    seen = weakref.ref(held)
    pending.note(*queue, held, entry(2, NOW))
    return seen


@pytest.fixture
def stream():
    with cupy.cuda.Device(DEVICE):
        yield cupy.cuda.Stream(non_blocking=True)


def gone(held):
    """Tell whether nobody has it any more."""
    gc.collect()
    return held() is None


def test_trap_what_a_call_touches_is_held_until_its_event_has_come(stream):
    pending, _ = pending_calls()
    held_up = Held(stream)
    held = noted(pending, stream, LARGE)
    assert not pending.idle()
    assert not gone(held)
    held_up.let_go()
    stream.synchronize()
    assert pending.idle()
    assert gone(held)


def test_calls_that_follow_closely_share_an_event_and_are_let_go_together(stream, monkeypatch):
    recorded = []
    record = streams.record
    monkeypatch.setattr(streams, "record", lambda *args: (recorded.append(args), record(*args)))
    pending, _ = pending_calls()
    held, held_up = [], Held(stream)
    for number in range(50):
        owner = Owner()
        held.append(weakref.ref(owner))
        # Ten microseconds apart.
        pending.note(stream.ptr, stream, owner, entry(number, NOW + number * 1e-5))
        del owner
    assert 1 <= len(recorded) < 10
    assert not any(map(gone, held))
    held_up.let_go()
    until(pending.idle)
    assert all(map(gone, held))


def test_the_watchdog_looks_after_the_last_calls_of_a_burst(stream):
    pending, _ = pending_calls()
    held = last_of_two(pending, stream)
    stream.synchronize()
    pending.look(NOW)
    assert not gone(held), "too early"
    for _ in range(2):
        pending.look(NOW + 2 * QUIET_SECONDS)
        stream.synchronize()
    assert gone(held)


def test_a_deadline_that_passes_is_found_without_anybody_asking(stream):
    pending, told = pending_calls()
    held_up = Held(stream)
    noted(pending, stream, LARGE, timeout=0.1)
    noted(pending, stream, LARGE._replace(name="broadcast"), timeout=30.0)
    other = cupy.cuda.Stream(non_blocking=True)
    held = noted(pending, other, LARGE, timeout=0.05)  # is done, though one before is not
    other.synchronize()
    pending.look(NOW)
    assert not told
    pending.look(NOW + 0.2)
    assert gone(held)
    assert [(call.entry[LABEL].name, call.entry[TIMEOUT]) for call, _ in told] == [
        ("all_reduce", 0.1)
    ]
    pending.look(NOW + 60)
    assert len(told) == 1, "told once"
    held_up.let_go()


@pytest.mark.parametrize("asks", [PendingCalls.done, lambda pending, _: pending.idle()])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_an_abort_completes_is_not_done(stream, asks, meanwhile, monkeypatch):
    """NCCL's abort completes the event of a call that was stuck, also while that is asked for.

    A question to the driver may wait for a thread that the abort releases.
    """
    pending, _ = pending_calls()
    held_up, call = Held(stream), pending_call(stream.ptr, stream, entry(1, NOW), ())
    pending.note_alone(call)
    asked = streams.event_status

    def abort():
        pending.abandon()
        held_up.let_go()
        stream.synchronize()

    if meanwhile:
        monkeypatch.setattr(streams, "event_status", lambda event: abort() or asked(event))
    else:
        abort()
    asks(pending, call)
    assert not call.over


@pytest.mark.standin
def test_trap_an_error_of_the_device_is_no_event_that_is_not_ready(stream, monkeypatch):
    """An event may never come for it, and the watchdog tells; also where it may ask for nothing else."""
    from standin import devices

    pending, told = pending_calls()
    held_up, event = Held(stream), streams.make_event()
    noted(pending, stream, LARGE)
    streams.record(event, stream.ptr)
    assert not streams.ready(event)
    pending.look(NOW)
    assert not told
    monkeypatch.setattr(devices.device(DEVICE), "error", 700)
    with pytest.raises(CommunicationError, match="CUDA has failed"):
        streams.ready(event)
    lost, told_of_it = pending_calls()
    pending.look(NOW)
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", devices.device(DEVICE).check)
    lost.look(NOW)
    for (_, error), *more in (told, told_of_it):
        assert "CUDA has failed" in str(error)
        assert not more
    held_up.let_go()


def test_trap_the_watchdog_has_a_device_of_its_own(monkeypatch):
    """And makes it current without the interpreter, which CuPy holds in setDevice (14.2, runtime.pyx:417: no nogil)."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    pending = PendingCalls(1, lambda: None, lambda *_: CollectiveTimeout("overdue"))
    with cupy.cuda.Device(1):
        held = last_of_two(pending, cupy.cuda.Stream.null)
    monkeypatch.setattr(cupy.cuda.runtime, "setDevice", None)

    def watch():
        assert cupy.cuda.runtime.getDevice() == 0, "as every thread begins"
        until(lambda: pending.look(NOW + 1) or gone(held))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(watch).result()


def test_trap_captures_and_the_watchdog_leave_each_other_alone(stream):
    """In thread-local mode. What was captured is kept, and has no deadline: the graph may be launched."""
    pending, told = pending_calls()
    capturing = cupy.cuda.Stream()
    x = cupy.zeros(4, np.float32)
    cupy.add(x, np.float32(0), out=x)  # a kernel is loaded before a capture
    cupy.cuda.Device().synchronize()
    with capturing:
        capturing.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        cupy.add(x, np.float32(1), out=x)
        captured = noted(pending, capturing, LARGE, timeout=0.1)
        in_thread(lambda: pending.look(NOW + 1))
        graph = capturing.end_capture()
        graph.launch(capturing)
        capturing.synchronize()
    assert x.get().tolist() == [1.0] * 4
    until(pending.idle)
    pending.look(NOW + 1)
    assert not gone(captured)
    assert not told
    pending.end()
    assert gone(captured)


def test_a_stream_that_only_its_number_is_known_of_is_asked_for_nothing_later():
    pending, _ = pending_calls()
    own = cupy.cuda.Stream(non_blocking=True)
    pending.note(own.ptr, own, Owner(), entry(1, NOW))
    pending.note(own.ptr, None, Owner(), entry(2, NOW))
    own.synchronize()
    del own
    gc.collect()
    until(pending.idle)


def test_calls_on_a_threads_own_default_stream_have_their_event_there():
    """A thread that records it later has another stream of that number (CUDA Runtime API, Stream synchronization behavior)."""
    pending, _ = pending_calls()
    held_up = Held(cupy.cuda.Stream.ptds)
    held = last_of_two(pending, cupy.cuda.Stream.ptds)
    in_thread(lambda: [pending.look(NOW + 1) or time.sleep(0.01) for _ in range(3)])
    assert not gone(held)
    held_up.let_go()
    until(pending.idle)
    assert gone(held)


@pytest.mark.standin
def test_an_event_that_cuda_refuses_to_record_is_made_anew_at_the_next_look(monkeypatch):
    """As on the default stream beside a capture (cudaErrorStreamCaptureImplicit) that has begun just now."""
    from standin import events

    pending, _ = pending_calls()
    last_of_two(pending, cupy.cuda.Stream.null)
    capturing = cupy.cuda.Stream()
    capturing.begin_capture()
    monkeypatch.setattr(streams, "undisturbed", lambda number: True)
    before = {*events._by_pointer}
    for _ in range(3):
        pending.look(NOW + 1)
        assert before >= {*events._by_pointer}, "one that was refused is there still"
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):  # it was refused
        capturing.end_capture()


@pytest.mark.gpu
def test_the_driver_answers_about_an_event_in_a_thread_without_a_context(stream):
    import ctypes

    from hpccomm.memory.cuda.library import driver_library

    event, answers = streams.make_event(), []
    streams.record(event, stream.ptr)
    stream.synchronize()
    ask = driver_library().cuEventQuery
    thread = threading.Thread(target=lambda: answers.append(ask(ctypes.c_void_p(event.ptr))))
    thread.start()
    thread.join()
    assert answers == [0]
