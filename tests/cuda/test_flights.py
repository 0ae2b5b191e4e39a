"""Calls that are under way on a device: what they hold, who looks after them, how they end."""

import contextlib
import dataclasses
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from time import perf_counter

import numpy as np
import pytest

import hpccomm
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted
from hpccomm.memory.cuda import streams
from hpccomm.runtime.operation import Label
from hpccomm.runtime.pending import MARK_BYTES, QUIET_SECONDS, PendingCalls
from hpccomm.runtime.recorder import LABEL, Origin
from hpccomm.testing import run_ranks

cupy = pytest.importorskip("cupy")

DEVICE = 0
SMALL = Label("all_reduce", 8)
ORIGIN = Origin("", "world", 0, 1)


class Owner:
    """What a flight holds: something whose end can be seen."""


def flights_of(lost=None):
    """Return flights, and a list that what is lost goes to."""
    told: list[object] = []

    def take(flight, error):
        told.append((flight, error))
        return error or CollectiveTimeout("overdue")

    return PendingCalls(DEVICE, lambda: None, lost or take), told


def busy(stream):
    """Put work on a stream that ends when the returned function is called."""
    gate = threading.Event()
    stream.launch_host_func(lambda _: gate.wait(30), None)
    return gate.set


def entry(number, begin, timeout=30.0, label=SMALL):
    """Return the record of a call."""
    return [ORIGIN, number, number, label, "device", None, begin, timeout, None, None]


def noted(flights, stream, label=SMALL, timeout=30.0):
    """Note a call that was put on the stream just now; return a reference to what it holds."""
    held = Owner()
    seen = weakref.ref(held)
    flights.note(stream.ptr, stream, held, entry(1, perf_counter(), timeout, label))
    return seen


def last_of_two(flights, stream):
    """Note two calls at one time; return a reference to what the last holds, which has no event."""
    now = perf_counter()
    flights.note(stream.ptr, stream, Owner(), entry(1, now))
    held = Owner()
    seen = weakref.ref(held)
    flights.note(stream.ptr, stream, held, entry(2, now))
    return seen


@pytest.fixture
def stream():
    with cupy.cuda.Device(DEVICE):
        yield cupy.cuda.Stream(non_blocking=True)


def test_trap_what_a_call_touches_is_held_until_its_event_has_come(stream):
    flights, _ = flights_of()
    release = busy(stream)
    held = noted(flights, stream, Label("all_reduce", MARK_BYTES))
    gc.collect()
    assert not flights.idle()
    assert held() is not None
    release()
    stream.synchronize()
    assert flights.idle()
    gc.collect()
    assert held() is None


def test_calls_that_follow_closely_share_an_event_and_are_let_go_together(stream, monkeypatch):
    recorded = []
    record = streams.record
    monkeypatch.setattr(streams, "record", lambda *args: (recorded.append(args), record(*args)))
    flights, _ = flights_of()
    now = perf_counter()
    held = []
    for number in range(50):
        owner = Owner()
        held.append(weakref.ref(owner))
        # Ten microseconds apart, whatever this machine is at.
        flights.note(stream.ptr, stream, owner, entry(number, now + number * 1e-5))
        del owner
    assert 1 <= len(recorded) < 10
    while not flights.idle():
        pass
    gc.collect()
    assert not any(each() for each in held)


def test_the_watchdog_looks_after_the_last_calls_of_a_burst(stream):
    flights, _ = flights_of()
    held = last_of_two(flights, stream)
    stream.synchronize()
    flights.look(perf_counter())
    assert held() is not None, "too early"
    flights.look(perf_counter() + 2 * QUIET_SECONDS)
    stream.synchronize()
    flights.look(perf_counter() + 2 * QUIET_SECONDS)
    gc.collect()
    assert held() is None


def test_a_deadline_that_passes_is_found_without_anybody_asking(stream):
    flights, told = flights_of()
    release = busy(stream)
    noted(flights, stream, Label("all_reduce", MARK_BYTES), timeout=0.1)
    noted(flights, stream, Label("broadcast", MARK_BYTES), timeout=30.0)
    flights.look(perf_counter())
    assert not told
    flights.look(perf_counter() + 0.2)
    assert [flight.entry[LABEL].name for flight, _ in told] == ["all_reduce"]
    flights.look(perf_counter() + 60)
    assert len(told) == 1, "told once"
    release()


