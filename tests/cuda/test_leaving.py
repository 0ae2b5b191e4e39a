"""The end of device work: finalize, and processes that leave, are stuck, or have forked.

Programs run in processes of their own, since their exits are what is tested: forks of one that has the
imports done.
"""

import cupy
import numpy as np
import pytest
from forked import Forks
from nccl_ranks import on_devices
from until import until

from front.device_graphs import capture
from hpccomm import Communicator
from hpccomm.calls.lanes import streams

IMPORTS = (
    *("numpy", "cupy", "cupy.cuda.nccl", "hpccomm.communicator.creation"),
    *("hpccomm.backends.nccl", "hpccomm.calls.on_device"),
)
"""What takes long to import, and begins nothing: no MPI, no CUDA, no thread."""


@pytest.fixture(scope="module")
def forks():
    made = Forks(*IMPORTS)
    yield made
    made.end()


# Finalize.


@pytest.mark.standin
@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "dropped"),
    [(Communicator.finalize, False), (Communicator.finalize, True), (Communicator.abort, False)],
)
def test_trap_no_end_waits_for_graphs_as_nccls_does(end, dropped, caplog, monkeypatch, nccl_made):
    monkeypatch.setattr(streams, "GRAPH_SECONDS", 0.05)  # instead of a second

    def main(comm):
        def ended():
            return all(each.rank != comm.rank for each in nccl_made())

        x, stream = cupy.ones(4, np.float32), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with capture(stream) as graph:
            comm.all_reduce(x, stream=stream)
        graph[0].launch(stream)
        stream.synchronize()
        assert x.get().tolist() == [comm.size] * 4
        if dropped:
            graph.clear()
        comm.barrier()
        end(comm)
        assert ended() == dropped
        graph.clear()
        until(ended)

    on_devices(2, main)
    told = any("drop the graphs" in record.getMessage() for record in caplog.records)
    assert told == (end is Communicator.finalize and not dropped)


# Leaving.

PROGRAM = """
import sys, time, numpy as np, cupy, hpccomm
comm = hpccomm.new_comm("nccl")
cupy.cuda.Device(comm.device).use()
x = cupy.ones(1 << 18, np.float32)
for _ in range(5):
    comm.all_reduce(x)
work = comm.all_reduce(x, async_op=True)
"""


def left(forks, program, **environment):
    """Run a program to its end; return its lines, and what it says of errors."""
    done = forks.run(PROGRAM + program, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


NO_THREADS = """
import threading
start = threading.Thread.start
def refuse(thread):
    if thread.name.startswith("hpccomm"):  # others are the stand-in's
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start(thread)
threading.Thread.start = refuse
"""


@pytest.mark.parametrize(
    "ending",
    [
        NO_THREADS,  # Python may refuse to start any
        pytest.param("comm.abort()", marks=pytest.mark.thorough),
        "del comm, x, work",
    ],
)
def test_trap_leaving_without_finalize_frees_what_it_can_and_ends(forks, ending):
    _, told = left(forks, ending, STANDIN_DELAY="0.01")
    assert "Error" not in told, told


# Two communicators. It prints the seconds that they take to end.
TWO = """
from hpccomm.calls.lanes import streams
another = comm.dup()
another.all_reduce(x)
for each in comm, another:
    each.register_abort_hook(lambda error: print("aborted"))
"""


def test_trap_what_is_stuck_at_exit_is_aborted_within_the_seconds_that_there_are_in_all(forks):
    stuck = """
import threading
streams.DRAIN_SECONDS, streams.ABORT_SECONDS = 0.7, 0.5
def told(what, real):
    def call(seconds, *more):
        print(what, seconds)
        real(seconds, *more)
    return call
for each in comm, another:  # how long they may wait is nowhere to be seen
    device = each._core.lanes.device
    device.issuer._drain = told("waits", device.issuer._drain)
    device.backend.abort = told("aborts", device.backend.abort)
never = threading.Event()
cupy.cuda.get_current_stream().launch_host_func(lambda _: never.wait(), None)
comm.all_reduce(x)
another.all_reduce(x)
"""
    lines, told = left(forks, TWO + stuck + NO_THREADS)
    assert lines.count("aborted") == 2
    assert "Traceback" not in told, told
    told = [line.split() for line in lines if line != "aborted"]
    (first, second), (abort, another) = (
        [float(number) for name, number in told if name == what] for what in ("waits", "aborts")
    )
    assert 0 <= first <= 0.2
    assert second == 0, "the first has had all that there is to wait"
    assert 0 <= another <= abort <= 0.7, "of one budget"


def test_one_communicators_failure_at_exit_keeps_no_other_from_its_end(forks):
    fails = """
def lost(*_):
    raise RuntimeError("lost")
freed = another._core.lanes.device.backend.release
another._core.lanes.device.backend.release = lambda *a, **k: (print("freed"), freed(*a, **k))[1]
comm._core.lanes.device.issuer.leave = lost
third = comm.dup()
third._core.lanes.device.issuer.pending.idle = lost
third.register_abort_hook(lambda error: print("aborted", error))
"""
    lines, told = left(forks, TWO + fails)
    assert lines.count("freed") == lines.count("aborted lost") == 1
    assert told.count("RuntimeError: lost") == 1, told


CAPTURE = """
comm._core.lanes.device.backend.release = lambda *how, **more: print("waits")
work.wait(block=True)
y = cupy.zeros_like(x)
stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.get_current_stream().synchronize()
stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
comm.send_recv(x, 0, y, 0, stream=stream)  # a collective of one rank is a copy, which NCCL knows nothing of
graph = stream.end_capture()
graph.launch(stream)
stream.synchronize()
"""


def test_trap_leaving_does_not_wait_for_graphs_as_nccl_does(forks):
    lines, told = left(forks, CAPTURE)
    assert lines == []
    assert "Error" not in told, told


def test_trap_a_forked_child_is_refused_and_ends_in_peace(forks):
    _, told = left(
        forks,
        """
work.wait(block=True)
import os, warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    try:
        comm.all_reduce(x)
    except hpccomm.CommunicatorAborted as error:
        assert "forked" in str(error)
    comm.abort()  # touches nothing of NCCL
    try:
        cupy.zeros(1)
    except cupy.cuda.runtime.CUDARuntimeError as error:  # as a call of hpccomm's would
        os._exit(error.status)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
comm.all_reduce(x)
comm.finalize()
""",
    )
    assert "stand-in" not in told, told
