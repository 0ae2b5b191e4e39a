"""The launcher's facts about this process, read from the environment.

The modules that must know rank and size before MPI starts use it: the bootstrap, the MPI backend,
`hpccomm.communicator`, `hpccomm.torch` and the tools.
"""

import hashlib
import os
import platform
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

LIBRARY = re.compile(r"/libmpi[^/\n]*\.so[^/\n]*$", re.MULTILINE)
"""The path of an MPI library in a line of /proc/PID/maps."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The process's place in the job, as its launcher set it.

    Attributes
    ----------
    launcher : str
        Name of the launcher, for messages.
    rank, size : int
        This process's rank, and the number of processes.
    local_size : int or None
        The number of processes on this node; None if the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_size: int | None = None


OPEN_MPI, SRUN = "Open MPI's mpiexec", "Slurm's srun"
HYDRA = "a PMI launcher (MPICH's or Intel MPI's mpiexec)"

# SLURM_NTASKS proves nothing: a plain script in a batch job has it too.
_LAUNCHERS = (
    (
        OPEN_MPI,
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    (HYDRA, "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    (SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the launcher's facts, or None without a launcher.

    A step of Slurm with one task does not count: all programs in a shell of ``srun --pty`` have that step's
    variables. Reads only the environment; starts nothing.
    """
    values = os.environ if environ is None else environ
    for launcher, rank, size, local in _LAUNCHERS:
        try:
            on_node = int(values[local]) if local in values else None
            launch = Launch(launcher, int(values[rank]), int(values[size]), on_node)
        except (KeyError, ValueError):
            continue
        if launcher == HYDRA and on_node is None and values.get("SLURM_PROCID") == values[rank]:
            return replace(launch, launcher=SRUN) if launch.size > 1 else launch  # by --mpi=pmi2
        if launcher != SRUN or launch.size > 1:
            return launch
    return None


_agreed: dict[str, str] = {}


def agree(**names: str) -> None:
    """Set the ``key`` and the ``name`` of the job to those of another rank, which may see other variables.

    The first values stay.
    """
    global _agreed
    _agreed = names | _agreed


def job_key(environ: Mapping[str, str] | None = None) -> str:
    """Return the job's key, which differs from those of the user's other jobs and is equal in its processes on a node.

    It has letters, digits and ``._-``, at most 40 characters. A process that no launcher started is a job by itself,
    and its key has the process id. Ranks that have met in MPI have the same key on all nodes: see `agree`.
    """
    if environ is None and "key" in _agreed:
        return _agreed["key"]
    values = os.environ if environ is None else environ
    if launched(values) is None:
        return f"alone-{os.getpid()}"
    return job_name(values) or _parent(values)


def job_name(environ: Mapping[str, str] | None = None) -> str:
    """Return the job's name, which is equal in all its processes; empty without a name.

    It has letters, digits and ``._-``, at most 40 characters. A later job may have the same name.
    """
    if environ is None and "name" in _agreed:
        return _agreed["name"]
    values = os.environ if environ is None else environ
    launch = launched(values)
    if launch is None:
        return ""
    key = values.get("PMIX_NAMESPACE") or values.get("PMI_JOBID") or ""
    if not key and "SLURM_STEP_ID" in values and "SLURM_PROCID" in values:
        key = f"slurm-{values.get('SLURM_JOB_ID')}.{values['SLURM_STEP_ID']}"
    if not key:
        return _parent(values) if launch.local_size == launch.size else ""
    if re.fullmatch(r"[\w.-]{1,40}", key, re.ASCII):
        return key
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


_OF_ONE_RANK = (
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_FD"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
)
"""Variables that distinguish a rank from all others, if the launcher sets them."""


def started_by() -> int:
    """Return the ancestor process that is the rank whose variables this process has; 0 without one.

    Children of a rank inherit its variables: a worker of multiprocessing, a subprocess, a fork. The
    nearest ancestor that has the same variables and has loaded an MPI library is the rank. Local;
    reads /proc.
    """
    variables = {name: os.environb.get(name.encode()) for name in _OF_ONE_RANK}
    launcher, above = _peer(os.environ.get("PMI_FD", "")), os.getppid()
    # Hydra's proxy may have all variables of a rank too, if that rank's program started it.
    while above not in (0, launcher):
        folder = Path(f"/proc/{above}")
        try:
            lines = (folder / "environ").read_bytes().split(b"\0")
            theirs = dict(line.split(b"=", 1) for line in lines if b"=" in line)
            if variables != {name: theirs.get(name.encode()) for name in variables}:
                break  # that process belongs to the launcher
            if LIBRARY.search((folder / "maps").read_text(errors="replace")):
                return above
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process belongs to another user, or is gone
            break
    return 0


def _parent(values: Mapping[str, str]) -> str:
    """Return a key of the job on this node, from the process that started it: Hydra gives jobs no name."""
    # Hydra has one proxy for each node and job. The proxy made the socket that PMI_FD is.
    return f"parent-{_peer(values.get('PMI_FD', '')) or os.getppid()}"


def _peer(descriptor: str) -> int:
    """Return the process at the other end of a socket that this process inherited; 0 if none."""
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as inherited:
            raw = inherited.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except (OSError, ValueError):
        return 0
    pid: int = struct.unpack("3i", raw)[0]
    return pid


@cache
def processor() -> str:
    """Return the processor's model, or its architecture where the kernel does not name one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not there, or hidden
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name" and value.strip():
            return " ".join(value.split())
    return platform.machine() or "unknown"


def cores() -> int:
    """Return the number of cores of this node, including those that this process may not use."""
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of this node; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def fabric() -> str:
    """Return the RDMA adapters with the rates of their active ports, as the kernel lists them; empty if none.

    An example is ``mlx5_0 400 Gb/sec (4X NDR)``.
    """
    return ", ".join(
        f"{port.parents[1].name} {_line(port / 'rate')}"
        for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
        if _line(port / "state").endswith("ACTIVE")
    )


def _line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def facts() -> dict[str, str]:
    """Return the known facts of this node in words, by name, for results."""
    facts = {
        "processor": processor(),
        "cores": str(cores()),
        "memory": f"{memory() / 2**30:.0f} GiB" if memory() else "",
        "kernel": f"{platform.system()} {platform.release()}",
        "fabric": fabric(),
    }
    return {name: text for name, text in facts.items() if text}
