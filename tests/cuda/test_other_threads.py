"""CUDA's calls in threads that have no device, beside captures, and where a stream has no room left."""

import threading
import time
from importlib import import_module

import cupy
import numpy as np
import pytest
from alone import alone
from held import Held, in_thread
from nccl_ranks import on_devices, ranked
from until import until

from hpccomm import CommOptions
from hpccomm.backends.nccl import communicators
from hpccomm.errors import CollectiveTimeout, CommunicatorAborted
from hpccomm.reductions import ReduceOp
from hpccomm.runtime import pending

pytestmark = pytest.mark.standin

control = pytest.importorskip("standin.control")
exchange_mode = import_module("standin.graphs").exchange_mode
kernels = import_module("cupy._arrays").loaded
made_events = import_module("standin.events").by_pointer
runtime = cupy.cuda.runtime
GLOBAL = runtime.streamCaptureModeGlobal


# Which device.


def batched(comm, x):
    with comm.batch(async_op=True) as batch:
        comm.all_reduce(x)
    return [batch.work]


@pytest.mark.parametrize(
    "waits",
    [
        lambda comm, x: [comm.all_reduce(x, async_op=True)],
        batched,
        lambda comm, x: [comm.broadcast(x, async_op=True), comm.all_reduce(x, async_op=True)],
    ],
    ids=["call", "batch", "two"],
)
@ranked(1)
def test_the_stream_that_waits_is_that_of_the_arrays_device(comm, waits):
    """A call on device 0 is waited for while device 1 is current; both streams are the default one."""
    x = cupy.ones(1000)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as before:  # which the call's own stream waits for
        held = Held(before)
        works = waits(comm, x)
    with cupy.cuda.Device(1):
        for work in works:
            work.wait()
        other = cupy.cuda.Stream.null.record(cupy.cuda.Event(disable_timing=True))
        until(lambda: other.done)  # the default stream here has nothing to wait for
    early = cupy.cuda.Stream.null.record(cupy.cuda.Event(disable_timing=True)).done
    held.let_go()
    assert not early, "the default stream goes on before the call is done"
    assert (x.get() == 1).all()


CONTEXTS = """
import threading
import hpccomm
from standin import devices
cupy.cuda.runtime.setDevice(1)
x, y, stream = cupy.ones(200000), cupy.zeros(200000), cupy.cuda.Stream(non_blocking=True)

def elsewhere(call):
    thread = threading.Thread(target=call)  # without a device of its own
    thread.start()
    thread.join()
    print(devices.contexts())

with hpccomm.new_comm("loopback", device=1) as comm:
    work = comm.all_reduce(x, async_op=True)
    while not work.over:  # by itself, in the thread of the process
        pass
    work.wait()
    elsewhere(lambda: comm.all_reduce(x, async_op=True).wait())
    elsewhere(lambda: comm.send_recv(x, 0, y, 0, async_op=True).wait())
with hpccomm.new_comm("nccl", device=1) as comm:
    for queue in (0, stream):
        elsewhere(lambda: comm.all_reduce(x, stream=queue))
        elsewhere(lambda: comm.all_gather(x, stream=queue))
elsewhere(cupy.cuda.runtime.deviceSynchronize)  # as any call there would have shown
"""


def test_no_thread_makes_a_context_on_a_device_that_is_no_ranks():
    """As PyTorch's ProcessGroupNCCL.cpp says of its guard: "otherwise, extra CUDA context could be created"."""
    done = alone(CONTEXTS)
    assert done.stdout.splitlines() == ["[1]"] * 6 + ["[0, 1]"], done.stderr


# Captures.


def by_itself(comm, x, stream):
    """A call that the thread of the process moves on."""
    work = comm.all_reduce(x, async_op=True, stream=stream)
    until(lambda: work.over)
    return work


def elsewhere(count):
    """Calls of another thread, which looks meanwhile which are done."""
    return lambda comm, x, stream: in_thread(
        lambda: [comm.all_reduce(x, stream=stream) for _ in range(count)] and None
    )


@pytest.mark.parametrize(
    ("backend", "calls"),
    [("loopback", by_itself), ("loopback", elsewhere(1)), ("nccl", elsewhere(3))],
)
def test_a_capture_in_global_mode_goes_on_beside_calls_of_other_threads(backend, calls):
    """As PyTorch captures by default: a query from a thread that is not relaxed ends the capture."""

    def main(comm):
        x, y = cupy.ones(1 << 18), cupy.zeros(4)
        stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        cupy.cuda.Device().synchronize()
        cupy.add(y, 0.0, out=y)
        kept = [calls(comm, x, other)]  # what a first call makes is there
        with stream:
            stream.begin_capture(GLOBAL)
            kept.append(calls(comm, x, other))
            cupy.add(y, 1.0, out=y)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
        assert exchange_mode(GLOBAL) == GLOBAL, "the thread keeps its mode"
        assert y.get().tolist() == [1.0] * 4
        for work in filter(None, kept):
            work.wait()

    on_devices(1, main, backend=backend)


# A stream with no room left.


def calls(count):
    return lambda comm, x: [comm.all_reduce(x[:count]) for _ in range(40)]


def kernels_behind_a_call(comm, x):
    comm.all_reduce(x[:10])
    for _ in range(40):
        cupy.add(x, 1.0, out=x)
    comm.all_reduce(x[:10])