def test_trap_an_event_that_never_comes_for_an_error_is_no_event_that_is_not_ready(monkeypatch):
    event = streams.make_event()
    runtime = cupy.cuda.runtime
    for status, expected in ((0, True), (streams.NOT_READY, False)):
        monkeypatch.setattr(runtime, "eventQuery", lambda _, status=status: status)
        assert streams.ready(event) is expected
    monkeypatch.setattr(runtime, "eventQuery", lambda _: 700)
    with pytest.raises(CommunicationError, match="CUDA has failed"):
        streams.ready(event)


def test_an_error_of_the_device_is_told_by_the_watchdog(stream, monkeypatch):
    flights, told = flights_of()
    release = busy(stream)
    noted(flights, stream, Label("all_reduce", MARK_BYTES))
    monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda _: 700)
    flights.look(perf_counter())
    assert len(told) == 1
    assert "CUDA has failed" in str(told[0][1])
    release()


def test_trap_the_watchdog_has_a_device_of_its_own():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    other = 1
    flights = PendingCalls(other, lambda: None, lambda *_: CollectiveTimeout("overdue"))
    with cupy.cuda.Device(other):
        default = cupy.cuda.Stream.null
        held = last_of_two(flights, default)
    failures = []

    def watch():
        try:
            assert cupy.cuda.runtime.getDevice() == 0, "as every thread begins"
            for _ in range(3):
                flights.look(perf_counter() + 1)
                time.sleep(0.02)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert not failures
    gc.collect()
    assert held() is None


def test_trap_a_capture_in_thread_local_mode_is_not_broken_by_the_watchdog(stream):
    flights, _ = flights_of()
    default = cupy.cuda.Stream.null
    held = last_of_two(flights, default)
    capturing = cupy.cuda.Stream()
    x = cupy.zeros(4, np.float32)
    default.synchronize()
    with capturing:
        capturing.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        cupy.add(x, np.float32(1), out=x)
        watchdog = threading.Thread(target=flights.look, args=(perf_counter() + 1,))
        watchdog.start()
        watchdog.join()
        assert held() is not None, "left alone while a graph is captured"
        graph = capturing.end_capture()
        graph.launch(capturing)
        capturing.synchronize()
    assert x.get().tolist() == [1.0] * 4
    flights.look(perf_counter() + 1)
    default.synchronize()
    flights.look(perf_counter() + 1)
    gc.collect()
    assert held() is None


def test_a_stream_that_only_its_number_is_known_of_is_asked_for_nothing_later():
    flights, _ = flights_of()
    own = cupy.cuda.Stream(non_blocking=True)
    flights.note(own.ptr, own, Owner(), entry(1, perf_counter()))
    flights.note(own.ptr, None, Owner(), entry(2, perf_counter()))
    own.synchronize()
    del own
    gc.collect()
    deadline = perf_counter() + 10
    while not flights.idle():
        assert perf_counter() < deadline


def test_a_stream_lives_until_its_event_is_recorded():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32)
            cupy.cuda.get_current_stream().synchronize()
            for _ in range(3):
                with cupy.cuda.Stream(non_blocking=True):
                    comm.all_reduce(x)
                    cupy.cuda.get_current_stream().synchronize()
                gc.collect()
            comm.barrier()
            assert x.get().tolist() == [comm.size**3] * 4

    run_ranks(2, main, backend="nccl")


