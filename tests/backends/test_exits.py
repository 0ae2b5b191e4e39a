"""The ends of ranks, and their effect on the others: each has a status, and names the rank."""

import re
import signal
import subprocess
import sys
import traceback
from itertools import product
from pathlib import Path
from runpy import run_path

import pytest
from conftest import HEAD, Mpiexec

from hpccomm.runtime.raised import report
from hpccomm.runtime.service import Status, status_of
from hpccomm.tools import main as command
from hpccomm.tools.explain.meanings import TABLE

SHM = Path("/dev/shm")

MOST_LINES = 15
"""Of a job with a single fault, the launcher's own lines among them."""

WAITS = """
comm = hpccomm.new_comm(timeout=20)
comm.all_reduce(np.zeros(10), algorithm=sys.argv[1])  # the first is agreed upon
if comm.rank == 1:
    time.sleep(0.3)  # the others wait by now: nothing but time shows that a rank is in MPI's call
    {}
comm.all_reduce(np.zeros(10), algorithm=sys.argv[1])
"""

LOST = r"rank 1 on node \S+ \(pid \d+\) has come to the end of the program"

THREAD = "threading.Thread(target=time.sleep, args=(60,), name='loader').start()"
LEFT = r"rank 1 exits with status 5 at <string> line 1[01]"
CLOSES_FILES = """try:
        with comm:
            1 / 0
    finally:
        time.sleep(2)  # closes files, as long as the others may wait for it"""

ENDS = {
    # What rank 1 does; what is told; the status of the job where the others' call is native, or a ring.
    "an exception in a block": (
        f"{THREAD}\n    {CLOSES_FILES}",
        "rank 1 raised:\nTraceback(.*\n)*ZeroDivis",
        1,
        1,
    ),
    "sys.exit(5) in a block": ("with comm: sys.exit(5)", LEFT, 5, 5),
    "sys.exit(0) in a block": ("with comm: sys.exit(0)", "PeerLost", 3, 1),
    "a thread and sys.exit(5) in a block": (f"{THREAD}\n    with comm: sys.exit(5)", LEFT, 5, 5),
    "sys.exit(5)": ("sys.exit(5)", LOST, 3, 1),  # Python does not reveal the status
}
"""Other exceptions and exits, in every kind of call, are seeded faults."""
BY_DEFAULT = {
    ("native", "an exception in a block"): "the program's last two seconds",
    ("native", "sys.exit(5) in a block"): "the launcher ends the others",
    ("ring", "a thread and sys.exit(5) in a block"): "a rank that leaves so waits 2 s for others",
}


def check_ended(job: subprocess.CompletedProcess[str], told: str, status: int) -> None:
    # MPICH 5.0.2's launcher may fail itself while it ends a job, and Open MPI 5.0.11's may crash.
    own = 255 if "assert (!closed) failed" in job.stderr else -signal.SIGSEGV
    assert job.returncode in (status, own), job.stderr
    assert re.search(told, job.stderr), job.stderr
    assert len(job.stderr.splitlines()) <= MOST_LINES, job.stderr


CHOSEN = {each: pytest.mark.slow(why) for each, why in BY_DEFAULT.items()}


@pytest.mark.parametrize(
    ("algorithm", "way"),
    [
        pytest.param(*each, marks=CHOSEN.get(each, pytest.mark.thorough))
        for each in product(("native", "ring"), ENDS)
    ],
)
def test_a_rank_that_ends_while_others_wait_is_named(mpiexec, way, algorithm, tmp_path) -> None:
    does, told, native, polled = ENDS[way]
    before = set(SHM.iterdir())
    job = mpiexec(3, "-c", f"{HEAD}{WAITS.format(does)}", algorithm, cwd=tmp_path)
    check_ended(job, told, native if algorithm == "native" else polled)
    assert job.stderr.count("Traceback") <= (1 if "exception" in way else 2)
    assert not [each for each in set(SHM.iterdir()) - before if "hpccomm" in each.name]
    assert not list(tmp_path.glob("core*"))