def left_alone(call, monkeypatch, options=None, alone=0, **variables):
    """Have a rank make calls, for which the other never comes, until it notices; return the error."""
    # A watchdog that nobody answers is patient for 5 s, and an abort for 3 s with a thread inside NCCL.
    monkeypatch.setattr(pending, "MISSED_BEATS", 2)
    monkeypatch.setattr(communicators, "LEAVE_SECONDS", 0.3)
    noticed, events = threading.Event(), {*made_events}

    def main(comm):
        x = cupy.ones(1 << 18, np.float32)
        if options is None:  # these are no first calls
            comm.all_reduce(x[:10])
            comm.all_reduce(x)
            until(lambda: {*made_events} <= events)  # the thread that looks has seen their end
        cupy.cuda.Device().synchronize()
        comm.barrier()
        if comm.rank != alone:
            until(noticed.is_set)
            comm.abort()
            return None
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        comm.set_timeout(0.3)
        try:
            with pytest.raises((CollectiveTimeout, CommunicatorAborted)) as caught:
                call(comm, x)
            with pytest.raises(CommunicatorAborted):
                comm.all_reduce(x)
        finally:
            noticed.set()
        return caught.value

    return on_devices(2, main, timeout=30.0, options=options)[alone]


@pytest.mark.parametrize(
    ("work", "alone"),  # device 0 is current in each thread, device 1 is not
    [(calls(10), 0), (calls(None), 1), (kernels_behind_a_call, 1)],
)
def test_a_lost_rank_is_noticed_though_the_streams_are_full(work, alone, monkeypatch):
    """A thread that waits in the driver for room waits for ever: nothing behind a lost rank ends."""
    left_alone(work, monkeypatch, alone=alone, STANDIN_QUEUE="8")


# An abort while a thread is inside NCCL.


def batch_of(comm, x):
    with comm.batch():
        comm.broadcast(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.broadcast(x),
        batch_of,
        lambda c, x: c.broadcast(x, async_op=True),
    ],
    ids=["call", "batch", "async"],
)
def test_nccl_is_freed_when_no_thread_is_inside(call, monkeypatch):
    """A thread that connects ranks in its first call, which a rank never makes, leaves before the abort.

    ncclCommAbort frees what the thread uses (NCCL 2.30, init.cc: commReclaim), and waits for nobody.
    ncclCommRevoke frees nothing.
    """
    monkeypatch.setenv("STANDIN_CONNECT", "1")
    assert isinstance(left_alone(call, monkeypatch, CommOptions(check="off")), CollectiveTimeout)


def test_what_was_launched_at_last_runs_before_nccl_is_freed(monkeypatch, nccl_made):
    """A revocation lets a launch through that had no room, and puts NCCL's flag to abort back.

    The abort that follows waits for nothing on the device (NCCL 2.30 init.cc: ncclCommRevoke, commReclaim).
    """
    # An event of a call would take room: whether one does is a matter of half a millisecond.
    monkeypatch.setattr(pending, "MARK_SECONDS", float("inf"))
    ended = []

    def three_calls_and_one_behind_a_kernel(comm, x):
        (made,) = [each for each in nccl_made() if each.rank == comm.rank]
        stream = cupy.cuda.Stream(non_blocking=True)
        for _ in range(3):
            comm.all_reduce(x[:10], stream=stream)
        held = Held(stream)

        def let_go():
            until(lambda: made.revoked and not made.inside)
            time.sleep(0.2)  # it could abort meanwhile, and nothing tells that it does not
            held.let_go()
            stream.synchronize()
            ended.append(made.freed)

        threading.Thread(target=let_go).start()
        comm.all_reduce(x[:10], stream=stream)
        comm.all_reduce(x[:10], stream=stream)

    left_alone(three_calls_and_one_behind_a_kernel, monkeypatch, STANDIN_QUEUE="3")
    until(lambda: ended)
    assert ended == [True]


def test_where_nccl_cannot_leave_a_call_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setenv("STANDIN_CONNECT", "1")
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22803")
    left_alone(lambda comm, x: comm.broadcast(x), monkeypatch, CommOptions(check="off"))
    assert "NCCL 2.28.7 and later" in caplog.text
    assert "aborted while a thread was in a call" in control.violations.pop()


# Kernels that are loaded in a capture.


@pytest.mark.parametrize("mode", [GLOBAL, runtime.streamCaptureModeThreadLocal])
@pytest.mark.parametrize(
    ("dtype", "op"), [("i4", ReduceOp.BOR), ("c8", ReduceOp.PROD), ("i2", ReduceOp.MAX)]
)
@ranked(2)
def test_the_first_call_that_folds_may_be_captured(comm, mode, dtype, op):
    """CUDA refuses to load a kernel in a capture, which happens at its first use, unless relaxed."""
    x = cupy.asarray(np.ones(100, dtype))
    stream = cupy.cuda.Stream(non_blocking=True)
    plan = comm.plan("all_reduce", x, op, algorithm="ring")
    cupy.cuda.Device().synchronize()
    comm.barrier()
    if not comm.rank:
        kernels.clear()
    comm.barrier()
    with stream:
        stream.begin_capture(mode)
        comm.barrier()
        plan()
        graph = stream.end_capture()
    comm.barrier()  # a capture in global mode forbids the other ranks' threads what follows
    graph.launch(stream)
    assert x.get(stream=stream)[0] == 1