@pytest.mark.standin
def test_trap_abort_from_the_watchdog_releases_the_stream_and_wait_raises():
    released = threading.Event()

    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32)
            comm.all_reduce(x, async_op=True).wait()  # the first call is agreed, by the hosts
            cupy.cuda.get_current_stream().synchronize()
            if comm.rank == 1:
                assert released.wait(20)  # misses the next call
                comm.abort()
                return
            work = comm.all_reduce(x, async_op=True, timeout=0.5)
            heard = []
            comm.register_abort_hook(heard.append)
            begin = perf_counter()
            while not work.done():
                assert perf_counter() - begin < 20
                time.sleep(0.01)
            with pytest.raises(CollectiveTimeout, match="all_reduce") as told:
                work.wait()
            assert told.value.operation == "all_reduce"
            assert isinstance(work.exception(), CollectiveTimeout)
            while not heard:  # hooks come last
                assert perf_counter() - begin < 20
                time.sleep(0.01)
            with pytest.raises(CommunicatorAborted):
                comm.all_reduce(x)
            # What was put on the device behind the call goes on.
            cupy.cuda.Device(comm.device).synchronize()
            released.set()

    run_ranks(2, main, backend="nccl")


def test_a_call_that_the_library_does_not_come_back_from_is_released(monkeypatch):
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32)
            devices = comm._core.lanes.device
            released = threading.Event()
            abort = devices.backend.abort

            def aborted(*seconds):
                abort(*seconds)
                released.set()

            def connecting(_send, _recv, _stream):
                # As NCCL does, which connects ranks when they first need it.
                assert released.wait(30), "nobody came"
                raise RuntimeError("aborted")

            monkeypatch.setattr(devices.backend, "abort", aborted)
            call = Signature("broadcast", x.dtype, (4,), root=0)
            way = devices.dispatch.decide(call, "native", False)
            monkeypatch.setattr(
                devices.dispatch, "decide", lambda *_: dataclasses.replace(way, launch=connecting)
            )
            with pytest.raises(CollectiveTimeout, match="broadcast"):
                comm.broadcast(x, timeout=0.5)
            with pytest.raises(CommunicatorAborted):
                comm.all_reduce(x)

    run_ranks(1, main, backend="nccl")


def test_trap_calls_before_a_capture_and_in_it_are_apart(stream):
    flights, told = flights_of()
    default = cupy.cuda.Stream.null
    before = last_of_two(flights, default)  # has no event when the capture begins
    x = cupy.zeros(4, np.float32)
    default.synchronize()
    capturing = cupy.cuda.Stream()
    with capturing:
        capturing.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        cupy.add(x, np.float32(1), out=x)
        captured = noted(flights, capturing, Label("all_reduce", MARK_BYTES), timeout=0.1)
        graph = capturing.end_capture()
    deadline = perf_counter() + 10
    while not flights.idle():
        assert perf_counter() < deadline
    flights.look(perf_counter() + 1)
    gc.collect()
    assert before() is None
    assert captured() is not None, "the graph may be launched"
    assert not told, "a captured call has no deadline"
    graph.launch(capturing)
    capturing.synchronize()
    flights.end()
    gc.collect()
    assert captured() is None


def test_a_call_that_is_done_has_no_deadline_though_an_earlier_one_waits(stream):
    flights, told = flights_of()
    release = busy(stream)
    noted(flights, stream, Label("recv", MARK_BYTES), timeout=float("inf"))
    other = cupy.cuda.Stream(non_blocking=True)
    held = noted(flights, other, Label("all_reduce", MARK_BYTES), timeout=0.1)
    other.synchronize()
    flights.look(perf_counter() + 1)
    gc.collect()
    assert held() is None
    assert not told
    release()


def test_a_batch_keeps_its_order_whichever_ranks_are_in_place():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            a = cupy.asarray(np.full(2, 10 + comm.rank, np.float32))
            b = cupy.asarray(np.full(2, 20 + comm.rank, np.float32))
            here = comm.rank == 0
            with comm.batch():
                got_a = comm.all_to_all(a, out=a if here else None)
                got_b = comm.all_to_all(b)
            assert got_a.get().tolist() == [10, 11]
            assert got_b.get().tolist() == [20, 21]
            x = cupy.asarray(np.full(2, comm.rank, np.float32))
            y, out = cupy.zeros(2, np.float32), cupy.zeros(2, np.float32)
            peer = 1 - comm.rank
            with comm.batch():
                comm.send_recv(x, peer, x if here else out, peer)
                if here:
                    comm.recv(y, peer)
                else:
                    comm.send(cupy.asarray(np.full(2, 30, np.float32)), peer)
            assert (x if here else out).get().tolist() == [peer, peer]
            assert y.get().tolist() == ([30, 30] if here else [0, 0])

    run_ranks(2, main, backend="nccl")


