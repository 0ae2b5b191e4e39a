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

GRAPH_SECONDS = 0.05
"""How long hpccomm may wait for graphs here, that NCCL would wait for."""


@pytest.fixture(scope="module")
def forks():
    made = Forks(*IMPORTS)
    yield made
    made.end()


# Finalize.


@pytest.mark.processes
@pytest.mark.parametrize("end", [Communicator.finalize, Communicator.abort])
@pytest.mark.parametrize("dropped", [False, True])
def test_trap_the_end_does_not_wait_for_graphs_as_nccl_does(dropped, end, caplog, monkeypatch):
    monkeypatch.setattr(streams, "GRAPH_SECONDS", GRAPH_SECONDS)

    def main(comm):
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
        communicators = comm._core.lanes.device.backend._communicators
        end(comm)
        assert communicators._over() == dropped
        graph.clear()
        until(communicators._over)

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


def left(forks, program, status=0, **environment):
    """Run a program to its end; return its lines, and what it says of errors."""
    done = forks.run(PROGRAM + program, env=environment)
    assert done.returncode == status, done.stderr
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
        pytest.param("raise SystemExit(3)", marks=pytest.mark.thorough),
        pytest.param("comm.abort()", marks=pytest.mark.thorough),
        "del comm, x, work",
    ],
)
def test_trap_leaving_without_finalize_frees_what_it_can_and_ends(forks, ending):
    status = 3 if "SystemExit(3)" in ending else 0
    _, told = left(forks, ending, status, STANDIN_DELAY="0.01")
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
from time import perf_counter
streams.DRAIN_SECONDS, streams.ABORT_SECONDS = 0.7, 0.5
drain = streams.StreamIssuer._drain
def timed(end, timeout, gate):
    begin = perf_counter()
    try:
        drain(end, timeout, gate)
    finally:
        print("waited", timeout, perf_counter() - begin)
streams.StreamIssuer._drain = timed
for each in comm, another:
    backend = each._core.lanes.device.backend
    def abort(seconds, inside, abort=backend.abort):
        print("may abort for", seconds)
        abort(seconds, inside)
    backend.abort = abort
never = threading.Event()
cupy.cuda.get_current_stream().launch_host_func(lambda _: never.wait(), None)
comm.all_reduce(x)
another.all_reduce(x)
"""
    lines, told = left(forks, TWO + stuck + NO_THREADS)
    assert lines.count("aborted") == 2
    assert "Traceback" not in told, told
    waits = [tuple(map(float, line.split()[1:])) for line in lines if line.startswith("waited")]
    (first, first_took), (second, second_took) = waits
    assert 0 <= first <= 0.2
    assert first <= first_took
    assert second == 0, "the first has had all that there is to wait"
    assert second_took >= 0
    aborts = [float(line.split()[-1]) for line in lines if line.startswith("may abort")]
    assert len(aborts) == 2
    assert 0 <= aborts[1] <= aborts[0] <= 0.7, "of one budget"


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
ends = [each._core.lanes.device.issuer for each in (comm, third, another)]
class InOrder(set):
    def __iter__(self):
        return iter(sorted(set.__iter__(self), key=ends.index))
streams._everyone = InOrder(streams._everyone)
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
    left(
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
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
comm.all_reduce(x)
comm.finalize()
""",
    )
