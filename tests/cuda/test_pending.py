"""Calls under way on a device: how long they keep their arrays, and who checks them.

Events and captures do what the CUDA Runtime API says of them; on the stand-in, as its README lists it.
"""

import gc
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

runtime = cupy.cuda.runtime
DEVICE = 0
NOW = 1000.0
"""When calls begin here, whatever this machine is at."""

ORIGIN = Origin("", "world", 0, 1)
SMALL = CallFingerprint("all_reduce", 8)
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


def entry(begin=NOW, timeout=30.0, label=SMALL):
    """Return the record of a call."""
    return [ORIGIN, 1, 1, label, "device", None, begin, timeout, None, None]


def noted(pending, stream, record):
    """Note a call that was put on the stream just now; return a reference to what it holds."""
    held, (number, holder) = Owner(), streams.user_stream(stream)
    pending.note(number, holder, held, record, pending.capturing(number))
    return weakref.ref(held)


def last_of_two(pending, stream):
    """Note two calls at one time; return a reference to what the last holds, which has no event."""
    noted(pending, stream, entry())
    return noted(pending, stream, entry())


@pytest.fixture
def stream():
    with cupy.cuda.Device(DEVICE):
        yield cupy.cuda.Stream(non_blocking=True)


def gone(held):
    """Tell whether nobody has it any more."""
    gc.collect()
    return held() is None


def test_trap_what_calls_touch_is_held_until_the_event_that_they_share_has_come(stream):
    pending, _ = pending_calls()
    held_up = Held(stream)
    held = [noted(pending, stream, entry(label=LARGE))]
    held += [noted(pending, stream, entry(NOW + n * 1e-5)) for n in range(50)]
    assert not pending.idle()
    assert not any(map(gone, held))
    held_up.let_go()
    until(pending.idle)
    assert all(map(gone, held))


@pytest.mark.standin
def test_calls_that_follow_closely_share_an_event(stream, seen):
    pending, _ = pending_calls()
    for number in range(50):  # ten microseconds apart
        noted(pending, stream, entry(NOW + number * 1e-5))
    assert 1 <= [name for name, *_ in seen].count("eventRecord") < 10


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
    noted(pending, stream, entry(label=LARGE, timeout=0.1))
    noted(pending, stream, entry(label=CallFingerprint("broadcast", MARK_BYTES)))
    other = cupy.cuda.Stream(non_blocking=True)
    # It is done, though one before is not.
    held = noted(pending, other, entry(label=LARGE, timeout=0.05))
    other.synchronize()
    pending.look(NOW)
    assert not told
    pending.look(NOW + 0.2)
    assert gone(held)
    for _ in range(2):  # told once
        ((call, _),) = told
        assert (call.entry[LABEL].name, call.entry[TIMEOUT]) == ("all_reduce", 0.1)
        pending.look(NOW + 60)
    held_up.let_go()


@pytest.mark.standin
@pytest.mark.parametrize("asks", [PendingCalls.done, lambda pending, _: pending.idle()])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_an_abort_completes_is_not_done(stream, asks, meanwhile, interrupted):
    """NCCL's abort completes the event of a call that was stuck, also while that is asked for.

    A question to the driver may wait for a thread that the abort releases.
    """
    pending, _ = pending_calls()
    held_up, call = Held(stream), pending_call(stream.ptr, stream, entry(), ())
    pending.note_alone(call)

    def abort(*_):
        pending.abandon()
        held_up.let_go()
        stream.synchronize()

    interrupted("eventQuery", abort) if meanwhile else abort()
    asks(pending, call)
    assert not call.over


@pytest.mark.standin
def test_trap_an_error_of_the_device_is_no_event_that_is_not_ready(stream, interrupted):
    """An event may never come for it, and the watchdog tells; also where it may ask for nothing else."""
    from standin import devices

    pending, told = pending_calls()
    held_up, event, there = Held(stream), streams.make_event(), devices.device(DEVICE)
    noted(pending, stream, entry(label=LARGE))
    streams.record(event, stream.ptr)
    assert not streams.ready(event)
    pending.look(NOW)
    assert not told
    try:
        there.error = 700
        with pytest.raises(CommunicationError, match="CUDA has failed"):
            streams.ready(event)
        lost, told_of_it = pending_calls()
        pending.look(NOW)
        interrupted("getDevice", there.check)
        lost.look(NOW)
    finally:
        there.error = 0
    for (_, error), *more in (told, told_of_it):
        assert "CUDA has failed" in str(error)
        assert not more
    held_up.let_go()


@pytest.mark.standin
def test_trap_the_watchdog_has_a_device_of_its_own(interrupted):
    """And makes it current without the interpreter, which CuPy holds in setDevice (14.2, runtime.pyx:417: no nogil)."""
    pending = PendingCalls(1, lambda: None, lambda *_: CollectiveTimeout("overdue"))
    with cupy.cuda.Device(1):
        held = last_of_two(pending, cupy.cuda.Stream.null)
    asked = []
    interrupted("setDevice", asked.append)

    def watch():
        assert runtime.getDevice() == 0, "as every thread begins"
        until(lambda: pending.look(NOW + 1) or gone(held))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(watch).result()
    assert asked == []