def test_calls_of_a_batch_that_share_what_one_writes_are_refused():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            whole = cupy.zeros(100, np.float32)
            for first, second, shared in (
                (whole[:50], whole[50:], False),
                (whole[:51], whole[50:], True),
                (whole, whole[10:20], True),
                (whole[10:20], whole, True),
            ):
                refusal = pytest.raises(hpccomm.UsageError, match="share memory")
                with refusal if shared else contextlib.nullcontext(), comm.batch():
                    comm.all_reduce(first)
                    comm.all_reduce(second)
            with comm.batch():  # to read the same is no harm
                one = comm.all_gather(whole)
                other = comm.all_gather(whole)
            assert one.shape == other.shape == (comm.size, 100)

    run_ranks(2, main, backend="nccl")


@pytest.mark.parametrize("backend", ["nccl", "loopback"])
def test_an_asynchronous_batch_is_over_when_its_arrays_are_there(backend):
    def main(comm):
        with cupy.cuda.Device(comm.device):
            for turn in range(10):
                x = cupy.asarray(np.full(1000, turn, np.float32))
                with comm.batch(async_op=True) as batch:
                    comm.all_reduce(x)
                batch.work.wait(block=True)
                with cupy.cuda.Stream(non_blocking=True):
                    assert x.get().tolist() == [turn * comm.size] * 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_DELAY", "0.003")
        run_ranks(2, main, backend=backend)


@pytest.mark.standin
def test_a_device_that_has_failed_for_good_ends_the_communicator(stream, monkeypatch):
    from standin.errors import CUDARuntimeError

    flights, told = flights_of()
    noted(flights, stream, Label("all_reduce", MARK_BYTES))

    def lost(_device):
        raise CUDARuntimeError(700)

    monkeypatch.setattr(cupy.cuda.runtime, "setDevice", lost)
    flights.look(perf_counter())
    assert len(told) == 1
    assert isinstance(told[0][1], CommunicationError)


def test_a_call_that_a_capture_refuses_leaves_the_communicator_as_it_was():
    def main(comm):
        with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as own:
            x, out = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
            own.synchronize()
            for refused in (
                lambda: comm.all_gather(x),  # makes its result
                lambda: comm.all_reduce(x, algorithm="ring"),  # has no communicator yet
            ):
                own.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
                with pytest.raises(hpccomm.UsageError, match="captured"):
                    refused()
                own.end_capture()
            comm.all_reduce(x, out=out)
            assert out.get().tolist() == [comm.size] * 4

    run_ranks(2, main, backend="nccl")


@pytest.mark.standin
def test_a_failure_that_no_call_has_told_is_raised_by_finalize():
    released = threading.Event()

    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32)
            comm.all_reduce(x)
            cupy.cuda.get_current_stream().synchronize()
            if comm.rank == 1:  # misses the last call
                assert released.wait(20)
                comm.abort()
                comm.finalize()
                return
            comm.all_reduce(x, timeout=0.5)
            cupy.cuda.get_current_stream().synchronize()  # is released, and x holds anything
            released.set()
            with pytest.raises(CollectiveTimeout, match="all_reduce"):
                comm.finalize()
            comm.finalize()  # told once

    run_ranks(2, main, backend="nccl")


def test_ranks_that_plan_on_different_kinds_of_arrays_are_told():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32) if comm.rank else np.ones(4, np.float32)
            with pytest.raises(hpccomm.RankMismatch, match="cuda"):
                comm.plan("all_reduce", x)

    run_ranks(2, main, backend="nccl")


