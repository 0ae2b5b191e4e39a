"""Fixtures: ReFrame as it is started from a command line, and a Slurm for it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..conftest import launch_environment

TESTS = Path(__file__).parents[1]
READY = TESTS.parent / "jobs" / "reframe"


@dataclass(frozen=True)
class Session:
    """How ReFrame ended: its status, what it printed, what its report has of each test case."""

    status: int
    printed: str
    cases: list[dict[str, Any]]

    @property
    def summary(self) -> str:
        """The line that counts what ran, and how it ended."""
        found = re.search(r"\] (Ran .*)", self.printed)
        assert found, self.printed
        return found[1]


Reframe = Callable[..., Session]


@pytest.fixture
def reframe(launcher: str, tmp_path: Path) -> Reframe:
    """Start ReFrame: ``reframe("-n", "CpuLatency", "-r")``.

    With the settings of jobs/reframe and, unless ``tests=`` names another file, its tests. ``env=`` has
    further variables. ReFrame leaves everything in ``tmp_path``.
    """
    pytest.importorskip("reframe", reason="ReFrame is not installed")

    def run(*words: str, tests: Path = READY, env: dict[str, str] | None = None) -> Session:
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("reframe")),
                "--nocolor",
                f"--config-file={READY / 'settings.py'}",
                f"--checkpath={tests}",
                f"--prefix={tmp_path}",
                f"--report-file={report}",
                *words,
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            env=launch_environment()
            | {"HPCCOMM_VENV": sys.prefix, "HPCCOMM_MPIEXEC": launcher, "HOME": str(tmp_path)}
            | (env or {}),
        )
        runs = json.loads(report.read_text())["runs"] if report.exists() else []
        return Session(
            done.returncode, done.stdout, [case for each in runs for case in each["testcases"]]
        )

    return run


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """Give the variables by which commands reach a Slurm of one node."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm")
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm munge libpmix-dev)")
    # The path of a socket has little room: not pytest's long folder names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    control = ["bash", str(TESTS / "slurm" / "one_node.sh")]
    try:
        subprocess.run([*control, "start", folder], check=True, timeout=90)
        yield {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([*control, "stop", folder], check=True, timeout=90)
        shutil.rmtree(folder)
