"""What tests/mpi/conftest.py promises, shown with tests that misbehave on purpose."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("mpi") / "conftest.py"

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def launch(tmp_path: Path, mpiexec: Launch) -> Launch:
    """Run the text of a test file on n ranks, with a time limit of 4 s a phase."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {CONFTEST.parent.parent}\n"
        "faulthandler_timeout = 4\nfaulthandler_exit_on_timeout = true\n"
    )

    def run(ranks: int, text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_planted.py").write_text(text)
        options = ["--with-mpi", "-ra", "-p", "no:cacheprovider", "--color=no"]
        return mpiexec(ranks, "-m", "pytest", *options, cwd=tmp_path)

    return run


def test_all_ranks_pass_and_one_reports(launch: Launch) -> None:
    done = launch(3, "def test_it(mpi_comm):\n    assert mpi_comm.allreduce(1) == 3\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 1


def test_failure_on_one_rank_is_a_failure_on_all(launch: Launch) -> None:
    done = launch(
        3,
        """
failed_before = []

def test_fails_on_the_last_rank(request, mpi_comm):
    request.addfinalizer(lambda: failed_before.append(True))
    mpi_comm.Barrier()
    assert mpi_comm.rank < 2, "planted"

def test_next_one_meets_all_ranks(mpi_comm):
    assert mpi_comm.allgather(len(failed_before)) == [1, 1, 1]
""",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "rank 2: failed" in done.stdout
    assert "AssertionError: planted" in done.stdout


@pytest.mark.parametrize("phase", ["setup", "teardown"])
def test_failure_of_a_fixture_on_one_rank(launch: Launch, phase: str) -> None:
    done = launch(
        2,
        f"""
import pytest

@pytest.fixture
def fragile(mpi_comm):
    assert (mpi_comm.rank, "{phase}") != (1, "setup"), "planted"
    yield
    assert (mpi_comm.rank, "{phase}") != (1, "teardown"), "planted"

def test_with_it(fragile, mpi_comm):
    mpi_comm.Barrier()
""",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 error" in done.stdout
    assert "AssertionError: planted" in done.stdout


def test_skip_on_one_rank_is_a_failure(launch: Launch) -> None:
    done = launch(
        2,
        """
import pytest

def test_skips(mpi_comm):
    if mpi_comm.rank == 1:
        pytest.skip("planted")
""",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1: skipped" in done.stdout


def test_skip_on_all_ranks_is_a_skip(launch: Launch) -> None:
    done = launch(2, "import pytest\n\ndef test_skips():\n    pytest.skip('planted')\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout


def test_failure_that_leaves_the_others_waiting(launch: Launch) -> None:
    done = launch(
        2,
        """
def test_others_wait_for_ever(mpi_comm):
    assert mpi_comm.rank == 0, "planted"
    mpi_comm.Barrier()
""",
    )
    assert done.returncode not in (0, None)
    assert "test_others_wait_for_ever failed here" in done.stderr
    assert "AssertionError: planted" in done.stderr
    assert "in test_others_wait_for_ever" in done.stderr


def test_hang_shows_its_stack_and_ends_the_job(launch: Launch) -> None:
    done = launch(
        2,
        """
import time

def test_hangs(mpi_comm):
    if mpi_comm.rank == 1:
        time.sleep(1000)
""",
    )
    assert done.returncode not in (0, None)
    assert "Timeout" in done.stderr
    assert "in test_hangs" in done.stderr


def test_hang_after_a_failure_ends_the_job(launch: Launch) -> None:
    done = launch(
        2,
        """
import time

def test_fails_and_hangs(request, mpi_comm):
    request.addfinalizer(lambda: time.sleep(1000))
    assert False, "planted"
""",
    )
    assert done.returncode not in (0, None)
    assert "Timeout" in done.stderr


def test_ranks_with_different_tests_do_not_start(launch: Launch) -> None:
    done = launch(
        2,
        """
from mpi4py import MPI

def test_everywhere():
    pass

if MPI.COMM_WORLD.rank == 0:
    def test_only_here():
        pass
""",
    )
    assert done.returncode not in (0, None)
    assert "the ranks collected different tests" in done.stdout + done.stderr
