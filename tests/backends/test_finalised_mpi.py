"""The program finalises MPI while communicators are open: they say so, where the library would end the process.

MPI 4.1, section 11.2.3: after MPI_FINALIZE nearly no call of MPI is allowed.
"""

from conftest import HEAD, Mpiexec

PROGRAM = """
import pytest
from mpi4py import MPI

comm = hpccomm.new_comm(timeout=20)
x, peer = np.ones(4), 1 - comm.rank
plan = comm.plan("all_reduce", x)
plan()
busy, done = comm.dup(), comm.dup()
work = busy.recv(np.empty(4), peer, async_op=True)
over = done.all_reduce(np.ones(3), async_op=True)
assert (over.wait() == 2).all()
MPI.Finalize()

for call in (
    lambda: comm.all_reduce(x),
    plan,
    comm.barrier,
    lambda: comm.send(x, peer),
    lambda: comm.send_object("text", peer),
    lambda: comm.all_reduce(x, async_op=True),
    lambda: comm.split(0),
    lambda: comm.window(x),
    lambda: comm.node_comm.barrier(),
    lambda: done.all_gather(x),
):
    with pytest.raises(hpccomm.UsageError, match="the program has finalised MPI"):
        call()
for call in work.wait, busy.barrier:
    with pytest.raises(hpccomm.CommunicatorAborted, match="under way when MPI was finalised"):
        call()
with pytest.raises(hpccomm.BackendUnavailable, match="MPI is already finalised"):
    hpccomm.new_comm()
assert over.wait() is not None and over.done()
for each in comm, busy, done, comm.node_comm:
    each.finalize()  # local work only
    each.abort()
with hpccomm.new_comm("loopback") as alone:  # threads have no use of MPI
    alone.barrier()
print("all is said")
"""


def test_a_call_after_mpi_s_end_is_refused_by_hpccomm(mpiexec: Mpiexec) -> None:
    job = mpiexec(2, "-c", HEAD + PROGRAM)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("all is said") == 2
