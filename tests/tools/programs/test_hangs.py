"""``hpccomm record --timeout`` says who waits for whom in programs of plain mpi4py, and ends them.

The programs are erroneous by the MPI standard (sections are those of MPI 3.1), or are the pattern of a public report,
which `HANGS` names. A line that ends with ``# <mark>`` is one that the verdict has to name.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from alone import python
from until import until

Job = Callable[..., subprocess.CompletedProcess[str]]

BEGIN = """
import time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
small, large = np.zeros(4), np.zeros(1 << 20)
"""


class Hang(NamedTuple):
    """A program that hangs, and what is said of it.

    Attributes
    ----------
    truth : str
        Where it stands that the program hangs, and why.
    program : str
        The lines after `BEGIN`.
    said : tuple of str
        Parts of the verdict; ``<mark>`` is the place of a line.
    ranks : int
        Number of ranks.
    """

    truth: str
    program: str
    said: tuple[str, ...]
    ranks: int = 2


HANGS = {
    "send-send": Hang(
        "3.4: a standard send may wait for its receive; example 3.10 relies on buffering",
        """
comm.Send(large, dest=1 - rank, tag=3)  # <send>
comm.Recv(large, source=1 - rank, tag=3)
""",
        (
            "Ranks 0 and 1 wait for each other",
            "in Send(dest=1, tag=3) on 'MPI_COMM_WORLD' (<send>) for rank 1",
            "in Send(dest=0, tag=3) on 'MPI_COMM_WORLD' (<send>) for rank 0",
            "Let one side send while the other receives",
        ),
    ),
    "tags that differ": Hang(
        "3.2.4: a message can be received only if its tag matches",
        """
if rank == 0:
    comm.Send(small, dest=1, tag=1)  # <sent>
    comm.Recv(small, source=1, tag=1)  # <first>
else:
    comm.Recv(small, source=0, tag=2)  # <second>
    comm.Send(small, dest=0, tag=1)
""",
        (
            "in Recv(source=1, tag=1) on 'MPI_COMM_WORLD' (<first>) for rank 1",
            "in Recv(source=0, tag=2) on 'MPI_COMM_WORLD' (<second>) for rank 0",
            "Rank 0 has sent rank 1 a message with tag 1 (<sent>), for which rank 1 has no receive, while tag 2 is",
            "Give a message one tag",
        ),
    ),
    "a collective that one rank does not call": Hang(
        "5.1: all processes of the group call it; underworld3#346: an early return before an allreduce",
        """
def smooth(free):
    if not free:
        return
    comm.Allreduce(MPI.IN_PLACE, small)  # <reduce>
smooth(free=rank != 1)
""",
        (
            "Rank 1 on node",
            "has come to the end of the program without this call",
            "Ranks 0 and 2 have waited in Allreduce #1 on 'MPI_COMM_WORLD' (<smooth(), reduce>)",
        ),
        ranks=3,
    ),
    "a rank outside MPI": Hang(
        "underworld3#630: one rank is elsewhere; it is where the bug is",
        """
def search():
    while True:
        time.sleep(0.01)  # <search>
if rank == 1:
    search()
total = comm.allreduce(rank)  # <reduce>
""",
        (
            "Rank 1 on node",
            "is in <search(), search>, and has not called allreduce #1 on 'MPI_COMM_WORLD'",
            "Rank 0 has waited in it (<reduce>)",
        ),
    ),
    "a rank in native code": Hang(
        "Python's documentation: functions of ctypes.PyDLL keep the interpreter's lock",
        """
import ctypes
if rank == 1:
    ctypes.PyDLL(None).sleep(60)
comm.Barrier()  # <meet>
""",
        (
            "Rank 1 left no dump and gave no answer",
            "or in native code that holds the interpreter",
            "Ranks 0 and 2 have waited in Barrier #1 on 'MPI_COMM_WORLD' (<meet>)",
        ),
        ranks=3,
    ),
    "the order of two communicators": Hang(
        "5.13: collectives of two communicators in different orders",
        """
one, two = comm.Dup(), comm.Dup()
for each in (one, two) if rank == 0 else (two, one):
    each.Barrier()  # <meet>
""",
        (
            "Ranks 0 and 1 wait for each other",
            "in Barrier #1 on 'dup of MPI_COMM_WORLD' (<meet>) for rank 1",
            "in Barrier #1 on 'dup of MPI_COMM_WORLD, 2' (<meet>) for rank 0",
            "calls of several communicators in one order",
        ),
    ),
    "receive from oneself": Hang(
        "3.2.4: source and destination may be one, and blocking calls may then deadlock; mpiPyMC#2",
        """
if rank == 1:
    comm.Recv(small, source=rank, tag=1)  # <own>
""",
        (
            "Rank 1 waits for itself",
            "in Recv(source=1, tag=1) on 'MPI_COMM_WORLD' (<own>) for rank 1",
            "begin the send before it receives",
        ),
    ),
    "an exception that is caught elsewhere": Hang(
        "hdf5#118, mpi-pytest#34: on an error one rank goes on to another collective",
        """
