"""jobs/perf.sbatch on a real Slurm, which one_node.sh starts on this machine."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpccomm.results.reader import read

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Give the environment in which commands reach a Slurm of one node."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm")
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm munge libpmix-dev)")
    # The path of a socket has little room: not pytest's long folder names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    control = ["bash", str(HERE / "one_node.sh")]
    try:
        subprocess.run([*control, "start", folder], check=True, timeout=90)
        yield os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "HPCCOMM_VENV": sys.prefix}
    finally:
        subprocess.run([*control, "stop", folder], check=True, timeout=90)
        shutil.rmtree(folder)


def ask(environment: dict[str, str], *command: str, cwd: Path | None = None) -> str:
    """Run one of Slurm's commands; return what it printed."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def ended_state(environment: dict[str, str], job: str) -> str:
    """Wait for the end of a job (``sbatch --wait`` looks every 10 s only); return its state."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        (state,) = re.findall(r"JobState=(\w+)", ask(environment, "scontrol", "show", "job", job))
        if state not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
            return str(state)
        time.sleep(0.2)
    pytest.fail(f"job {job} did not end: {ask(environment, 'squeue')}")


@pytest.mark.parametrize("start", ["srun", "mpiexec"])
def test_sweep_ends_in_a_file_named_by_the_job_or_by_its_user(
    slurm: dict[str, str], launcher: str, tmp_path: Path, start: str
) -> None:
    environment = dict(slurm)
    environment.pop("HPCCOMM_MPIEXEC", None)
    if start == "mpiexec":
        environment["HPCCOMM_MPIEXEC"] = launcher
    else:
        if "pmi" not in ask(environment, "srun", "--mpi=list"):
            pytest.skip("this srun starts no MPI: it has neither pmix nor pmi2")
    (tmp_path / "jobs").symlink_to(JOBS)

    sweep = ["all_reduce", "-b", "8", "-e", "8K", "-f", "32", "-n", "5"]
    own = start == "mpiexec"
    sweep += ["--output", "own.h5"] if own else []
    job = ask(environment, "sbatch", "--parsable", "jobs/perf.sbatch", *sweep, cwd=tmp_path).strip()
    state = ended_state(environment, job)
    printed = (tmp_path / f"hpccomm-perf-{job}.out").read_text()
    assert state == "COMPLETED", printed
    assert f"job {job}: {start if start == 'srun' else launcher} " in printed
    assert "# Out of bounds values : 0 OK" in printed

    (run,) = read(tmp_path / ("own.h5" if own else f"results/perf-{job}.h5"))
    assert (tmp_path / "results").exists() != own
    assert run.status == "completed"
    assert len(run.info.ranks) == 2
    assert {row.bytes for row in run.rows} == {8, 256, 8192}
    assert run.info.slurm["SLURM_JOB_ID"] == job
