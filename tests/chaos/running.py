"""Starts the job of a case, ends it if it hangs, and finds what it left behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from conftest import launch_environment

from . import victim
from .cases import Case
from .expecting import MPI_START

CHECKOUT = Path(__file__).parents[2]
LAUNCH = 75.0
"""Seconds, at most, until the ranks of a job are where the fault comes; a slow machine's."""
GRACE = 5.0
"""Seconds after its deadline in which a job must have ended."""
MARK = "CHAOS_MARK"
"""Variable by which the processes of a job are known."""
TINY = 64 << 10
"""Bytes of the disk that fills up."""
UNAVAILABLE = 77
"""Exit status of jobs/virtual_cluster.sh where there can be no virtual hosts."""

LAUNCHERS_OWN = ("ompi.", "prte.", "pmix", "hydra", "mpich_", "vader_", "sm_segment", "tmp-")
"""How the names begin of what the MPI libraries themselves may leave when they are killed."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a job.

    Attributes
    ----------
    status : int or None
        Exit status of the launcher; None if it hung and was ended.
    events : dict
        What each rank noted.
    seconds : float
        From the fault to the end of the job. It counts from when the last rank was ready to begin,
        if the fault came before that, and from the start if there was none.
    processes, files : tuple of str
        What it left behind.
    open_mpi : bool
        Whether the launcher is Open MPI's; else it is MPICH's.
    """

    status: int | None
    events: dict[int, list[dict[str, Any]]]
    stdout: str
    stderr: str
    seconds: float
    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    open_mpi: bool = True

    def noted(self, event: str) -> list[tuple[int, dict[str, Any]]]:
        """Return where an event was noted, with its facts, by ranks."""
        every = sorted(self.events.items())
        return [(rank, e) for rank, each in every for e in each if e["event"] == event]

    @property
    def fault_at(self) -> float | None:
        """When the fault happened (``time.time``); None if it did not."""
        return min((each["at"] for _, each in self.noted("fault")), default=None)

    @property
    def wrong(self) -> list[int]:
        """Ranks that got a wrong number."""
        return sorted({rank for rank, _ in self.noted("wrong")})

    def done(self, rank: int) -> bool:
        """Return whether a rank came to its end without an error."""
        return [each["event"] for each in self.events[rank]][-1:] == ["done"]


def unavailable(case: Case, open_mpi: bool) -> str:
    """Return why a case cannot be run here, or an empty string."""
    root = os.geteuid() == 0
    if case.kind == "lost" and not open_mpi:
        return "only Open MPI goes on after the loss of a rank"
    if case.kind == "disk" and not root:
        return "only root may mount a tiny disk"
    if case.on_hosts and not (root and open_mpi):
        return "virtual hosts need root and Open MPI"
    return ""


def run(case: Case, launcher: str, open_mpi: bool) -> Seen | str:
    """Run the job of a case to its end, or end it; `launcher` is Open MPI's or MPICH's.

    Return why, if it cannot be run here.
    """
    if why := unavailable(case, open_mpi):
        return why
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        folder, mark, start = Path(name), uuid4().hex, time.time()
        for part in ("work", "tmp", "shm"):
            (folder / part).mkdir()
        (folder / "case.json").write_text(json.dumps(asdict(case)))
        environment, out, err = _environment(launcher, mark, folder), folder / "out", folder / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                _in_a_room(folder, case, _command(folder, case, launcher, environment)),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                cwd=folder / "work",
                start_new_session=True,
            )
            status = _wait(process, folder, case)
        end, left = time.time(), processes_left(mark)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        events = {rank: victim.read(folder, rank) for rank in range(case.ranks)}
        # Open MPI's launcher ends its own notes with a zero byte, before the next rank's line.
        text = err.read_text(errors="replace").replace("\0", "")
        if status == UNAVAILABLE and case.on_hosts:
            return " ".join(text.split())
        seen = Seen(status, events, out.read_text(errors="replace"), text, end - start, left)
        if seen.fault_at is not None:
            ready = [each["at"] for _, each in seen.noted("ready")]
            seen = replace(seen, seconds=end - max(seen.fault_at, *ready, 0.0))
        return replace(seen, files=tuple(files_left(folder)), open_mpi=open_mpi)


