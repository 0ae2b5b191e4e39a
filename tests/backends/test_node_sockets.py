"""Questions between processes of a node: answers, and known facts of silent processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import Mpiexec

from hpccomm.backends.bootstrap import node_sockets
from hpccomm.backends.bootstrap.launch import job_key, job_name
from hpccomm.backends.bootstrap.node_sockets import Address, ask, present, serve
from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, STOPPED

LARGE = 2_000_000
SERVES = f"""
import ctypes, os, sys
from hpccomm.backends.bootstrap.node_sockets import refuse, serve
from hpccomm.runtime.answering import register

class Rank:
    def answer(self, question):
        return {{"rank": question["rank"], "asked": question["what"], "large": "x" * {LARGE}}}

ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).pause)  # it ends slowly, where mpi4py finalises MPI
rank = Rank()
register("a communicator", 3, rank.answer)
assert serve() == serve()
print(serve().name, flush=True)
for line in sys.stdin:
    if line == "exit\\n":
        refuse()
        break
    if line == "fork\\n":
        child = os.fork()
        if not child:
            print(os.getpid(), flush=True)
            ctypes.CDLL(None).pause()
"""
QUESTION = {"comm": "a communicator", "what": "x" * LARGE}
LONG = 30.0
JOB = f"{os.getpid()}@job"
"""A job of this process: another one may run other tests of this file."""


def variables(rank: int) -> dict[str, str]:
    """Return what a launcher tells a rank of that job."""
    ours = "OMPI_COMM_WORLD_"
    return {f"{ours}RANK": str(rank), f"{ours}SIZE": "8", "PMIX_NAMESPACE": JOB}


Start = Callable[[], tuple[Any, dict[int, Address]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that answers as rank 3 of a communicator."""
    started = []

    def popen() -> tuple[Any, dict[int, Address]]:
        process: Any = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVES],
            env=os.environ | variables(rank=5),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        name = process.stdout.readline().strip()
        return process, {3: Address(name, process.pid, "here", node_sockets.network())}

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def test_what_becomes_of_a_question_follows_the_process(start: Start) -> None:
    process, address = start()
    (answer,) = ask(address, QUESTION, LONG).values()
    assert answer.state == ANSWERED
    assert answer.facts["pid"] == process.pid
    assert (answer.facts["rank"], answer.facts["asked"]) == (3, QUESTION["what"])
    assert len(answer.facts["large"]) == LARGE
    stranger = ask(address, {"comm": "another"}, LONG)[3]
    assert (stranger.state, stranger.facts["unknown"]) == (ANSWERED, True)

    known = {"host": "here", "pid": process.pid}
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    # Whoever waited for it would end by the limit of a test.
    stopped = ask(address, QUESTION, 1000.0)[3]
    assert (stopped.state, stopped.facts) == (STOPPED, known)
    process.send_signal(signal.SIGCONT)
    assert ask(address, QUESTION, LONG)[3].state == ANSWERED
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    dead = ask(address, QUESTION, LONG)[3]  # nobody has reaped it
    assert (dead.state, dead.facts) == (GONE, known)
    process.wait()
    assert ask(address, QUESTION, LONG)[3].state == GONE


def test_one_that_has_come_to_its_end_is_known_as_such(start: Start) -> None:
    process, address = start()
    print("exit", file=process.stdin, flush=True)
    # One question may have been taken before the process refuses any, and is answered no more.
    while not (ending := ask(address, QUESTION, 1.0)[3]).facts.get("ending"):
        pass
    assert ending.state == SILENT


def test_a_forked_child_does_not_answer_for_its_parent(start, monkeypatch) -> None:
    process, address = start()
    for name, value in variables(rank=0).items():
        monkeypatch.setenv(name, value)
    print("fork", file=process.stdin, flush=True)
    child = int(process.stdout.readline())
    try:
        assert present()[5].name == address[3].name
        assert ask(address, QUESTION, LONG)[3].state == ANSWERED
        process.kill()
        process.wait()
        assert ask(address, QUESTION, LONG)[3].state == GONE
        assert present() == {}
    finally:
        os.kill(child, signal.SIGKILL)


@contextmanager
def as_nobody(part: Callable[[], str]) -> Iterator[str]:
    """Give what the function returns in a child that is another user, and takes itself for us."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            mine = os.geteuid()
            os.setuid(65534)
            os.geteuid = lambda: mine
            os.write(writer, part().encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    try:
        yield said
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_another_user_is_neither_answered_nor_believed() -> None:
    own = serve()
    assert ask({0: own}, {"comm": ""}, LONG)[0].state == ANSWERED
    with as_nobody(lambda: ask({0: own}, {"comm": ""}, LONG)[0].state) as state:
        assert state == SILENT
    with as_nobody(lambda: serve().name) as served:
        impostor = Address(served, os.getpid(), "here", own.network)
        assert ask({0: impostor}, {"comm": ""}, LONG)[0].state == SILENT


def test_a_job_is_named_by_its_launcher() -> None:
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7"}
    assert job_key(slurm | {"SLURM_STEP_ID": "0"}) == "slurm-7.0"
    assert job_key(ranks | {"PMIX_NAMESPACE": "job.1"}) == "job.1"
    assert job_name(ranks | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == job_key(ranks)
    assert not job_name(ranks)  # may be of several nodes, and no launcher names it
    odd = job_key(ranks | {"PMIX_NAMESPACE": "prterun-host-17@1"})
    assert odd != job_key(ranks | {"PMIX_NAMESPACE": "prterun-host-17@2"})
    assert odd.isalnum()
    assert job_key({}) == f"alone-{os.getpid()}"


# What a launcher, a container or a wrapper may leave of the variables: all of rank 1's, none of rank 0's,
# and of rank 2's those of a step that the job is in.
SEES = """
import os

rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
for name in [*os.environ]:
    if rank != 1 and name.startswith(("OMPI_COMM_WORLD_", "MPI_LOCAL")):
        del os.environ[name]
if rank == 2:
    os.environ |= {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "9"}

import hpccomm
from hpccomm.backends.bootstrap.launch import job_key, job_name
from hpccomm.backends.bootstrap.node_sockets import present
from hpccomm.runtime.dump import process

with hpccomm.new_comm(timeout=20) as comm:
    here = sorted(present())
    seen = comm.all_gather_object((job_key(), job_name(), process.job))
    own = comm.all_gather_object((process.rank, process.size, here))
    assert len(set(seen)) == 1, seen
    assert own == [(rank, 3, [0, 1, 2]) for rank in range(3)], own
    with hpccomm.new_comm(mpi_comm=comm.mpi_comm) as second:
        assert second.all_gather_object(job_key()) == [seen[0][0]] * 3
"""


def test_ranks_that_see_different_variables_are_one_job(mpiexec: Mpiexec) -> None:
    job = mpiexec(3, "-c", SEES)
    assert job.returncode == 0, job.stderr
