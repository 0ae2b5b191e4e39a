"""Scripts of ``hpccomm slurm``, submitted to a real Slurm: how jobs start, and how they end."""

from pathlib import Path
from typing import Any

import pytest
from alone import python
from slurm_jobs import CHECKOUT, SWEEP, Slurm

pytestmark = [pytest.mark.slow("starts Slurm, and jobs"), pytest.mark.usefixtures("protocols")]

FOR_EVER = ("all_reduce", "-b", "8", "-e", "8", "-n", "20", "-N", "0")


@pytest.fixture(scope="session")
def mpich() -> Path:
    """MPICH's library, in a folder of the checkout's build/, beside the Open MPI of this environment."""
    prefix = CHECKOUT / "build" / "mpich"
    library = prefix / "lib" / "libmpi.so.12"
    if not library.exists():
        install = ["install", "--quiet", "--no-deps", "--prefix", str(prefix), "mpich"]
        done = python("-m", "pip", *install, timeout=120)
        if done.returncode or not library.exists():
            pytest.skip(f"pip cannot install MPICH here: {done.stderr.strip()[-300:]}")
    return library


@pytest.mark.thorough
@pytest.mark.parametrize("start", ["pmix", "pmi2", "mpiexec"])
def test_ranks_start(slurm: Slurm, open_mpi: bool, request: Any, start: str) -> None:
    if start == "pmix" and not open_mpi:
        pytest.skip("the library of this environment starts by pmi2")
    # The library decides between the two protocols, in the job.
    words = ("--mpi", start) if start == "mpiexec" else ()
    library = {"MPI4PY_LIBMPI": str(request.getfixturevalue("mpich"))} if start == "pmi2" else {}
    job = slurm.submit_written("--ntasks-per-node=2", *words, "perf", *SWEEP, **library)
    run = job.swept("mpiexec -n 2" if start == "mpiexec" else f"srun --mpi={start}")
    assert ("MPICH" in str(run.info.versions)) == (start == "pmi2" or not open_mpi)


def test_status_of_perf_is_that_of_the_job(slurm: Slurm) -> None:
    # Nothing is as fast as this, so perf ends with 1.
    job = slurm.submit_written("perf", "--ntasks=2", *SWEEP, "--min-bw", "1000000")
    assert (job.ended(), job.status()) == ("FAILED", 1), job.printed()
    assert f"== job {job.number}: srun --mpi=" in job.printed()
    (run,) = job.runs()
    assert (run.status, len(run.info.ranks)) == ("completed", 2)


def test_cancelled_job_leaves_every_printed_row(slurm: Slurm) -> None:
    job = slurm.submit_written("perf", "--ntasks=2", *FOR_EVER)
    job.measures()
    slurm.ask("scancel", job.number)
    assert job.ended() == "CANCELLED"
    (run,) = job.runs()
    # A row of the table is two, out of place and in place.
    assert 0 < 2 * job.rows() <= len(run.rows)


@pytest.mark.thorough
def test_time_limit_closes_table_and_file(slurm: Slurm) -> None:
    job = slurm.submit_written("perf", "--ntasks=2", *FOR_EVER)
    job.measures()
    # Slurm looks at limits every 30 s; with a minute in all, it signals the next time.
    slurm.ask("scontrol", "update", f"JobId={job.number}", "TimeLimit=1")
    assert (job.ended(), job.status()) == ("FAILED", 143), job.printed()
    assert "# Collective test interrupted: all_reduce" in job.printed()
    assert f"== job {job.number} was asked to end; what it had measured is kept" in job.printed()
    (run,) = job.runs()
    assert run.status == "failed: interrupted"
    assert 2 * job.rows() == len(run.rows)


@pytest.mark.thorough
@pytest.mark.parametrize("start", ["srun", "mpiexec"])
def test_launches_end_when_the_job_is_asked_to(slurm: Slurm, start: str) -> None:
    words = ("--mpi", "mpiexec") if start == "mpiexec" else ()
    sweep = ("all_reduce", "-b", "8", "-e", "8", "-n", "20", "--launches", "1000")
    job = slurm.submit_written("perf", "--ntasks=2", *words, *sweep)
    job.await_that(lambda job: "# launch 1 of 1000: done" in job.printed(), "launches")
    slurm.ask("scancel", "--batch", "--signal=TERM", job.number)  # as Slurm does at the time limit
    assert job.ended() == "FAILED"
    first, *_ = job.runs()
    assert first.status == "completed"
    assert "was asked to end; what it had measured is kept" in job.printed()


@pytest.mark.thorough
def test_requeued_job_adds_a_run(slurm: Slurm) -> None:
    job = slurm.submit_written("perf", "--ntasks=2", *FOR_EVER)
    job.measures()
    slurm.ask("scontrol", "requeue", job.number)
    job.await_that(lambda job: job.state() == "PENDING", "waits again")
    before = job.rows()
    assert before > 0
    slurm.ask("scontrol", "update", f"JobId={job.number}", "StartTime=now")  # not in two minutes
    job.await_that(lambda job: job.rows() > before, "prints another row")
    slurm.ask("scancel", job.number)
    job.ended()
    assert job.printed().count(f"== job {job.number}: srun ") == 2
    first, second = job.runs()
    assert first.rows
    assert second.rows
    assert 2 * job.rows() <= len(first.rows) + len(second.rows)