@pytest.mark.slow("what is under way is given two seconds")
def test_a_rank_that_leaves_what_it_began_or_holds_is_named(mpiexec: Mpiexec) -> None:
    program = """
comm = hpccomm.new_comm(timeout=60)
other = comm.dup()
mutex = other.mutex()
if comm.rank == 1:
    mutex.acquire()
comm.barrier()
work = comm.all_reduce(np.ones(10), algorithm="ring", async_op=True)
if comm.rank != 1:
    for wait in (work.wait, mutex.acquire):
        try:
            wait()
        except hpccomm.PeerLost as error:
            print(error, error.ranks)
"""
    job = mpiexec(3, "-c", HEAD + program)
    begun = "all_reduce #3 at <string> line 12"
    for said in (
        rf"^all_reduce #3 .*: {LOST} without waiting for {begun}.* \(1,\)$",
        rf"^acquire .*: {LOST}.*; rank 1 holds the mutex \(1,\)$",
    ):
        assert len(re.findall(said, job.stdout, re.MULTILINE)) == 2, job.stdout + job.stderr
    assert job.returncode == 0, job.stderr


def test_a_long_end_of_python_after_a_caught_failure_ends_no_job(mpiexec: Mpiexec) -> None:
    """No thread answers in it. PyTorch's takes seconds on a busy node."""
    program = """
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(5)  # longer than the others wait for a rank that does not answer
comm = hpccomm.new_comm()
comm.abort()
if comm.rank == 0:
    slow = Slow()
else:
    time.sleep(1.5)  # comes to its own end when the other is within that
"""
    job = mpiexec(2, "-c", HEAD + program)
    assert job.returncode == 0, job.stderr


@pytest.mark.slow("two deadlines in a row")
def test_ranks_that_do_not_end_after_a_caught_failure_end_the_job(mpiexec: Mpiexec) -> None:
    program = """
import ctypes
comm = hpccomm.new_comm(timeout=20)
comm.barrier(algorithm="dissemination")
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
elif comm.rank == 2:
    ctypes.PyDLL(None).pause()  # holds the interpreter
try:
    comm.barrier(algorithm="dissemination", timeout=1)
except hpccomm.CommunicationError:
    print("caught")
"""
    job = mpiexec(4, "-c", HEAD + program)
    stopped = r"rank 1 \(pid \d+\) is stopped, by SIGSTOP or a debugger; rank 2 \(pid \d+\) does not answer"
    check_ended(job, rf"ends the job: a communicator has failed.*: {stopped}", Status.ENDED)
    assert job.stdout.count("caught") == 2


