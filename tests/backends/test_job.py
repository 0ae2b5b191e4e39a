"""Whole jobs under a real launcher: how they begin, and how they end when something goes wrong."""

import re
import subprocess
from pathlib import Path

import pytest
from alone import python
from conftest import HEAD, Mpiexec, launch_environment


def passes(job: subprocess.CompletedProcess[str]) -> None:
    assert job.returncode == 0, job.stderr
    assert "Traceback" not in job.stderr, job.stderr


# Faults that are told wherever the others wait: `test_exits` has every way to leave.

RAISES = """
def fail():
    time.sleep(0.3)  # the others wait by now: nothing but time shows that a rank is in MPI's call
    raise ZeroDivisionError
"""


@pytest.mark.thorough
@pytest.mark.parametrize("stream", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
@pytest.mark.parametrize("waits", ["native", "watchdog"])
def test_a_job_ends_also_where_nothing_can_be_told(mpiexec, stream: str, waits: str) -> None:
    program = f"""
{RAISES}
comm = hpccomm.new_comm(timeout=1.0)
{stream}
if comm.rank == 1:
    signal.pause() if {waits == "watchdog"} else fail()
comm.all_reduce(np.zeros(10))
"""
    job = mpiexec(2, "-c", HEAD + program)
    assert job.returncode not in (0, 124, 137)


CALL = r"all_reduce #2 \(call 2 of communicator 'training', rank 0 of 2, 80 bytes\)"


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("fail()", 1, r"hpccomm: rank 1 raised:\nTraceback"),
        (
            *("signal.pause()", 3),
            rf"{CALL} was not done after .*; its deadline is 0\.5 s\. rank 1 .* has not called all_reduce #2",
        ),
    ],
)
def test_a_fault_is_reported_without_the_package_in_reach(mpiexec, fault, status, said) -> None:
    program = f"""
{RAISES}
class OutOfReach:
    def find_spec(self, name, path, target=None):
        if name.startswith("hpccomm"):
            raise ModuleNotFoundError(name)

def blocked_here(comm):
    comm.all_reduce(np.zeros(10), timeout=0.5)

comm = hpccomm.new_comm(name="training")
comm.all_reduce(np.zeros(10))  # the first is agreed on before the library is entered
sys.meta_path.insert(0, OutOfReach())
{fault} if comm.rank == 1 else blocked_here(comm)
"""
    job = mpiexec(2, "-c", HEAD + program)
    assert job.returncode == status, job.stderr
    assert re.search(said, job.stderr), job.stderr
    assert status == 1 or "blocked_here()" in job.stderr, job.stderr
    assert "ModuleNotFoundError" not in job.stderr


def test_who_opts_out_keeps_python_s_own_way(mpiexec: Mpiexec) -> None:
    program = "import hpccomm; hpccomm.new_comm(); raise ZeroDivisionError"
    job = mpiexec(2, "-c", program, env={"HPCCOMM_ABORT_ON_EXCEPTION": "0"})
    assert job.returncode == 1
    assert "ZeroDivisionError" in job.stderr
    assert "ends the job" not in job.stderr


def test_an_exit_on_one_rank_is_told_under_mpi4py_s_runner(mpiexec: Mpiexec) -> None:
    program = """
comm = hpccomm.new_comm()
work = comm.recv(np.zeros(3), 1 - comm.rank, async_op=True)
sys.exit(3) if comm.rank == 1 else comm.all_reduce(np.zeros(10))
"""
    job = mpiexec(2, "-m", "mpi4py", "-c", HEAD + program)
    assert job.returncode in (1, 3)  # whether the call can be left
    assert re.search(r"rank 1 on node .* has come to the end of the program", job.stderr)


# Deadlines.