def _command(folder: Path, case: Case, launcher: str, environment: dict[str, str]) -> list[str]:
    program = [sys.executable, "-m", "chaos.victim", str(folder)]
    if case.on_hosts:
        script, sizes = (
            CHECKOUT / "jobs/virtual_cluster.sh",
            f"{case.faulty},{case.ranks - case.faulty}",
        )
        words = f"bash {script} --nodes 2 --ranks-per-node {sizes} -- env"
        # The launcher passes no variables on to other hosts.
        passed = ("PYTHONPATH", "PYTHONFAULTHANDLER", MARK, "NO_COLOR")
        return [*words.split(), *(f"{name}={environment[name]}" for name in passed), *program]
    if case.kind == "disk":
        file = folder / "work" / f"run{('.h5', '.csv', '.json', '.h5')[case.variant]}"
        sweep = f"perf {case.collective} -b 8 -e 64K -f 2 -n 20 -w 1 --output {file}"
        program = [sys.executable, "-m", "hpccomm", *sweep.split()]
    options = ["--with-ft", "ulfm"] if case.kind == "lost" else []
    return [launcher, *options, "-n", str(case.ranks), *program]


def _in_a_room(folder: Path, case: Case, command: list[str]) -> list[str]:
    """Return the command with a /dev/shm of its own, where root may give it one.

    What is left there is then the job's. A job on virtual hosts has its own on each of them.
    """
    if case.on_hosts or not _may_mount():
        return command
    mounts = "mount -t tmpfs shm /dev/shm"
    if case.kind == "disk":  # which until the last step hides nothing
        mounts += f' && mount -t tmpfs -o size={TINY} tiny . && cd "$PWD"'
    ending = f'"$@"; s=$?; ls -A /dev/shm >{folder}/shm/left; exit $s'
    return ["unshare", "--mount", "sh", "-c", f"{mounts} && {{ {ending}; }}", "sh", *command]


@cache
def _may_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = "unshare --mount mount -t tmpfs shm /dev/shm"
    return subprocess.run(tried.split(), capture_output=True).returncode == 0


def _environment(launcher: str, mark: str, folder: Path) -> dict[str, str]:
    environment = launch_environment()
    for name in [each for each in environment if each.startswith("HPCCOMM_")]:
        del environment[name]
    # In its own /dev/shm that folder is not there.
    environment.pop("OMPI_MCA_btl_sm_backing_directory", None)
    return environment | {
        MARK: mark,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "tests"), str(CHECKOUT)]),
        "TMPDIR": str(folder / "tmp"),
        "NO_COLOR": "1",
        "PYTHONFAULTHANDLER": "1",  # a crash is then told of, whatever the launcher makes of it
        "HPCCOMM_MPIEXEC": launcher,
        "HPCCOMM_VENV": sys.prefix,
        "OMPI_MCA_osc": "^ucx",
        # More ranks than cores, which would poll for each other's time.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }


def _wait(process: subprocess.Popen[bytes], folder: Path, case: Case) -> int | None:
    """Return the exit status; None if the job outlived its limit and was killed.

    The limit counts from the fault, once it was noted: a slow start is nobody's fault.
    """
    start = time.time()
    faulty = victim.path_of(folder, case.faulty)
    limit = case.creation_deadline if case.operation == "finalisation" else case.deadline
    limit += GRACE + (MPI_START if case.operation == "creation" else 0.0)
    limit += case.deadline + case.overdue if case.kind == "overdue" else 0.0
    limit += LAUNCH / 3 if case.kind == "late" or case.on_hosts else 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.1)
        struck = faulty.exists() and '"fault"' in faulty.read_text()
        since = faulty.stat().st_mtime if struck else start
        if time.time() - since > limit + (2.0 if struck else LAUNCH):
            break
    for number in (signal.SIGTERM, signal.SIGKILL):  # in order, so that it may clean up
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(3.0)
            break
    return None


def _marked(mark: str) -> Iterator[Path]:
    wanted = f"{MARK}={mark}".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (each / "environ").read_bytes().split(b"\0"):
                yield each


def processes_left(mark: str) -> tuple[str, ...]:
    """Kill the processes of a job that outlive it by more than a second; return what they are."""
    until = time.monotonic() + 1.0
    while list(_marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    names = []
    for each in _marked(mark):
        with contextlib.suppress(OSError):
            words = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            names.append(f"{each.name}: {words.strip()[:100]}")
            os.kill(int(each.name), signal.SIGKILL)
    return tuple(names)


def files_left(folder: Path) -> Iterator[str]:
    """Return what is left in /dev/shm, in TMPDIR and where the job ran, and is not to be there."""
    listing = folder / "shm" / "left"
    shared = listing.read_text().splitlines() if listing.exists() else []
    yield from (f"/dev/shm/{name}" for name in shared if not name.startswith(LAUNCHERS_OWN))
    for part, meant in (("tmp", (*LAUNCHERS_OWN, "hpccomm-dumps")), ("work", ("hpccomm-dumps",))):
        for path in (folder / part).iterdir():
            if not path.name.startswith(meant):
                yield f"{part}/{path.name}"
