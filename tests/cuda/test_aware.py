"""A CUDA-aware MPI is given device memory: when, in which order, and when not.

On the stand-in device memory is the host's, so that any MPI is CUDA-aware.
"""

import cupy
import numpy as np
import pytest

import hpccomm
from hpccomm.calls import cuda_aware
from hpccomm.errors import CommunicatorAborted, RankMismatch
from hpccomm.memory.cuda import memory

pytestmark = pytest.mark.mpi


def opened(monkeypatch, mpi_comm, first=4):
    """Return a communicator where the user says that MPI is CUDA-aware, on devices of its own."""
    monkeypatch.setenv("HPCCOMM_CUDA_AWARE", "1")
    return hpccomm.new_comm("mpi", mpi_comm=mpi_comm, device=mpi_comm.rank + first)


@pytest.mark.parametrize("way", ["mpi"])
@pytest.mark.mpi(min_size=2)
def test_a_large_registered_host_array_may_be_sent_to_a_device_array(comm) -> None:
    # Its receiver copies it: the host must not do that where it is device memory.
    count = 1 << 19
    if comm.rank == 0:
        x = comm.empty(count, np.uint8)
        x[:] = np.arange(count) % 251
        comm.send(x, 1)
    elif comm.rank == 1:
        with cupy.cuda.Device(comm.device):
            out = cupy.zeros(count, np.uint8)
            comm.recv(out, 0)
            assert np.array_equal(cupy.asnumpy(out), np.arange(count) % 251)


@pytest.mark.standin
def test_trap_nccl_and_cuda_aware_mpi_never_use_one_device_at_once(monkeypatch, mpi_comm) -> None:
    device = mpi_comm.rank + 4  # of the stand-in's eight
    last = mpi_comm.rank == mpi_comm.size - 1
    if last:
        assert memory.claim(device, memory.NCCL) == ""
    try:
        with opened(monkeypatch, mpi_comm) as comm:
            assert comm.device == device
            assert comm.backends["cuda"] == "staged"  # on every rank
            with cupy.cuda.Device(device):
                choice = comm.explain("all_reduce", cupy.zeros(10))
            assert "NCCL" in choice.reason
    finally:
        if last:
            memory.release(device, memory.NCCL)
    with opened(monkeypatch, mpi_comm) as comm, cupy.cuda.Device(device):
        x = cupy.zeros(10)
        assert comm.backends["cuda"] == "mpi"
        assert "HPCCOMM_CUDA_AWARE" in comm.explain("all_reduce", x).reason
        for how in ({"algorithm": "native"}, {"deterministic": True}):
            assert comm.explain("all_reduce", x, **how).path == "staged"
        assert "CUDA-aware MPI" in memory.claim(device, memory.NCCL)
    assert memory.claim(device, memory.NCCL) == ""  # it was let go of
    memory.release(device, memory.NCCL)


@pytest.mark.standin
def test_where_other_bytes_arrive_all_ranks_do_without(monkeypatch, mpi_comm) -> None:
    if mpi_comm.rank == 0:
        # This rank sees what a library leaves that takes the address for the host's; the host's it is here.
        real = cuda_aware._pattern
        seen = []

        def pattern(rank, nbytes):
            seen.append(rank)
            return real(rank, nbytes) if len(seen) % 2 else np.zeros(nbytes, np.uint8)

        # No MPI library here has this fault.
        monkeypatch.setattr(cuda_aware, "_pattern", pattern)
    with opened(monkeypatch, mpi_comm) as comm:
        assert comm.backends["cuda"] == "staged"
        with cupy.cuda.Device(comm.device):
            x = cupy.full(10, 2.0)
            assert "others arrived than were sent" in comm.explain("all_reduce", x).reason
            comm.all_reduce(x)
            assert (cupy.asnumpy(x) == 2.0 * comm.size).all()


@pytest.mark.standin
@pytest.mark.mpi(min_size=2)
def test_a_collective_of_another_size_is_told_long_before_its_deadline(monkeypatch, mpi_comm):
    """MPI's tags of such messages differ by their size: no receive is complete, and waiting ranks ask each other."""
    comm = opened(monkeypatch, mpi_comm, first=8 - mpi_comm.size)  # it fails, and keeps its device
    with cupy.cuda.Device(comm.device):
        comm.all_reduce(cupy.ones(20))
        with pytest.raises(RankMismatch, match="count 24"):
            comm.all_reduce(cupy.ones(20 + 4 * (comm.rank == 0)), timeout=20)
        with pytest.raises(CommunicatorAborted):
            comm.all_reduce(cupy.ones(20))
    comm.abort()