def test_ranks_whose_first_asynchronous_calls_differ_are_told():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.zeros(4, bool if comm.rank else np.uint8)  # which are the same to NCCL
            work = comm.all_reduce(x, op=hpccomm.ReduceOp.MAX, async_op=True)
            until = perf_counter() + 10  # it waits for nobody: the ranks may learn of it later
            while work.exception() is None and perf_counter() < until:
                time.sleep(0.01)
            with pytest.raises(hpccomm.RankMismatch, match="dtype uint8"):
                work.wait()

    run_ranks(2, main, backend="nccl", timeout=20)


PROGRAM = """
import sys, time, numpy as np, cupy, hpccomm
comm = hpccomm.new_comm("nccl")
cupy.cuda.Device(comm.device).use()
x = cupy.ones(1 << 20, np.float32)
for _ in range(20):
    comm.all_reduce(x)
work = comm.all_reduce(x, async_op=True)
{}
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        pytest.param("raise SystemExit(3)", marks=pytest.mark.thorough),
        pytest.param("comm.abort()", marks=pytest.mark.thorough),
        "del comm, x, work",
    ],
)
def test_trap_leaving_without_finalize_frees_what_it_can_and_ends(ending):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(ending)],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"STANDIN_DELAY": "0.01"},
    )
    assert done.returncode == (3 if "3" in ending else 0), done.stderr
    assert "Error" not in done.stderr, done.stderr


def left(program, **environment):
    """Run a program and return its output, what it says of errors, and how long it took to end."""
    ending = (
        "import time, atexit\n"
        "told = lambda: print('leaves at', time.time(), flush=True)\n"
        "atexit.register(told)\n"  # before the end of everything else
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(program + ending)],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    (began,) = (line.split()[-1] for line in done.stdout.splitlines() if "leaves at" in line)
    return done.stdout, done.stderr, time.time() - float(began)


NO_THREADS = """
import threading
start = threading.Thread.start
def refuse(thread):
    if thread.name.startswith("hpccomm"):  # others are the stand-in's
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)
threading.Thread.start = refuse
"""


def test_trap_leaving_starts_no_thread_since_python_may_refuse_to():
    _, told, _ = left(NO_THREADS)
    assert "Error" not in told, told


STUCK = """
from hpccomm.communicator.lanes import ending
ending.DRAIN_SECONDS = 3.0
another = comm.dup()
another.all_reduce(x)
for each in comm, another:
    each.register_abort_hook(lambda error: print("aborted"))
"""


def test_trap_what_is_stuck_at_exit_is_aborted_within_the_seconds_that_there_are_in_all():
    stuck = """
import threading
never = threading.Event()
cupy.cuda.get_current_stream().launch_host_func(lambda _: never.wait(), None)
comm.all_reduce(x)
another.all_reduce(x)
"""
    out, told, seconds = left(STUCK + stuck + NO_THREADS)
    assert out.count("aborted") == 2
    assert "Traceback" not in told, told
    assert 1 <= seconds < 6


def test_one_communicators_failure_at_exit_keeps_no_other_from_its_end():
    fails = """
def lost():
    raise RuntimeError("lost")