ON_TIMEOUT = {
    # What is printed, and the status.
    "raise": ("the call is blocked in the library and cannot be left, so the job ends now", 3),
    "abort": ("HPCCOMM_ON_TIMEOUT or on_timeout is 'abort', so the job ends now", 3),
    "report": ("the call waits on", 0),
}


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["native", "ring", "async"])
@pytest.mark.parametrize("setting", ON_TIMEOUT)
def test_a_deadline_does_what_the_setting_says(mpiexec: Mpiexec, setting: str, call: str) -> None:
    program = f"""
comm = hpccomm.new_comm(timeout=20)
x = np.ones(10)
how = {{"async_op": True}} if {call!r} == "async" else {{"algorithm": {call!r}}}
work = comm.all_reduce(np.ones(10), **how)  # the ranks agree on it: that can be left
{call!r} == "async" and work.wait()
if comm.rank == 0:
    comm.set_timeout(0.5)
    told = comm.explain("all_reduce", x, **how).at_deadline
    assert told == {{"report": "waits on", "abort": "ends the job"}}.get({setting!r}, told), told
else:
    time.sleep(2)  # beyond the deadline: a rank that is told of it by a message would have come
try:
    work = comm.all_reduce(x, **how)
    x = work.wait() if {call!r} == "async" else x
except (hpccomm.CollectiveTimeout, hpccomm.CommunicatorAborted) as error:
    # Rank 1 may be so late that it finds the communicator failed.
    assert comm.rank == 1 or type(error) is hpccomm.CollectiveTimeout
    assert {setting!r} == "raise" and {call!r} != "native"
    raise SystemExit(9)
assert (x == 2).all()
comm.finalize()
"""
    job = mpiexec(2, "-c", HEAD + program, env={"HPCCOMM_ON_TIMEOUT": setting}, timeout=40)
    words, status = ON_TIMEOUT[setting]
    if setting == "raise" and call != "native":
        assert job.returncode == 9, job.stderr
    else:
        assert job.returncode == status, job.stderr
        assert job.stderr.count(words) == 1, job.stderr
        assert job.stderr.count("has not called all_reduce") == 1, job.stderr


@pytest.mark.parametrize(
    "leaves",
    [
        "comm = hpccomm.new_comm()\nleave(comm)",
        "from mpi4py import MPI\nwith hpccomm.new_comm() as comm:\n    leave(comm)",
    ],
)
def test_after_a_caught_timeout_the_process_leaves_with_its_own_status(mpiexec, leaves) -> None:
    program = f"""
def leave(comm):
    if comm.rank == 1:
        signal.pause()
    try:
        comm.barrier(timeout=0.1)
    except hpccomm.CollectiveTimeout:
        comm.abort()
        print("caught", flush=True)
        raise SystemExit(7)

{leaves}
"""
    job = mpiexec(2, "-c", HEAD + program)
    assert (job.returncode, job.stdout) == (7, "caught\n"), job.stderr
    assert "Timeout" not in job.stderr


def test_what_is_under_way_at_exit_holds_nobody_up_and_keeps_its_memory(mpiexec: Mpiexec) -> None:
    program = """
comm = hpccomm.new_comm()
works = [comm.all_reduce(np.ones(1 << 20), async_op=True), comm.barrier(async_op=True)]
works.append(comm.recv(np.zeros(3), 1 - comm.rank, async_op=True))  # never comes
"""
    passes(mpiexec(2, "-c", HEAD + program))


# Threads.


@pytest.mark.parametrize(
    "level", ["funneled", pytest.param("serialized", marks=pytest.mark.thorough)]
)
def test_an_mpi_that_was_started_lower(mpiexec: Mpiexec, level: str) -> None:
    program = """
from mpi4py import MPI
if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
    print("MPI gives more")
with hpccomm.new_comm() as comm:
    x, y = np.full(100000, 1.0), np.zeros(3)
    works = [
        comm.all_reduce(x, async_op=True),
        comm.recv(y, 1 - comm.rank, async_op=True),
        comm.send(np.ones(3), 1 - comm.rank, async_op=True),
    ]
    comm.barrier()
    for work in works:
        work.wait()
    assert (x == comm.size).all() and (y == 1).all()
    late = comm.all_reduce(x, async_op=True)
    assert (comm.all_reduce(np.ones(2)) == comm.size).all() and late.done()
"""
    start = f"import mpi4py; mpi4py.rc.thread_level = {level!r}"
    job = mpiexec(2, "-c", start + HEAD + program, env={"HPCCOMM_DEBUG": "1"})
    passes(job)
    if "MPI gives more" not in job.stdout:
        assert f"MPI was started with MPI_THREAD_{level.upper()}" in job.stderr
        assert "asynchronous calls go on only in wait() and done()" in job.stderr


