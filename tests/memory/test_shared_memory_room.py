"""Shared memory where there is little room or permission, in whole jobs under a real launcher.

The next best way is taken, and results are right. What jobs leave behind: ``tests/chaos``, which ends them in every way.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Mpiexec, launch_environment

from hpccomm.backends.bootstrap import mpi
from hpccomm.errors import BackendUnavailable

MIB = 1 << 20

# Whether a library's own shared memory gets along with these jobs is not the question here.
LIBRARY = {
    "OMPI_MCA_smsc": "^cma",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_osc": "^ucx",
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",  # MPICH 5.0.2 aborts where it may not read a peer's memory
}

PRELUDE = """
import ctypes, os, resource, sys
import numpy as np
from mpi4py import MPI
import hpccomm
import hpccomm.communicator.creation, hpccomm.backends.mpi.backend  # while this process may read them
from hpccomm import CommOptions

rank = MPI.COMM_WORLD.rank
libc = ctypes.CDLL(None, use_errno=True)

def try_all(comm, n=300_000, algorithm="shm"):
    for made in (np.empty, comm.empty):
        x, y = made(n, np.float32), made(n, np.float32)
        x[:] = np.arange(n) % 1000 + comm.rank
        comm.all_reduce(x, out=y, algorithm=algorithm)
        sums = (np.arange(n) % 1000) * comm.size + sum(range(comm.size))
        assert np.array_equal(y, sums.astype(np.float32)), made

def tell(*words):
    if rank == 0:
        print(*words, flush=True)
