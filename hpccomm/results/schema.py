"""The contents of a results file, described once for the writer, the reader and the documentation.

The dataclasses are the columns. Each field carries how it is stored and what it means, so that the
HDF5 types, the CSV heading and the tables of ``docs/results.rst`` are all read from here.

Nothing here imports h5py: the measuring code describes a run without opening a file.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hpccomm.errors import UsageError

FORMAT = "hpccomm results"
"""Value of the root attribute ``format``, which identifies a results file among HDF5 files."""

SCHEMA_VERSION = 1
"""Value of the root attribute ``schema_version``. It grows when an older reader would be wrong."""

RUNS = "runs"
"""The group that holds one group a run."""

UNCHECKED = -1
"""Value of `Row.wrong` where the result was not verified."""


def _stored(kind: str, meaning: str, unit: str = "") -> dict[str, str]:
    """Describe a stored field: its NumPy type (``"str"`` is text of any length), meaning and unit."""
    return {"stored": kind, "meaning": meaning, "unit": unit}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: half a line of nccl-tests' table, out of place or in place."""

    collective: str = field(metadata=_stored("S32", "name of the call, such as all_reduce"))
    backend: str = field(metadata=_stored("S64", "backend that ran it"))
    algorithm: str = field(metadata=_stored("S64", "algorithm as requested; auto if none was"))
    dtype: str = field(
        metadata=_stored("S32", "nccl-tests' name of the type where it has one, else NumPy's")
    )
    op: str = field(metadata=_stored("S64", "reduction; none where nothing is reduced"))
    root: int = field(metadata=_stored("<i8", "root rank; -1 where there is none"))
    bytes: int = field(metadata=_stored("<i8", "nccl-tests' size column", "B"))
    count: int = field(metadata=_stored("<i8", "nccl-tests' count column", "elements"))
    in_place: bool = field(metadata=_stored("u1", "1 in place, 0 out of place"))
    time: float = field(metadata=_stored("<f8", "time of one operation, as printed", "us"))
    algbw: float = field(metadata=_stored("<f8", "bytes / time", "1e9 B/s"))
    busbw: float = field(metadata=_stored("<f8", "algbw times the collective's factor", "1e9 B/s"))
    wrong: int = field(
        metadata=_stored("<i8", "elements that differ from the expected ones; -1 if not checked")
    )
    iterations: int = field(metadata=_stored("<i8", "repetitions over which time is averaged"))
    finished: float = field(
        default=0.0, metadata=_stored("<f8", "when it was measured, since 1970-01-01 UTC", "s")
    )

    @property
    def case(self) -> tuple[str, str, str, str, str, int, int, int]:
        """What the two halves of one printed line have in common."""
        return (*self.block, self.dtype, self.op, self.root, self.bytes, self.count)

    @property
    def block(self) -> tuple[str, str, str]:
        """What the lines of one printed table have in common."""
        return (self.collective, self.backend, self.algorithm)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Where one rank ran."""

    rank: int = field(metadata=_stored("<i8", "rank"))
    group: int = field(metadata=_stored("<i8", "colour of the group in a split run; 0 otherwise"))
    host: str = field(metadata=_stored("str", "host name"))
    node: int = field(metadata=_stored("<i8", "number of the node, counted by hpccomm"))
    pid: int = field(metadata=_stored("<i8", "process id"))
    cores: str = field(metadata=_stored("str", "cores that the process may use, such as 0-3,8"))
    device: int = field(metadata=_stored("<i8", "CUDA device number; -1 for host memory"))
    device_hex: str = field(
        metadata=_stored("str", "PCI address of the device; empty for host memory")
    )
    device_info: str = field(
        metadata=_stored("str", "name of the device; host memory if it has none")
    )
    driver: str = field(
        metadata=_stored("str", "version of CUDA that its driver supports; empty for host memory")
    )


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Further facts about one rank's device, beside its line in the table of ranks."""

    uuid: str = field(metadata=_stored("str", "the device's UUID, the same in every process"))
    link: str = field(
        default="",
        metadata=_stored("str", "its fastest link to others, from NVML; empty if unknown"),
    )
    peak: float = field(
        default=0.0,
        metadata=_stored("<f8", "bandwidth of that link in one direction; 0 if unknown", "1e9 B/s"),
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a measurement, by the names that nccl-tests' JSON has for them."""

    minimum_bytes: int = field(metadata=_stored("<i8", "-b", "B"))
    maximum_bytes: int = field(metadata=_stored("<i8", "-e", "B"))
    step_factor: int = field(metadata=_stored("<i8", "-f; 0 if sizes grow by step_bytes"))
    step_bytes: int = field(metadata=_stored("<i8", "-i; 0 if sizes grow by step_factor", "B"))
    iterations: int = field(metadata=_stored("<i8", "-n"))
    warmup_iters: int = field(metadata=_stored("<i8", "-w"))
    aggregated_iterations: int = field(default=1, metadata=_stored("<i8", "-m"))
    validation: int = field(default=1, metadata=_stored("<i8", "-c; 0 is unchecked"))
    graph: int = field(default=0, metadata=_stored("<i8", "-G"))
    blocking_collectives: int = field(default=0, metadata=_stored("<i8", "-z"))
    average: int = field(
        default=1, metadata=_stored("<i8", "-a: 0 rank 0, 1 mean, 2 minimum, 3 maximum over ranks")
    )
    report_cputime: bool = field(default=False, metadata=_stored("u1", "-C"))
    report_timestamps: bool = field(default=False, metadata=_stored("u1", "-S"))
    per_iter_timing: bool = field(default=False, metadata=_stored("u1", "-I"))
    per_iter_skip: int = field(default=0, metadata=_stored("<i8", "-K"))
    parallel_init: bool = field(default=False, metadata=_stored("u1", "-p"))
    unalign: int = field(default=0, metadata=_stored("<i8", "-u", "elements"))
    local_register: int = field(
        default=0, metadata=_stored("<i8", "-R: 1 if arrays were in registered memory")
    )
    run_cycles: int = field(default=1, metadata=_stored("<i8", "-N; 0 is endless"))
    nthreads: int = field(default=1, metadata=_stored("<i8", "ranks that are threads of a process"))
    ngpus: int = field(default=1, metadata=_stored("<i8", "devices of a thread"))
    stream_null: bool = field(
        default=False, metadata=_stored("u1", "-y: 1 if calls were on CUDA's null stream")
    )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Who made a run, where, and with what: all that is known before it measures.

    Raises
    ------
    UsageError
        If `environment` or `slurm` holds a variable that is not on the allow-list.
    """

    started: datetime = field(metadata=_stored("str", "ISO 8601 with the offset from UTC"))
    user: str = field(metadata=_stored("str", "login name"))
    launcher: str = field(
        metadata=_stored("str", "what started the ranks, such as mpiexec or srun")
    )
    arguments: tuple[str, ...] = field(metadata=_stored("str[]", "the command line, program first"))
    skipped: tuple[str, ...] = field(
        metadata=_stored("str[]", "combinations that were skipped because they do not exist")
    )
    config: Config = field(
        metadata=_stored("group", "settings of the measurement, one attribute each")
    )
    ranks: tuple[RankInfo, ...] = field(
        metadata=_stored("table", "where each rank ran, in order of rank")
    )
    versions: Mapping[str, str] = field(
        metadata=_stored("group", "versions, one attribute for each library")
    )
    environment: Mapping[str, str] = field(
        metadata=_stored("group", "environment variables of the allow-list")
    )
    slurm: Mapping[str, str] = field(
        metadata=_stored("group", "the Slurm job's variables; empty outside Slurm")
    )
    simulation: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_stored("group", "what was simulated, and how; empty or absent for a measurement"),
    )
    devices: tuple[DeviceInfo, ...] = field(
        default=(),
        metadata=_stored(
            "table", "each rank's device, in order of rank; no lines or absent for host memory"
        ),
    )

    def __post_init__(self) -> None:
        for name in self.environment:
            if not _listed(name, ENVIRONMENT):
                raise UsageError(
                    f"environment variable {name} is not on the allow-list of results files; "
                    "choose variables with hpccomm.results.schema.recorded_environment"
                )
        for name in self.slurm:
            if not _listed(name, SLURM):
                raise UsageError(
                    f"Slurm variable {name} is not on the allow-list of results files; "
                    "choose variables with hpccomm.results.schema.recorded_slurm"
                )
        if self.started.tzinfo is None:
            raise UsageError("started needs a time zone: use datetime.now().astimezone()")
        if not self.ranks:
            raise UsageError("ranks is empty: a run has at least one rank")


LOCATION: tuple[tuple[str, str, str], ...] = (
    ("first_sample", "<i8", "first row of samples that belongs to this row"),
    ("repetitions", "<i8", "rows of samples that belong to this row; 0 if none were kept"),
)
"""Columns of the stored table of rows beside those of `Row`: (name, type, meaning)."""

STATE: tuple[tuple[str, str, str], ...] = (
    ("rows", "<i8", "rows written; rows and samples may have space for more, which is not data"),
    ("ended", "<f8", "end of the run in seconds since 1970-01-01 UTC; 0 while it has none"),
    ("status", "S1000", "completed, or failed: and why; empty while the run has no end"),
)
"""Fields of the scalar dataset ``state``: (name, type, meaning)."""

ENVIRONMENT: tuple[str, ...] = (
    "HPCCOMM_*",
    "NCCL_*",
    "UCX_*",
    "FI_*",
    "OMPI_MCA_*",
    "MPICH_*",
    "MPIR_CVAR_*",
    "I_MPI_*",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "LD_LIBRARY_PATH",
)
"""Environment variables that a results file may hold. The whole environment is never stored: it may contain secrets."""

SLURM: tuple[str, ...] = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
)
"""Slurm variables that a results file may hold."""


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that are on the allow-list `ENVIRONMENT`, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if _listed(name, ENVIRONMENT)}


def recorded_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that are on the allow-list `SLURM`, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if _listed(name, SLURM)}


def _listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
