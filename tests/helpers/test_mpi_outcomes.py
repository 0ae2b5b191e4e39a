"""The promises of tests/mpi/conftest.py, shown with tests that misbehave on purpose."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import Mpiexec

CONFTEST = Path(__file__).parents[1] / "mpi" / "conftest.py"

SOON = 3
"""Seconds that a phase may take of a test that hangs: more than ranks wait for each other's outcome."""


@pytest.fixture
def launch(tmp_path: Path, mpiexec: Mpiexec) -> Mpiexec:
    """Run the text of a test file on n ranks, with a time limit of so many seconds a phase."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())

    def run(ranks: int, text: str, limit: int = 30) -> subprocess.CompletedProcess[str]:
        (tmp_path / "pytest.ini").write_text(
            f"[pytest]\npythonpath = {CONFTEST.parents[1]} {CONFTEST.parents[1] / 'helpers'}\n"
            f"faulthandler_timeout = {limit}\nfaulthandler_exit_on_timeout = true\n"
        )
        (tmp_path / "test_planted.py").write_text(text)
        options = ["--with-mpi", "-rA", "-p", "no:cacheprovider", "--color=no"]
        return mpiexec(ranks, "-m", "pytest", *options, cwd=tmp_path)

    return run


ENDING = """
import pytest

before = []

def test_passes_everywhere(mpi_comm):
    assert mpi_comm.allreduce(1) == 3

def test_fails_on_the_last_rank(request, mpi_comm):
    request.addfinalizer(lambda: before.append(True))
    mpi_comm.Barrier()
    assert mpi_comm.rank < 2, "planted in a test"

def test_next_one_meets_all_ranks(mpi_comm):
    assert mpi_comm.allgather(len(before)) == [1, 1, 1]

@pytest.fixture
def fragile(request, mpi_comm):
    phase = request.node.name.removeprefix("test_with_")
    assert (mpi_comm.rank, phase) != (1, "setup"), "planted in setup"
    yield
    assert (mpi_comm.rank, phase) != (1, "teardown"), "planted in teardown"

def test_with_setup(fragile, mpi_comm):
    mpi_comm.Barrier()

def test_with_teardown(fragile, mpi_comm):
    mpi_comm.Barrier()

def test_skips_on_one(mpi_comm):
    if mpi_comm.rank == 1:
        pytest.skip("planted")

def test_skips_everywhere():
    pytest.skip("planted")
"""


def test_tests_that_end_on_every_rank(launch: Mpiexec) -> None:
    """One job of all kinds of ends, which rank 0 alone reports."""
    done = launch(3, ENDING)
    told = done.stdout + done.stderr
    assert done.returncode == 1, told
    assert done.stdout.count("2 failed, 3 passed, 1 skipped, 2 errors") == 1, told

    def section(name: str) -> str:
        """What is told about a test that failed."""
        found = re.search(rf"^_+ [^_\n]*{name} _+$(.*?)(?=^(___|===))", done.stdout, re.M | re.S)
        assert found, told
        return found[1]

    failed = section("test_fails_on_the_last_rank")
    assert "rank 2: failed" in failed
    assert "AssertionError: planted in a test" in failed
    for phase in ("setup", "teardown"):
        assert f"AssertionError: planted in {phase}" in section(f"{phase} of test_with_{phase}")
    assert "rank 1: skipped" in section("test_skips_on_one")
    for passed in ("test_passes_everywhere", "test_next_one_meets_all_ranks", "test_with_teardown"):
        assert f"PASSED test_planted.py::{passed}\n" in done.stdout
    assert re.search(r"SKIPPED \[1\] test_planted.py:\d+: planted", done.stdout), told


@pytest.mark.thorough
def test_failure_that_leaves_the_others_waiting(launch: Mpiexec) -> None:
    text = """
def test_others_wait_for_ever(mpi_comm):
    assert mpi_comm.rank == 0, "planted"
    mpi_comm.Barrier()
"""
    done = launch(2, text, SOON)
    assert done.returncode not in (0, None)
    assert "test_others_wait_for_ever failed here" in done.stderr
    assert "AssertionError: planted" in done.stderr
    assert "in test_others_wait_for_ever" in done.stderr
