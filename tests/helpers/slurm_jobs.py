"""A real Slurm, which slurm/one_node.sh starts on this machine, and jobs on it. For a conftest.py to import."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpccomm.results.reader import Run, read

CHECKOUT = Path(__file__).parents[2]
SWEEP = ("all_reduce", "-b", "8", "-e", "8K", "-f", "32", "-n", "5")
ENDED = {
    *("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "BOOT_FAIL", "DEADLINE"),
}
"""States that a job stays in. It passes through others, such as SIGNALING while a signal is under way."""


@pytest.fixture(scope="session")
def one_node() -> Iterator[dict[str, str]]:
    """Give the environment in which commands reach a Slurm of one node, one for each test process."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm")
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm munge libpmix-dev)")
    # The path of a socket has little room: not pytest's long folder names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    control = ["bash", str(CHECKOUT / "tests" / "tools" / "slurm" / "one_node.sh")]
    # Jobs that fail leave dumps, and Open MPI's launcher leaves files.
    own = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "HPCCOMM_VENV": sys.prefix,
        "HPCCOMM_DUMP_DIR": "",
        "TMPDIR": str(folder),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name != "HPCCOMM_MPIEXEC"}
    try:
        subprocess.run([*control, "start", folder], check=True, timeout=90)
        yield kept | own
    finally:
        subprocess.run([*control, "stop", folder], check=True, timeout=90)
        shutil.rmtree(folder)


class Job:
    """A job, in the folder that it was submitted in."""

    def __init__(self, slurm: "Slurm", number: str) -> None:
        self.slurm = slurm
        self.number = number

    def state(self) -> str:
        (state,) = re.findall(
            r"JobState=(\w+)", self.slurm.ask("scontrol", "show", "job", self.number)
        )
        return str(state)

    def status(self) -> int:
        """The exit status of its script."""
        shown = self.slurm.ask("scontrol", "show", "job", self.number)
        (status,) = re.findall(r" ExitCode=(\d+):\d+", shown)
        return int(status)

    def printed(self) -> str:
        """What it has printed so far."""
        return "".join(file.read_text() for file in self.slurm.folder.glob(f"*-{self.number}.out"))

    def rows(self) -> int:
        """How many rows of tables it has printed."""
        return len(re.findall(r"^ .* sum .*$", self.printed(), re.M))

    def runs(self) -> tuple[Run, ...]:
        """The runs in its results file; each can be read, sealed or not."""
        return tuple(read(self.slurm.folder / "results" / f"perf-{self.number}.h5"))

    def swept(self, starter: str, ranks: int = 2, file: str = "") -> Run:
        """Assert that it has ended with all of `SWEEP`; return the run in its results file, or in another one."""
        assert self.ended() == "COMPLETED", self.printed()
        assert f"== job {self.number}: {starter} " in self.printed()
        assert "# Out of bounds values : 0 OK" in self.printed()
        (run,) = read(self.slurm.folder / file) if file else self.runs()
        assert (run.status, len(run.info.ranks)) == ("completed", ranks)
        assert {row.bytes for row in run.rows} == {8, 256, 8192}
        assert run.info.slurm["SLURM_JOB_ID"] == self.number
        return run

    def await_that(self, come: Callable[["Job"], bool], what: str) -> None:
        """Wait until something is so, for 100 s at most. (``sbatch --wait`` looks every 10 s only.)"""
        deadline = time.monotonic() + 100
        while not come(self):
            if time.monotonic() > deadline:
                pytest.fail(
                    f"it has not come that job {self.number} {what}: {self.state()} {self.printed()}"
                )
            time.sleep(0.1)

    def ended(self) -> str:
        """Wait for its end; return its state."""
        self.await_that(lambda job: job.state() in ENDED, "ends")
        return self.state()

    def measures(self) -> None:
        """Wait until it has printed a row."""
        self.await_that(lambda job: job.rows() > 0, "prints a row")


class Slurm:
    """Slurm's commands, in a folder with the scripts of jobs/."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder
        for name in ("jobs", "hpccomm"):
            (folder / name).symlink_to(CHECKOUT / name)

    def ask(self, *command: str, text: str | None = None, **more: str) -> str:
        """Run a command; return what it printed."""
        done = subprocess.run(
            command,
            env=self.environment | more,
            cwd=self.folder,
            input=text or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def submit(self, *words: str, **variables: str) -> Job:
        """Submit a script of jobs/, with its arguments."""
        return Job(self, self.ask("sbatch", "--parsable", *words, **variables).strip())

    def submit_written(self, *words: str, **variables: str) -> Job:
        """Submit what ``hpccomm slurm`` writes."""
        script = self.ask(sys.executable, "-m", "hpccomm", "slurm", *words)
        return Job(self, self.ask("sbatch", "--parsable", text=script, **variables).strip())
