"""Whether MPI gets device memory: the queries, their outcome, and the words on a crash."""

import os
import signal

import pytest
from alone import python

from hpccomm.backends.bootstrap.cuda_aware import LibraryAnswers, decide, lists_cuda

SILENT = LibraryAnswers("", None, None)


def test_kinds_of_memory_with_cudas_among_them() -> None:
    for kinds in ("mpi,system,cuda", "mpi,cuda:device", "cuda:managed:device , system"):
        assert lists_cuda(kinds), kinds
    for kinds in ("", "mpi,system", "system,cuda:host", "rocm:device,cudart"):
        assert not lists_cuda(kinds), kinds


@pytest.mark.parametrize(
    ("asked", "told", "aware", "words"),
    [
        (True, LibraryAnswers("mpi,system", False, False), True, "HPCCOMM_CUDA_AWARE"),
        (False, LibraryAnswers("cuda", True, True), False, "HPCCOMM_CUDA_AWARE"),
        (None, LibraryAnswers("mpi,cuda:device", None, None), True, "mpi_memory_alloc_kinds"),
        (None, LibraryAnswers("mpi,system", True, None), True, "MPIX_Query_cuda_support"),
        (None, LibraryAnswers("", False, True), True, "opal_built_with_cuda_support"),
        (None, LibraryAnswers("mpi,system", False, False), False, "cuda_support is false"),
        (None, SILENT, False, "it does not say"),
    ],
)
def test_the_user_comes_before_the_library(asked, told, aware, words) -> None:
    found, why = decide("Some MPI", asked, told)
    assert found is aware
    assert words in why
    assert "Some MPI" in why
    if not aware and asked is None:
        assert "HPCCOMM_CUDA_AWARE=1" in why  # the remedy


QUIET = os.environ | {"HPCCOMM_LAUNCH_CHECK": "0"}

ASKS = """
from hpccomm.backends.bootstrap import cuda_aware, mpi

started = mpi.start()
told = cuda_aware._library_answers(started)  # those that decide
assert told.query is not None, told  # Open MPI, MPICH and Intel MPI all export it
if started.get_vendor()[0] == "Open MPI":
    assert told.built is not None, told
print(*cuda_aware.aware(started, None))
"""


def test_trap_mpi_is_asked_whether_it_is_cuda_aware_and_the_one_from_pip_says_no() -> None:
    pytest.importorskip("mpi4py")
    done = python("-c", ASKS, env=QUIET)
    assert done.returncode == 0, done.stderr
    if "True" in done.stdout.split()[0]:
        pytest.skip(f"this library is CUDA-aware: {done.stdout}")
    assert "is not known to be CUDA-aware" in done.stdout


CRASH = """
import os, signal
from hpccomm.backends.bootstrap.cuda_aware import explain_crash
with explain_crash("HPCCOMM_CUDA_AWARE says so"):
    {}
"""


@pytest.mark.parametrize(
    ("end", "crashed"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", True),
        ("os._exit(3)", True),
        ("pass", False),
        ("raise SystemExit(0)", False),
    ],
)
def test_a_crash_alone_is_explained_by_name(end: str, crashed: bool) -> None:
    done = python("-c", CRASH.format(end), env=QUIET)
    assert done.returncode in ((-signal.SIGSEGV, 3) if crashed else (0,))
    assert done.stderr.count("set HPCCOMM_CUDA_AWARE=0") == crashed
    assert ("HPCCOMM_CUDA_AWARE says so" in done.stderr) == bool(done.stderr) == crashed