@pytest.mark.slow("a job starts another one")
def test_a_communicator_of_two_jobs(mpiexec: Mpiexec, open_mpi: bool, tmp_path: Path) -> None:
    """The worlds of its ranks differ in size: one rank, and the two that it has started."""
    # MPICH's launcher has one name for both jobs.
    environment = {} if open_mpi else {"HPCCOMM_LAUNCH_CHECK": "0"}
    program = tmp_path / "program.py"
    program.write_text("""
import sys
from mpi4py import MPI
import hpccomm

between = MPI.Comm.Get_parent()
child = between != MPI.COMM_NULL
if not child:
    between = MPI.COMM_SELF.Spawn(sys.executable, [__file__], maxprocs=2)
merged = between.Merge(child)
with hpccomm.new_comm(mpi_comm=merged, timeout=30) as comm:
    total, ranks = comm.all_reduce(MPI.COMM_WORLD.size), comm.all_gather_object(comm.rank)
    pair = comm.split(comm.rank % 2)
    assert pair.all_reduce(1) == pair.size == 2 - comm.rank % 2
if not child:
    print(total, ranks)
merged.Free()
between.Disconnect()
""")
    job = mpiexec(1, program, env=environment)
    passes(job)
    assert "5 [0, 1, 2]" in job.stdout


LAUNCHED = {
    "Open MPI's mpiexec": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
    "a PMI launcher": {"PMI_RANK": "0", "PMI_SIZE": "2"},
    "Slurm's srun": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
}


def test_jobs_of_one_rank_each_are_refused() -> None:
    program = rf"""
import pytest
for launcher, variables in {LAUNCHED}.items():
    os.environ |= variables
    refused = launcher + r".* started 2 processes, but the MPI library in use \(.*MPI.*HPCCOMM_LAUNCH_CHECK=0"
    with pytest.raises(hpccomm.LaunchError, match=refused):
        hpccomm.new_comm()
    for name in variables:
        del os.environ[name]
os.environ |= {LAUNCHED["a PMI launcher"]} | {{"HPCCOMM_LAUNCH_CHECK": "0"}}
with hpccomm.new_comm() as comm:
    assert (comm.rank, comm.size, comm.backends["host"]) == (0, 1, "mpi"), comm
    assert (comm.all_reduce(np.ones(2)) == 1).all()
"""
    passes(python("-c", HEAD + program, env=launch_environment()))


NO_MPI = {
    "no mpi4py": ("import sys; sys.modules['mpi4py'] = None", {}, "pip install "),
    "no MPI library": ("", {"MPI4PY_LIBMPI": "/no/such.so"}, "unset MPI4PY_LIBMPI=/no/such.so"),
}


@pytest.mark.parametrize("lacks", NO_MPI)
def test_without_mpi(lacks: str) -> None:
    blocked, variables, remedy = NO_MPI[lacks]
    program = f"""
with hpccomm.new_comm() as comm:
    assert (comm.size, comm.backends["host"]) == (1, "loopback")
    assert (comm.all_reduce(np.ones(2)) == 1).all()

import pytest
for backend in "mpi", "auto":  # with a launcher's variables not two ranks that know nothing of each other
    with pytest.raises(hpccomm.BackendUnavailable, match="{remedy}"):
        hpccomm.new_comm(backend)
    os.environ |= {LAUNCHED["a PMI launcher"]}
"""
    job = python("-c", blocked + HEAD + program, env=launch_environment() | variables)
    passes(job)
    assert job.stderr.count("running as a single rank without MPI") == 1
