"""How often the ranks of MPI meet to make a communicator of another one, and to end it, as "Concepts" says."""

from conftest import Mpiexec

PROGRAM = """
from mpi4py import MPI
import hpccomm

met = []

def counted(name):
    def method(self, *arguments, **keywords):
        met.append(name)
        made = getattr(MPI.Intracomm, name)(self, *arguments, **keywords)
        return Counted(made) if isinstance(made, MPI.Comm) else made
    return method

# The methods of a communicator of MPI by which ranks meet.
NAMES = "Dup", "Split", "Create_group", "Iallreduce", "Iallgather", "Allreduce", "Barrier", "Ibarrier"
Counted = type("Counted", (MPI.Intracomm,), {name: counted(name) for name in NAMES})
far = 2**31
with hpccomm.new_comm(mpi_comm=Counted(MPI.COMM_WORLD)) as comm:
    for make, members in (
        (lambda: comm.split(comm.rank % 2), [1]), (lambda: comm.split(0 if comm.rank else None), [1]),
        (lambda: comm.dup(), [0, 1]), (lambda: comm.split_ranks([1, 0]), [1, 0]),
        (lambda: comm.split(far if comm.rank else -1, -far), [1]),
    ):
        met.clear()
        made = make()
        told = met[:]
        if made is not None:
            assert made.all_gather_object(comm.rank) in (members, [0]), made
            met.clear()
            made.finalize()
        if comm.rank == 1:
            print(*told, "|", *met, flush=True)
"""


def test_ranks_of_mpi_meet_three_times(shared_job: Mpiexec) -> None:
    job = shared_job(2, "-c", PROGRAM)
    assert job.returncode == 0, job.stderr
    assert job.stdout.splitlines() == [
        *["Iallreduce Split Dup |"] * 2,
        *["Iallreduce Create_group Dup | Iallreduce"] * 2,
        "Iallreduce Create_group Dup |",
    ]