def test_a_thread_without_a_context_learns_that_an_event_has_come(stream):
    event = streams.make_event()
    streams.record(event, stream.ptr)
    stream.synchronize()
    assert in_thread(lambda: streams.ready(event))


@pytest.mark.parametrize("mode", ["Global", "ThreadLocal", "Relaxed"])
def test_trap_captures_and_the_watchdog_leave_each_other_alone(stream, mode):
    """What was captured is kept, and has no deadline: the graph may be launched."""
    pending, told = pending_calls()
    capturing = cupy.cuda.Stream()
    x = cupy.zeros(4, np.float32)
    cupy.add(x, np.float32(0), out=x)  # a kernel is loaded before a capture
    cupy.cuda.Device().synchronize()
    other = Held(stream)
    under_way = noted(pending, stream, entry(label=LARGE))
    with capturing:
        capturing.begin_capture(getattr(runtime, f"streamCaptureMode{mode}"))
        cupy.add(x, np.float32(1), out=x)
        captured = noted(pending, capturing, entry(label=LARGE, timeout=0.1))
        in_thread(lambda: pending.look(NOW + 1))
        graph = capturing.end_capture()
        graph.launch(capturing)
        capturing.synchronize()
    assert x.get().tolist() == [1.0] * 4
    other.let_go()
    until(lambda: pending.look(NOW + 1) or gone(under_way))
    until(pending.idle)
    assert not gone(captured)
    assert not told
    pending.end()
    assert gone(captured)


def test_a_stream_that_only_its_number_is_known_of_is_asked_for_nothing_later():
    pending, _ = pending_calls()
    own = cupy.cuda.Stream(non_blocking=True)
    noted(pending, own, entry())
    pending.note(own.ptr, None, Owner(), entry())
    own.synchronize()
    del own
    gc.collect()
    until(pending.idle)


def test_calls_on_a_threads_own_default_stream_have_their_event_there():
    """A thread that records it later has another stream of that number (CUDA Runtime API, Stream synchronization behavior)."""
    pending, _ = pending_calls()
    held_up = Held(cupy.cuda.Stream.ptds)
    held = last_of_two(pending, cupy.cuda.Stream.ptds)
    # What was recorded on another stream would have come meanwhile.
    in_thread(lambda: [pending.look(NOW + 1) or time.sleep(0.01) for _ in range(3)])
    assert not gone(held)
    held_up.let_go()
    until(pending.idle)
    assert gone(held)


# Events that get into a graph: else a call never is done, and its arrays are held until the deadline of finalize.


def by_a_call_on_another_stream(pending, stream, interrupted):
    """At which the event of those before is recorded. Of the default stream: which a blocking stream's capture forbids."""
    captured = stream if stream.ptr else cupy.cuda.Stream()
    captured.begin_capture(runtime.streamCaptureModeThreadLocal)
    noted(pending, cupy.cuda.Stream(non_blocking=True), entry())
    return captured


def by_a_capture_that_begins_in_between(pending, stream, interrupted):
    """After the watchdog has seen that there is none. It is refused then what it does on the default stream."""
    captured = stream if stream.ptr else cupy.cuda.Stream()
    interrupted("eventRecord", lambda *_: captured.begin_capture())
    pending.look(NOW + 1)
    if stream.ptr:
        assert stream.is_capturing()
        return stream
    with pytest.raises(RuntimeError):  # cudaErrorStreamCaptureImplicit
        captured.end_capture()
    return None


def by_a_capture_that_begins_and_ends_in_between(pending, stream, interrupted):
    """Which the next query of the event tells."""

    def begins(*_):
        stream.begin_capture()
        interrupted("streamIsCapturing", lambda *_: stream.end_capture())

    interrupted("eventRecord", begins)
    pending.look(NOW + 1)


@pytest.mark.standin
@pytest.mark.parametrize(
    ("how", "default"),
    [
        *((by_a_call_on_another_stream, each) for each in (False, True)),
        *((by_a_capture_that_begins_in_between, each) for each in (False, True)),
        (by_a_capture_that_begins_and_ends_in_between, False),
    ],
)
def test_an_event_that_a_graph_has_taken_is_recorded_again(stream, how, default, interrupted):
    from standin import events

    pending, _ = pending_calls()
    before = {*events.by_pointer}
    given = cupy.cuda.Stream.null if default else stream
    last_of_two(pending, given)
    captured = how(pending, given, interrupted)
    for _ in range(3):
        pending.look(NOW + 1)
    if captured:
        captured.end_capture()
    until(pending.idle)
    assert {*events.by_pointer} == before, "one is there still"