def load():
    if rank == 1:
        raise ValueError("bad input")  # <raise>
    comm.Bcast(small, root=0)
try:
    load()
    comm.Barrier()  # <meet>
except ValueError:
    comm.Recv(small, source=0)  # <close>
""",
        (
            "in Barrier #2 on 'MPI_COMM_WORLD' (<meet>) for rank 1",
            "in Recv(source=0, tag=ANY_TAG) on 'MPI_COMM_WORLD' (<close>) for rank 0",
            "Rank 1 is in the handler of an exception (<load(), raise>): ValueError: bad input",
        ),
    ),
    "a request for a message that is never sent": Hang(
        "3.7.3: a wait returns when the operation is complete",
        """
requests = [comm.Irecv(small, source=1 - rank, tag=5)]  # <begin>
if rank == 0:
    requests.append(comm.Isend(small, dest=1, tag=5))
MPI.Request.Waitall(requests)  # <wait>
""",
        (
            "Rank 1 on node",
            "has come to the end of the program without this call",
            "Rank 0 has waited in Irecv(source=1, tag=5) on 'MPI_COMM_WORLD' (<begin>, awaited at <wait>)",
        ),
    ),
    "different collectives": Hang(
        "5.13: all ranks of a communicator make the same collectives in the same order",
        """
if rank == 0:
    comm.Bcast(small, root=0)  # <bcast>
    comm.Barrier()
else:
    comm.Allreduce(MPI.IN_PLACE, small)  # <reduce>
""",
        (
            "the ranks call different things as number 1",
            "rank 0: Bcast(root 0) at <bcast>",
            "Allreduce(op sum) at <reduce>",
        ),
        ranks=3,
    ),
    "one answer too many is expected": Hang(
        "3.2.4: a receive from any source waits for a message",
        """
if rank == 0:
    for _ in range(size):  # it should be size - 1
        comm.recv(source=MPI.ANY_SOURCE, tag=4)  # <answer>
else:
    comm.send("done", dest=0, tag=4)
""",
        (
            "Ranks 1 and 2 on node",
            "have come to the end of the program without this call",
            "Rank 0 has waited in recv(source=ANY_SOURCE, tag=4) on 'MPI_COMM_WORLD' (<answer>)",
            "All 2 such messages that were sent to rank 0 have been received",
        ),
        ranks=3,
    ),
    "an epoch of fences": Hang(
        "11.5.1: a fence is collective over the group of the window",
        """
window = MPI.Win.Create(small, comm=comm)
window.Fence()
if rank == 0:
    window.Fence()  # <fence>
comm.Barrier()  # <meet>
""",
        (
            "in Fence #2 on 'window of MPI_COMM_WORLD' (<fence>) for rank 1",
            "in Barrier #2 on 'MPI_COMM_WORLD' (<meet>) for rank 0",
        ),
    ),
    "an epoch that an origin does not complete": Hang(
        "11.5.2: a wait returns when all origins have called complete",
        """
window = MPI.Win.Create(small, comm=comm)
peer = comm.Get_group().Incl([1 - rank])
if rank == 0:
    window.Post(peer)
    window.Wait()  # <wait>
else:
    window.Start(peer)
    comm.Recv(small, source=0, tag=6)  # <recv>
""",
        (
            "in Wait() on 'window of MPI_COMM_WORLD' (<wait>) for rank 1",
            "in Recv(source=0, tag=6) on 'MPI_COMM_WORLD' (<recv>) for rank 0",
        ),
    ),
    "a file that one rank opens": Hang(
        "13.2.1: opening is collective over the communicator; mpi-master-slave#7",
        """
if rank == 0:
    MPI.File.Open(comm, "data", MPI.MODE_CREATE | MPI.MODE_RDWR)  # <open>
""",
        (
            "has come to the end of the program without this call",
            "Rank 0 has waited in Open #",
            "on 'MPI_COMM_WORLD' (<open>)",
        ),
    ),
    "a collective call on a file": Hang(
        "13.4: such calls are made by all ranks of the file; h5py#965: ranks with nothing to write left it out",
        """
file = MPI.File.Open(comm, "data", MPI.MODE_CREATE | MPI.MODE_RDWR)
if rank == 0:
    file.Set_size(32)  # <size>