SIGNALLED = """
threading.Timer(0.5, os.kill, (os.getpid(), signal.{})).start()
signal.pause() if comm.rank == 1 else comm.all_reduce(np.zeros(10))  # one waits in the library
"""
IN_AN_END = """
@before_end
def last():
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)  # in which the signal would end the job, were it not ignored

if comm.rank == 1:
    raise ZeroDivisionError
signal.pause()
"""
AT_EXIT = """
if comm.rank == 1:
    at_exit(ExitStep.THREADS, lambda: os.kill(os.getpid(), signal.SIGINT))
"""
ENDED_BY = {
    # What all ranks do; what is told; the status; what is not told.
    "SIGTERM": (SIGNALLED.format("SIGTERM"), r"rank \d ends", 143, "Traceback"),
    "SIGINT": (
        *(SIGNALLED.format("SIGINT"), r"rank \d was interrupted at <string> line 9"),
        *(130, "Traceback"),
    ),
    "SIGTERM in an end": (
        *(IN_AN_END, "rank 1 ends the job: ZeroDivisionError was not caught", Status.RAISED),
        "rank 1 ends: it was sent SIGTERM",
    ),
    "SIGINT at the exit": (
        *(AT_EXIT, "rank 1 was interrupted at its exit", Status.INTERRUPTED, "Traceback"),
    ),
    "finalisation": (
        "signal.pause() if comm.rank == 1 else None",
        r"rank 0 has waited for 5 s in MPI_Finalize: rank 1 \(pid \d+\) is at <string> line 8",
        *(Status.ENDED, "Traceback"),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ENDED_BY)
def test_what_ends_a_job_is_told_in_a_line(mpiexec: Mpiexec, way: str) -> None:
    program = """
from hpccomm.runtime.service import ExitStep, at_exit, before_end
comm = hpccomm.new_comm(timeout=5)
"""
    does, told, status, untold = ENDED_BY[way]
    job = mpiexec(2, "-c", HEAD + program + does.lstrip())
    check_ended(job, told, status)
    assert untold not in job.stderr


def test_what_the_program_handles_ends_nothing(mpiexec: Mpiexec) -> None:
    program = """
import ctypes, _thread
from hpccomm.backends.bootstrap import shutdown

comm = hpccomm.new_comm()
try:
    1 / 0
except ZeroDivisionError:
    sys.excepthook(*sys.exc_info())
_thread.start_new_thread(sys.exit, (5,))
libc = ctypes.CDLL(None)
mutex, until = ctypes.create_string_buffer(64), (ctypes.c_long * 2)()
libc.pthread_mutex_lock(mutex)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    begin = time.monotonic()
    while True:  # a long call of a library, which no signal ends
        until[:] = divmod(time.time_ns() + int((shutdown.HANDLED_SECONDS + 0.6) * 1e9), 10**9)
        libc.pthread_mutex_timedlock(mutex, until)
except KeyboardInterrupt:
    print(f"caught after {time.monotonic() - begin}")
assert time.monotonic() - begin > shutdown.HANDLED_SECONDS
try:
    with comm:
        sys.exit(5)
except SystemExit:
    pass
assert shutdown.known() == 0
"""
    job = mpiexec(2, "-c", HEAD + program)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("caught after ") == 2
    assert job.stderr.count("ZeroDivisionError: division by zero") == 2


@pytest.mark.slow("the deadline of 1 s, and the 3 s that MPI's start may take")
def test_making_a_communicator_has_a_deadline(mpiexec: Mpiexec, tmp_path: Path) -> None:
    """Where a rank is stopped; the seeded faults keep it away by other means."""
    program = """
import os, pathlib, signal, sys, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
if rank == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
import hpccomm
pathlib.Path(sys.argv[1], rank).touch()
while len(os.listdir(sys.argv[1])) < 2:  # else one may give up before the other has started
    time.sleep(0.01)
hpccomm.new_comm(timeout=1)
"""
    job = mpiexec(3, "-c", program, tmp_path)
    check_ended(job, "Rank 1 has not come to new_comm, or ended before", Status.ENDED)
    assert "its deadline is 1 s" in job.stderr


WAYS_OUT = {
    # Python's library reference, sys.exit: None is 0, an integer its last byte, "any other object" is 1.
    "sys.exit(256 + 7)": 7,
    "raise SystemExit(True)": 1,
    "exit(7)": 7,
    "raise type('Own', (SystemExit,), {})(7)": 7,
    "sys.exit('a word')": 1,
    "raise SystemExit": 0,
}


def test_an_exit_that_leaves_the_block_has_the_status_of_python() -> None:
    for way, status in WAYS_OUT.items():
        with pytest.raises(SystemExit) as raised:
            exec(way, {"sys": sys})
        assert status_of(raised.value) == status, way


THROUGH_NUMPY = """
import numpy as np

def deep(n):
    return 1 / 0 if n == 0 else deeper(n)

def deeper(n):
    return deep(n - 1)
def main():
    np.apply_along_axis(lambda row: deep(100), 0, np.ones((2, 2)))

main()
"""


def test_a_traceback_has_the_lines_of_the_program_alone(tmp_path: Path) -> None:
    """NumPy calls the program back: its frames, installed beside it, are between those of the program."""
    file = tmp_path / "program.py"
    file.write_text(THROUGH_NUMPY)
    with pytest.raises(ZeroDivisionError) as raised:
        run_path(str(file))
    whole = traceback.extract_tb(raised.value.__traceback__)
    lines = report(raised.value)
    assert any("-packages" in each.filename for each in whole)
    assert not any("-packages" in line for line in lines)
    assert lines[-2:] == [
        "    return 1 / 0 if n == 0 else deeper(n)",
        "ZeroDivisionError: division by zero",
    ]
    assert any("in main" in line for line in lines)
    assert any("in <lambda>" in line for line in lines)
    assert len(lines) < 30


def test_the_documentation_lists_the_statuses() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/failures.rst").read_text()
    section = page[page.index("Statuses\n---") : page.index("What is installed\n---")]
    listed = [int(number) for number in re.findall(r"^   \* - (\d+)$", section, re.MULTILINE)]
    assert listed == sorted(Status)
    # Of the command's help, without the signal that a scheduler sends.
    helped = [int(number) for number in re.findall(r"^  (\d+) ", command.__doc__, re.MULTILINE)]
    assert helped == [each for each in listed if each != Status.TERMINATED]
    told = {each.name for each in TABLE}
    assert {f"status {int(each)}" for each in Status if each != Status.DONE} <= told