freed = another._core.lanes.device.backend.release
another._core.lanes.device.backend.release = lambda *a, **k: (print("freed"), freed(*a, **k))[1]
comm._core.lanes.device.end.leave = lambda until: lost()
third = comm.dup()
third._core.lanes.device.issuer.pending.idle = lost
third.register_abort_hook(lambda error: print("aborted", error))
"""
    out, told, _ = left(STUCK + fails)
    assert out.count("freed") == out.count("aborted lost") == 1
    assert told.count("RuntimeError: lost") == 1, told


CAPTURE = """
stream = cupy.cuda.Stream(non_blocking=True)
stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
comm.all_reduce(x, stream=stream)
graph = stream.end_capture()
graph.launch(stream)
stream.synchronize()
"""


@pytest.mark.parametrize(
    "ending", ["", "comm.finalize()", pytest.param("comm.abort()", marks=pytest.mark.thorough)]
)
def test_trap_leaving_does_not_wait_for_graphs_as_nccl_does(ending):
    _, told, seconds = left(f"work.wait(block=True){CAPTURE}{ending}\n")
    assert "Error" not in told, told
    assert ("drop the graphs" in told) == ("finalize" in ending)
    assert seconds < 5


def test_trap_finalize_does_not_wait_for_graphs_as_nccl_does(caplog):
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x, stream = cupy.ones(4, np.float32), cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.get_current_stream().synchronize()
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            comm.all_reduce(x, stream=stream)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
            communicators = comm._core.lanes.device.backend._communicators
            begin = perf_counter()
            comm.finalize()
            assert perf_counter() - begin < 10
            assert not communicators._over()
            assert x.get().tolist() == [comm.size] * 4
            del graph
            while not communicators._over():
                assert perf_counter() - begin < 20
                time.sleep(0.01)

    run_ranks(2, main, backend="nccl")
    assert any("drop the graphs" in record.getMessage() for record in caplog.records)


def test_graphs_that_were_dropped_keep_nothing(caplog):
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x, stream = cupy.ones(4, np.float32), cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.get_current_stream().synchronize()
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            comm.all_reduce(x, stream=stream)
            graph = stream.end_capture()
            del graph
        communicators = comm._core.lanes.device.backend._communicators
        comm.finalize()
        assert communicators._over()

    run_ranks(2, main, backend="nccl")
    assert not any("drop the graphs" in record.getMessage() for record in caplog.records)


@pytest.mark.standin  # which says so where NCCL might hang
def test_trap_nothing_is_under_way_on_a_communicator_that_nccl_shrinks():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x, stream = cupy.ones(4, np.float32), cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.get_current_stream().synchronize()
            release = busy(stream)
            threading.Timer(0.5, release).start()
            comm.all_reduce(x, stream=stream)
            if comm.rank < 2:
                with comm.shrink([2]) as fewer:
                    fewer.all_reduce(x)
                    cupy.cuda.get_current_stream().synchronize()
                    assert x.get().tolist() == [6] * 4
            comm.barrier()

    run_ranks(3, main, backend="nccl")


def test_a_message_to_oneself_whose_other_end_is_missing_is_refused_before_nccl_is_called():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            me, x, y = comm.rank, cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
            nothing = cupy.zeros(0, np.float32)
            with pytest.raises(hpccomm.UsageError, match="to itself"):
                comm.send(x, me)
            with pytest.raises(hpccomm.UsageError, match="to itself"):
                comm.send_recv(x, me, y[:2], me)

            def batched(*received):
                with comm.batch():
                    comm.send(x, me)
                    for each in received:
                        comm.recv(each, me)

            for wrong in ((), (y[:2],)):
                with pytest.raises(hpccomm.UsageError, match="to itself"):
                    batched(*wrong)
            comm.send(nothing, me)
            batched(y)
            assert y.get().tolist() == [1] * 4

    run_ranks(2, main, backend="nccl")


def test_trap_a_forked_child_is_refused_and_ends_in_peace():
    program = PROGRAM.format(
        """
work.wait(block=True)
import os
child = os.fork()
if child == 0:
    try:
        comm.all_reduce(x)
    except hpccomm.CommunicatorAborted as error:
        assert "forked" in str(error)
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.all_reduce(x)
comm.finalize()
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_plan_and_the_call_itself_do_the_same_and_count_alike():
    def main(comm):
        with cupy.cuda.Device(comm.device):
            x = cupy.ones(4, np.float32)
            plan = comm.plan("all_reduce", x)
            calls = []
            for issue in (plan, lambda: comm.all_reduce(x)):
                before = (
                    comm.stats()
                    .get(("all_reduce", "to 1 KiB"), hpccomm.runtime.stats.Tally())
                    .calls
                )
                assert issue() is x
                calls.append(comm.stats()["all_reduce", "to 1 KiB"].calls - before)
            assert calls == [1, 1]
            heard = []
            handle = comm.register_post_hook(heard.append)
            plan()
            handle.remove()
            assert [info.operation for info in heard] == ["all_reduce"]
            assert x.get().tolist() == [comm.size**3] * 4
            with comm.batch():
                plan()
            assert x.get().tolist() == [comm.size**4] * 4
        comm.finalize()
        with pytest.raises(hpccomm.UsageError, match="finalized"):
            plan()

    run_ranks(2, main, backend="nccl")