comm.Barrier()  # <meet>
""",
        (
            "in Set_size #1 on 'file of MPI_COMM_WORLD' (<size>) for rank 1",
            "on 'MPI_COMM_WORLD' (<meet>) for rank 0",
        ),
    ),
}


def written(folder: Path, program: str) -> Path:
    """Write a program, and return its path."""
    file = folder / "program.py"
    file.write_text(BEGIN + program)
    return file


def placed(said: str, program: str) -> str:
    """Return words with the places of marks: ``<f(), mark>`` is in the function f."""
    lines = (BEGIN + program).split("\n")

    def place(found: re.Match[str]) -> str:
        (number,) = (at for at, line in enumerate(lines, 1) if line.endswith(f"# <{found[2]}>"))
        return f"{found[1] or ''}program.py line {number}"

    return re.sub(r"<(\w+\(\), )?(\w+)>", place, said)


def recorded(file: Path, *flags: object) -> list[str]:
    """Return the arguments of Python that run a program under ``hpccomm record``."""
    return ["-m", "hpccomm", "record", *map(str, flags), "--", sys.executable, str(file)]


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_explained_with_ranks_and_lines_and_ended(
    mpiexec: Job, tmp_path: Path, name: str
) -> None:
    hang = HANGS[name]
    file = written(tmp_path, hang.program)
    done = mpiexec(hang.ranks, *recorded(file, "--timeout", 0.8), cwd=tmp_path)
    assert done.returncode == 3, (done.returncode, done.stderr)
    for each in hang.said:
        assert placed(each, hang.program) in done.stderr, done.stderr
    assert done.stderr.count("waits for longer than 0.8 s") == 1, "one rank speaks for all"
    assert len(list((tmp_path / "hpccomm-dumps").iterdir())) == 1, "and ranks answer once"
    if name == "send-send":  # the dumps say it again
        again = python("-m", "hpccomm", "explain", str(tmp_path / "hpccomm-dumps"))
        assert again.returncode == 1
        assert "Ranks 0 and 1 wait for each other" in again.stdout


LATE = """
import time
import numpy as np
import hpccomm
with hpccomm.new_comm() as comm:
    while comm.rank == 1:
        time.sleep(0.01)
    comm.all_reduce(np.zeros(4))
"""


def test_a_program_of_hpccomm_tells_whom_it_waits_for_and_is_ended(
    mpiexec: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCCOMM_SLOW_CALL", "0.4")
    file = tmp_path / "program.py"
    file.write_text(LATE)
    done = mpiexec(3, *recorded(file, "--timeout", 2), cwd=tmp_path)
    assert done.returncode in (1, 3), "a call that polls can be left, one within the library cannot"
    slow = r"3, 32 bytes\) waits for longer than 0.4 s \(its deadline: 2 s\): rank 1 on node .* is in program.py line 7"
    assert len(re.findall(slow, done.stderr)) == 1, done.stderr  # one rank speaks for both
    assert "its deadline is 2 s. rank 1 on node" in done.stderr, done.stderr


FAILING = """
from mpi4py import MPI

def test_mine():
    if MPI.COMM_WORLD.rank == 0:
        raise ValueError("Test")
    MPI.COMM_WORLD.barrier()
"""


def test_a_hang_of_tests_is_said_though_pytest_keeps_what_tests_print(
    mpiexec: Job, tmp_path: Path
) -> None:
    # mpi-pytest#12: if one rank raises, the others wait, and nothing is shown.
    (tmp_path / "test_mine.py").write_text(FAILING)
    words = recorded(Path("-mpytest"), "--timeout", 1)
    done = mpiexec(2, *words, "-q", "-p", "no:cacheprovider", "test_mine.py", cwd=tmp_path)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert "hpccomm: Rank 0 on node" in done.stderr, done.stderr
    assert "Barrier #1 on 'MPI_COMM_WORLD' (test_mine(), test_mine.py line 7)" in done.stderr


SLOW = """
time.sleep(1.5)
comm.Barrier()
if rank == 0:
    early = comm.Irecv(small, source=1)  # no wait before it is waited for
    time.sleep(1.5)
    early.Wait()
else:
    time.sleep(1.5)
    comm.Send(small, dest=0)
"""


def test_a_program_that_computes_for_long_is_not_ended(mpiexec: Job, tmp_path: Path) -> None:
    file = written(tmp_path, SLOW)
    done = mpiexec(2, *recorded(file, "--timeout", 0.5), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not list(tmp_path.glob("hpccomm-dumps*"))


ASKED = """
from pathlib import Path
if rank == 0:
    comm.Recv(small, source=1, tag=2)  # <recv>
else:
    Path("ready").touch()
    while not Path("go").exists():
        time.sleep(0.01)  # <loop>
    comm.Send(small, dest=0, tag=2)
"""


def test_at_a_signal_ranks_say_where_they_are_and_go_on(launcher: str, tmp_path: Path) -> None:
    file = written(tmp_path, ASKED)
    command = [launcher, "-n", "2", sys.executable, *recorded(file, "-o", "t.h5")]
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        until((tmp_path / "ready").exists)
        time.sleep(0.5)  # a wait counts from some tenths of a second on
        job.send_signal(signal.SIGUSR1)  # mpirun forwards it
        until(lambda: len(list(tmp_path.glob("t.h5.dumps/*/rank_*.json"))) == 2)
        time.sleep(0.5)
        (tmp_path / "go").touch()
        _, said = job.communicate(timeout=30)
    finally:
        job.kill()
    assert job.returncode == 0, said
    loop = placed("is in <loop>, and has not taken part in Recv(source=1, tag=2)", ASKED)
    assert said.count(loop) == 1, said
    assert placed("Rank 0 has waited in it (<recv>)", ASKED) in said, said