"""

DENY = """
def deny(*calls):
    # A seccomp filter: those system calls are not permitted, all others are.
    class Line(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte),
                    ("k", ctypes.c_uint)]
    class Program(ctypes.Structure):
        _fields_ = [("n", ctypes.c_ushort), ("lines", ctypes.POINTER(Line))]
    lines = [Line(0x20, 0, 0, 0)]  # the call's number
    lines += [Line(0x15, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    lines += [Line(0x06, 0, 0, 0x7FFF0000), Line(0x06, 0, 0, 0x00050001)]  # allow; EPERM
    program = Program(len(lines), (Line * len(lines))(*lines))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())

READV = {"x86_64": (310, 311), "aarch64": (270, 271)}[os.uname().machine]
"""


def told(job: subprocess.CompletedProcess[str]) -> str:
    assert job.returncode == 0, job.stderr
    assert "Traceback" not in job.stderr, job.stderr
    return job.stdout


def test_what_a_rank_may_not_do_to_its_peers(mpiexec: Mpiexec) -> None:
    """First none may open rank 1's memory: messages. Then it may not read: the staging buffer."""
    program = f"""
{PRELUDE}{DENY}
root = os.geteuid() == 0  # only root can become another user
if root:
    import importlib.metadata  # used later, when another user may not read what root has installed

    MPI.COMM_WORLD.allgather(rank)
    os.setresuid(65534, 65534, 65534)
    libc.prctl(4, 0 if rank == 1 else 1, 0, 0, 0)  # PR_SET_DUMPABLE
    with hpccomm.new_comm() as comm:
        try_all(comm, algorithm=None)
        try:
            comm.all_reduce(np.zeros(3), algorithm="shm")
        except hpccomm.UsageError as error:
            tell("unopened:", error)
    libc.prctl(4, 1, 0, 0, 0)
if rank == 1:
    deny(*READV)
with hpccomm.new_comm() as comm:
    tell(comm.explain("all_reduce", np.empty(10), algorithm="shm"))
    try_all(comm)
try:
    hpccomm.new_comm(options=CommOptions(shared_memory="pages"))
except hpccomm.ConfigurationError as error:
    tell(error)
"""
    job = mpiexec(2, "-c", program, env=LIBRARY)
    *unopened, choice, error = told(job).splitlines()
    assert "staging" in choice
    assert "on rank 1: the memory of rank 0 cannot be reached: Operation not permitted" in choice
    assert "'pages'" in error
    assert "on rank 1" in error
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, whose memory none may open")
    assert "'shm'" in unopened[0]
    reason = "that of rank 1 cannot be mapped: Permission denied"
    assert job.stderr.count(reason) == 1, job.stderr


# Room for no segment, or for one.
@pytest.mark.parametrize("spare", [pytest.param(12, marks=pytest.mark.thorough), 80])
def test_little_address_space_is_no_failure(mpiexec: Mpiexec, spare: int) -> None:
    program = f"""
{PRELUDE}
MPI.COMM_WORLD.allgather(rank)
if rank == 1:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ({spare} << 20), -1))
with hpccomm.new_comm(options=CommOptions(self_check=False)) as comm:
    try_all(comm, 1000, algorithm=None)
    try:
        comm.empty(100 << 20, np.uint8)
    except MemoryError as error:
        assert rank == 1
        print(error)
    comm.barrier()
"""
    job = mpiexec(2, "-c", program, env=LIBRARY)
    told(job)
    assert "share no memory" in job.stderr


def _mounting(nbytes: int = 64 << 10) -> list[str]:
    """Start of a command that gives its job a small /dev/shm of its own."""
    script = f'mount -t tmpfs -o size={nbytes} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can give a job a /dev/shm of its own")
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system lets not even root mount a /dev/shm")
    return command


@pytest.mark.parametrize("way", ["auto", pytest.param("staging", marks=pytest.mark.thorough)])
def test_a_small_dev_shm_does_not_matter(launcher: str, open_mpi: bool, way: str) -> None:
    program = f"""
{PRELUDE}
with hpccomm.new_comm(options=CommOptions(shared_memory={way!r})) as comm:
    try_all(comm, 500_000)  # 2 MB
    tell(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
"""
    # MPICH 5.0.2 itself takes 5.14 MiB a rank, so that the rest is less than an array has.
    room = 64 << 10 if open_mpi else 12 * MIB
    job = subprocess.run(
        [*_mounting(room), launcher, "-n", "2", sys.executable, "-c", program],
        env=launch_environment() | LIBRARY,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told(job) == f"{room}\n"


@pytest.mark.parametrize("odd", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_mixture_of_kinds_ends_the_job_with_the_remedy(mpiexec: Mpiexec, odd: int) -> None:
    """One rank meets the others in memory, and another one is blocked in the library."""
    program = f"""
{PRELUDE}
comm = hpccomm.new_comm(timeout=20)
arrays = [made(50_000_000 >> 4, np.float32) for made in (comm.empty, np.empty)]
for x, way in zip(arrays, ("shm", "native")):
    x.fill(1)
    comm.all_reduce(x, algorithm=way)
    comm.all_reduce(x, algorithm=way)
    assert (x == comm.size ** 2).all()
at = int(rank == {odd})
comm.all_reduce(arrays[at], algorithm=("shm", "native")[at])
print("went on")
"""
    job = mpiexec(2, "-c", program, env=LIBRARY)
    assert job.returncode != 0
    assert "went on" not in job.stdout
    assert "x = comm.empty(shape, dtype)" in job.stderr, job.stderr
    assert f"rank {odd}: all_reduce(algorithm native, memory plain)" in job.stderr, job.stderr


def mpich(device: str) -> SimpleNamespace:
    """Return what is asked of the library before it starts."""
    said = f"MPICH Version:      5.0.2\nMPICH Device:       {device}\n"
    return SimpleNamespace(get_vendor=lambda: ("MPICH",), Get_library_version=lambda: said)


@pytest.mark.parametrize(
    ("ranks", "variables", "device", "need"),
    [
        (11, {}, "ch4:ucx ofi", ""),
        (12, {}, "ch4:ucx ofi", "66 MiB of /dev/shm for 12 ranks on a node"),
        (16, {}, "ch4:ucx ofi", "88 MiB of /dev/shm for 16 ranks on a node"),
        (16, {"UCX_TLS": "^posix"}, "ch4:ucx ofi", ""),
        (16, {"MPIR_CVAR_CH4_NETMOD": "ofi"}, "ch4:ucx ofi", ""),
        (16, {}, "ch4:ofi", ""),
        (80, {}, "ch4:ofi", "88 MiB of /dev/shm for 80 ranks on a node"),
        (16, {"HPCCOMM_LAUNCH_CHECK": "0"}, "ch4:ucx ofi", ""),
        # By srun, which does not say how many ranks the node has.
        (16, {"MPI_LOCALNRANKS": "", "SLURM_STEP_NUM_NODES": "2"}, "ch4:ucx ofi", ""),
        (32, {"MPI_LOCALNRANKS": "", "SLURM_STEP_NUM_NODES": "2"}, "ch4:ucx ofi", "for 16 ranks"),
    ],
)
def test_mpich_is_not_started_where_it_would_die_of_too_little_room(
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    variables: dict[str, str],
    device: str,
    need: str,
) -> None:
    """In 64 MiB, which a container has: MPICH 5.0.2 starts 11 ranks, and 12 are ended by signal 11.

    One takes 5.14 MiB, as ``statvfs`` says while it runs; 1.02 MiB with ``UCX_TLS=^posix`` and with ch4:ofi.
    """
    for name in os.environ:
        if name.startswith("OMPI_COMM_WORLD_"):
            monkeypatch.delenv(name)
    everything = {"PMI_RANK": "0", "PMI_SIZE": str(ranks), "MPI_LOCALNRANKS": str(ranks)}
    for name, value in (everything | variables).items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    refused = pytest.raises(BackendUnavailable, match=f"MPICH takes about .*{need}.* 64 MiB: ")
    with refused if need else contextlib.nullcontext():
        mpi.check_room(mpich(device), lambda: 64 * MIB)


def test_room_is_what_others_have_left(tmp_path: Path) -> None:
    before = mpi.free_room(str(tmp_path))
    for name in ("mpich_shm_7_0", "ucx_shm_posix_7"):  # of ranks that have come first
        (tmp_path / name).write_bytes(bytes(MIB))
    assert mpi.free_room(str(tmp_path)) == before
    (tmp_path / "other").write_bytes(bytes(MIB))
    assert mpi.free_room(str(tmp_path)) <= before - MIB
    assert mpi.free_room(str(tmp_path / "nowhere")) == float("inf")
