"""Fixtures: ReFrame as it is started from a command line, and a Slurm for it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# pytest takes fixtures from here by their names.
from slurm_jobs import one_node

from ...conftest import launch_environment

__all__ = ["one_node"]

TESTS = Path(__file__).parents[2]
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
        places = {"config-file": READY / "settings.py", "checkpath": tests, "prefix": tmp_path}
        options = [f"--{name}={place}" for name, place in {**places, "report-file": report}.items()]
        own = {"HPCCOMM_VENV": sys.prefix, "HPCCOMM_MPIEXEC": launcher, "HOME": str(tmp_path)}
        done = subprocess.run(
            [Path(sys.executable).with_name("reframe"), "--nocolor", *options, *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            env=launch_environment() | own | (env or {}),
        )
        runs = json.loads(report.read_text())["runs"] if report.exists() else []
        cases = [case for each in runs for case in each["testcases"]]
        return Session(done.returncode, done.stdout, cases)

    return run


@pytest.fixture
def slurm(one_node: dict[str, str]) -> dict[str, str]:
    """Give the variables by which commands reach a Slurm of one node."""
    return {"SLURM_CONF": one_node["SLURM_CONF"]}
