"""What communicators are made from, and how often ranks meet for it, as "Concepts" and the page of `new_comm` say."""

import os
import signal
from queue import SimpleQueue
from threading import Timer
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from one_size import by_default_on

import hpccomm
from hpccomm import Communicator

MET: list[str] = []


def counted(name: str) -> Any:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        MET.append(name)
        made = getattr(MPI.Intracomm, name)(self, *arguments, **keywords)
        return Counted(made) if isinstance(made, MPI.Comm) else made

    return method


# The methods of a communicator of MPI by which ranks meet.
NAMES = [
    "Dup",
    "Split",
    "Create_group",
    "Iallreduce",
    "Iallgather",
    "Allreduce",
    "Barrier",
    "Ibarrier",
]
Counted: Any = type("Counted", (MPI.Intracomm,), {name: counted(name) for name in NAMES})
SPLIT, GROUP, FAR = "Iallreduce Split Dup", "Iallreduce Create_group Dup", 2**31
MADE = [
    # How; the ranks that rank 1 has in it, and by what that rank meets others to make it, and to end it.
    (lambda comm: comm.split(comm.rank % 2), [1], SPLIT, ""),
    (lambda comm: comm.split(0 if comm.rank else None), [1], SPLIT, ""),
    (lambda comm: comm.dup(), [0, 1], GROUP, "Iallreduce"),
    (lambda comm: comm.split_ranks([1, 0]), [1, 0], GROUP, "Iallreduce"),
    (lambda comm: comm.split(FAR if comm.rank else -1, -FAR), [1], GROUP, ""),
]


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
def test_ranks_of_mpi_meet_three_times(mpi_comm: MPI.Intracomm) -> None:
    if mpi_comm.size > 2:
        pytest.skip("the groups are of two ranks")
    with hpccomm.new_comm(mpi_comm=Counted(mpi_comm)) as comm:
        for make, members, before, after in MADE:
            MET.clear()
            made = make(comm)
            told = " ".join(MET)
            if made is not None:
                assert made.all_gather_object(comm.rank) in (members, [0]), made
                MET.clear()
                made.finalize()
            assert comm.rank == 0 or (told, " ".join(MET)) == (before, after)


@by_default_on(3)
@pytest.mark.mpi(min_size=3)
def test_settings_that_differ_are_refused_on_every_rank(mpi_comm: MPI.Intracomm) -> None:
    rank, version = mpi_comm.rank, hpccomm.__version__

    def refused(says: str, **keywords: Any) -> None:
        with pytest.raises(hpccomm.ConfigurationError, match=says):
            hpccomm.new_comm(**keywords)

    os.environ["HPCCOMM_TIMEOUT"] = str(10 + (rank == 2))
    refused("timeout is 10.0 on rank 0 and 11.0 on rank 2")
    del os.environ["HPCCOMM_TIMEOUT"]
    refused("backend is 'auto' on rank 0 and 'mpi' on rank 1", backend="mpi" if rank else "auto")
    hpccomm.__version__ += "" if rank else "a1"
    refused(f"hpccomm is '{version}a1' on rank 0 and '{version}' on rank 1")
    hpccomm.__version__ = version
    with hpccomm.new_comm(options=hpccomm.CommOptions(slow_call=rank + 1)) as comm:
        assert comm.size == mpi_comm.size


def test_shrink_is_refused_where_no_rank_can_be_lost(comm: Communicator) -> None:
    with pytest.raises(hpccomm.UsageError, match="start the job with mpiexec --with-ft ulfm"):
        comm.shrink()


@by_default_on(3)
@pytest.mark.mpi(min_size=3)
def test_communicators_of_mpi_are_taken_if_they_are_of_one_group(mpi_comm: MPI.Intracomm) -> None:
    part = mpi_comm.Split(mpi_comm.rank % 2, -mpi_comm.rank)
    for given in (part, MPI.COMM_SELF, mpi_comm):
        with hpccomm.new_comm(mpi_comm=given) as comm:
            assert (comm.rank, comm.size) == (given.rank, given.size)
            assert comm.mpi_comm is given
            assert (comm.all_reduce(np.ones(2)) == given.size).all()
    # Of the parts, whose order is the reverse of the world's.
    leaders = [max(range(parity, mpi_comm.size, 2)) for parity in (0, 1)]
    between = part.Create_intercomm(0, mpi_comm, leaders[1 - mpi_comm.rank % 2])
    wrong: Any
    for wrong in (between, MPI.COMM_NULL, 3, "world"):
        fits = "mpi_comm.Merge" if wrong is between else "MPI.COMM_WORLD"
        words = f"give an mpi4py intracommunicator, such as {fits}"
        with pytest.raises(hpccomm.UsageError, match=words):
            hpccomm.new_comm(mpi_comm=wrong)
    between.Free()
    part.Free()


def test_asynchronous_work_is_done_by_itself(comm: Communicator) -> None:
    x, ended = np.full(1 << 20, 1.0, np.float32), SimpleQueue[Any]()
    comm.register_post_hook(ended.put)
    work = comm.all_reduce(x, async_op=True)
    assert ended.get(timeout=60).operation == "all_reduce"  # the program is outside of the library
    assert work.done()
    assert (x == comm.size).all()


WAYS = [
    lambda comm, x: comm.all_reduce(x, async_op=True).wait(),
    lambda comm, x: comm.all_reduce(x, algorithm="ring"),
    lambda comm, x: comm.recv(x, 1) if comm.rank == 0 else comm.send(x, 0),
    lambda comm, x: comm.all_gather_object(comm.rank),
]


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", WAYS)
def test_a_handler_of_the_program_runs_while_a_call_polls(
    mpi_comm: MPI.Intracomm, way: Any
) -> None:
    if mpi_comm.size > 2:
        pytest.skip("one rank waits for one other")
    with hpccomm.new_comm(mpi_comm=mpi_comm, timeout=40) as comm, comm.dup() as other:
        x = np.zeros(10)
        comm.all_reduce(x, algorithm="ring")
        if comm.rank == 0:
            # The other rank comes only when the handler has run.
            before = signal.signal(signal.SIGUSR2, lambda *_: other.send(np.ones(1), 1))
            Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR2)).start()
            way(comm, x)
            signal.signal(signal.SIGUSR2, before)
        else:
            assert other.recv(np.zeros(1), 0)[0] == 1
            way(comm, x)


def test_an_error_of_mpi_while_one_is_made_names_the_rank(mpi_comm: MPI.Intracomm) -> None:
    def fail(_: Any) -> None:
        raise MPI.Exception(MPI.ERR_NO_MEM)

    failing = type("Failing", (MPI.Intracomm,), {"Dup": fail})(mpi_comm)
    told = rf"failed in rank {mpi_comm.rank} while it made a communicator: MPI_ERR_NO_MEM"
    with pytest.raises(hpccomm.CommunicationError, match=told):
        hpccomm.new_comm("mpi", mpi_comm=failing)
