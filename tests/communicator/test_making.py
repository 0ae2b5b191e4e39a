"""How often the ranks of MPI meet to make a communicator of another one, and to end it."""

from conftest import Mpiexec

PROGRAM = """
from mpi4py import MPI
import hpccomm
from hpccomm.backends.control import Control

met = []

class Counted(MPI.Intracomm):  # the methods of its kind by which ranks meet

    def Dup(self, info=None):
        met.append("Dup")
        return Counted(super().Dup())

    def Split(self, color=0, key=0):
        met.append("Split")
        return Counted(super().Split(color, key))

    def Create_group(self, group, tag=0):
        met.append("Create_group")
        return Counted(super().Create_group(group, tag))

    def Iallreduce(self, *buffers):
        met.append("Iallreduce")
        return super().Iallreduce(*buffers)

def counted(self, payload):
    met.append("all_gather")
    return steps(self, payload)

steps, Control.all_gather_steps = Control.all_gather_steps, counted
far = 2**31
with hpccomm.new_comm(mpi_comm=Counted(MPI.COMM_WORLD)) as comm:
    for make in (
        lambda: comm.split(comm.rank % 2), lambda: comm.split(0 if comm.rank else None), lambda: comm.dup(),
        lambda: comm.split_ranks([1, 0]), lambda: comm.split(far if comm.rank else -1, -far),
    ):
        met.clear()
        made = make()
        told = met[:]
        met.clear()
        if made is not None:
            assert made.all_gather_object(comm.rank) == [*made._core.backend.members], made
            met.clear()
            made.finalize()
        if comm.rank == 1:
            print(*told, "|", *(each for each in met if each != "all_gather"), flush=True)
Control.all_gather_steps = steps
"""


def test_ranks_of_mpi_meet_three_times(shared_job: Mpiexec) -> None:
    job = shared_job(2, "-c", PROGRAM)
    assert job.returncode == 0, job.stderr
    assert job.stdout.splitlines() == [
        "Iallreduce Split Dup |",
        "Iallreduce Split Dup |",
        "Iallreduce Create_group Dup | Iallreduce",
        "Iallreduce Create_group Dup | Iallreduce",
        "Iallreduce all_gather Create_group Dup |",
    ]
