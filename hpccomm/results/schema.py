"""The contents of a results file, described once for the writer, the reader and the documentation.

The dataclasses are the columns. The annotation of a field has its meaning. If the Python type does not say how it is stored,
the annotation also says this. The HDF5 types, the CSV heading and the tables of ``docs/reference/results.rst`` are all
derived from `columns`.

Nothing here imports h5py: code that measures can describe a run without a file.
"""

import fnmatch
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import nan
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from hpccomm.errors import UsageError
from hpccomm.results.files import RUNS, as_utf8

UNCHECKED = -1
"""Value of `Row.wrong` if the result was not verified."""

REQUIRED_FRACTION = 0.9
"""The default for the required fraction of an expected rate, as in nccl-tests."""

SIMULATED_BACKEND = "simulated"
"""The backend in the rows of a simulation."""


class Column(NamedTuple):
    """A stored field.

    Attributes
    ----------
    name : str
        Its name in the file.
    kind : str
        Its NumPy type. ``str`` is text of any length, and ``S32`` is text of at most 32 bytes.
    meaning : str
        A phrase for the documentation.
    unit : str
        Its unit, or an empty text.
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""


_KINDS: Mapping[Any, str] = {bool: "u1", int: "<i8", float: "<f8", str: "str", datetime: "str"}


@functools.cache
def columns(table: Any) -> tuple[Column, ...]:
    """Return the stored fields of one of the dataclasses below, in order.

    The annotation of a field has its Python type, its meaning, its unit, and its kind if the type does not say it. Unit and
    kind may be left out.
    """
    fields = []
    for name, hint in get_type_hints(table, include_extras=True).items():
        python_type, meaning, *more = get_args(hint)
        unit, kind = (*more, "", "")[:2]
        fields.append(Column(name, kind or _kind(python_type), meaning, unit))
    return tuple(fields)


def _kind(python_type: Any) -> str:
    """Return how values of a type are stored: as text or a number, a list or an object of JSON."""
    if get_origin(python_type) is tuple:
        return "list"
    return _KINDS.get(python_type, "object")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: half a line of nccl-tests' table, out of place or in place."""

    collective: Annotated[str, "name of the call, such as all_reduce", "", "S32"]
    backend: Annotated[str, "backend that ran it", "", "S64"]
    algorithm: Annotated[str, "algorithm as requested; auto if none was", "", "S64"]
    dtype: Annotated[str, "nccl-tests' name of the type where it has one, else NumPy's", "", "S32"]
    op: Annotated[str, "reduction; none where nothing is reduced", "", "S64"]
    root: Annotated[int, "root rank; -1 without one"]
    bytes: Annotated[int, "nccl-tests' size column", "B"]
    count: Annotated[int, "nccl-tests' count column", "elements"]
    in_place: Annotated[bool, "1 in place, 0 out of place"]
    time: Annotated[float, "time of one operation, as printed", "us"]
    algbw: Annotated[float, "bytes / time", "1e9 B/s"]
    busbw: Annotated[float, "algbw times the collective's factor", "1e9 B/s"]
    wrong: Annotated[int, "elements that differ from the expected ones; -1 if not checked"]
    iterations: Annotated[int, "repetitions in the average time"]
    finished: Annotated[float, "when it was measured, since 1970-01-01 UTC", "s"] = 0.0

    @property
    def case(self) -> tuple[str, str, str, str, str, int, int, int]:
        """The common part of the two halves of one printed line."""
        return (*self.block, self.dtype, self.op, self.root, self.bytes, self.count)

    @property
    def block(self) -> tuple[str, str, str]:
        """The common part of the lines of one printed table."""
        return (self.collective, self.backend, self.algorithm)

    @property
    def placement(self) -> str:
        """``"in place"`` if input and output were one array, else ``"out of place"``."""
        return "in place" if self.in_place else "out of place"


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of a row: the spread of its times, and the time of an isolated operation.

    A repetition back to back has the time of its slowest rank. For an isolated repetition, the ranks start together. Its
    time goes from the earliest start to the latest end on their common clock.
    """

    median: Annotated[float, "of the repetitions back to back; NaN if none were kept", "us"]
    low: Annotated[float, "their 5th percentile", "us"]
    high: Annotated[float, "their 95th percentile", "us"]
    sync: Annotated[
        str, "how ranks were synchronised for isolated repetitions; empty if none", "", "S16"
    ] = ""
    isolated: Annotated[float, "median of the isolated repetitions; NaN without any", "us"] = nan
    isolated_low: Annotated[float, "their 5th percentile", "us"] = nan
    isolated_high: Annotated[float, "their 95th percentile", "us"] = nan
    certain_low: Annotated[
        float,
        "lower end of the 95 % confidence interval of isolated; NaN if there are too few",
        "us",
    ] = nan
    certain_high: Annotated[float, "its upper end", "us"] = nan
    late: Annotated[int, "isolated repetitions that were discarded, as a rank was late"] = 0
    clock_error: Annotated[float, "bound of the error between the ranks' clocks", "us"] = nan
    variant: Annotated[
        str, "which of two interleaved variants was measured; empty if there was one", "", "S128"
    ] = ""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Where one rank ran. An omitted fact is unknown."""

    rank: Annotated[int, "rank"]
    group: Annotated[int, "color of the group in a split run; 0 otherwise"] = 0
    host: Annotated[str, "host name"] = "unknown"
    node: Annotated[int, "number of the node, counted by hpccomm"] = 0
    pid: Annotated[int, "process id"] = 0
    cores: Annotated[str, "cores that the process may use, such as 0-3,8"] = ""
    device: Annotated[int, "CUDA device number; -1 for host memory"] = -1
    device_hex: Annotated[str, "PCI address of the device; empty for host memory"] = ""
    device_info: Annotated[str, "name of the device; without one, host memory"] = "unknown"
    driver: Annotated[str, "version of CUDA that its driver supports; empty for host memory"] = ""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Further facts about one rank's device, beside its entry among the ranks."""

    uuid: Annotated[str, "the device's UUID, the same in every process"]
    link: Annotated[str, "its fastest link to others, from NVML; empty if unknown"] = ""
    peak: Annotated[float, "bandwidth of that link in one direction; 0 if unknown", "1e9 B/s"] = 0.0


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a measurement, by the names that nccl-tests' JSON has for them."""

    minimum_bytes: Annotated[int, "-b", "B"]
    maximum_bytes: Annotated[int, "-e", "B"]
    step_factor: Annotated[int, "-f; 0 if sizes grow by step_bytes"]
    step_bytes: Annotated[int, "-i; 0 if sizes grow by step_factor", "B"]
    iterations: Annotated[int, "-n"]
    warmup_iters: Annotated[int, "-w"]
    aggregated_iterations: Annotated[int, "-m"] = 1
    validation: Annotated[int, "-c; 0 is unchecked"] = 1
    graph: Annotated[int, "-G"] = 0
    blocking_collectives: Annotated[int, "-z"] = 0
    average: Annotated[int, "-a: 0 rank 0, 1 mean, 2 minimum, 3 maximum over ranks"] = 1
    report_cputime: Annotated[bool, "-C"] = False
    report_timestamps: Annotated[bool, "-S"] = False
    per_iter_timing: Annotated[bool, "-I"] = False
    per_iter_skip: Annotated[int, "-K"] = 0
    parallel_init: Annotated[bool, "-p"] = False
    unalign: Annotated[int, "-u", "elements"] = 0
    local_register: Annotated[int, "-R: 1 if arrays were in registered memory"] = 0
    run_cycles: Annotated[int, "-N; 0 is endless"] = 1
    nthreads: Annotated[int, "ranks that are threads of a process"] = 1
    ngpus: Annotated[int, "devices of a thread"] = 1
    stream_null: Annotated[bool, "-y: 1 if calls were on CUDA's null stream"] = False


@dataclass(frozen=True, slots=True)
class RunInfo:
    """User, host, settings and versions of a run: all facts known before it measures.

    Raises
    ------
    UsageError
        If `environment` or `slurm` holds a variable that is not on the allow-list.
    """

    started: Annotated[datetime, "ISO 8601 with the offset from UTC"]
    user: Annotated[str, "login name"]
    launcher: Annotated[str, "what started the ranks, such as mpiexec or srun"]
    arguments: Annotated[tuple[str, ...], "the command line, program first"]
    skipped: Annotated[tuple[str, ...], "combinations that were skipped because they do not exist"]
    config: Annotated[Config, "settings of the measurement"]
    ranks: Annotated[tuple[RankInfo, ...], "where each rank ran, an object each, in order of rank"]
    versions: Annotated[Mapping[str, str], "version of each library"]
    environment: Annotated[Mapping[str, str], "environment variables of the allow-list"]
    slurm: Annotated[Mapping[str, str], "the Slurm job's variables; empty outside Slurm"]
    simulation: Annotated[
        Mapping[str, str], "what was simulated, and how; empty for a measurement"
    ] = field(default_factory=dict)
    devices: Annotated[
        tuple[DeviceInfo, ...],
        "each rank's device, in order of rank; empty for host memory",
    ] = ()
    machine: Annotated[
        Mapping[str, str],
        "what the nodes are, by the name of each fact; empty if unknown",
    ] = field(default_factory=dict)
    series: Annotated[
        Mapping[str, str],
        "the series that the run is a launch of: name, launch, launches, variant; or the two variants that it "
        "measured in turns: base, new; empty if none",
    ] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len({rank.node for rank in self.ranks})

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in order of rank."""
        return list(dict.fromkeys(rank.host for rank in self.ranks))

    def __post_init__(self) -> None:
        for stored, allowed in (("environment", ENVIRONMENT), ("slurm", SLURM)):
            for name in getattr(self, stored):
                if not _listed(name, allowed):
                    raise UsageError(
                        f"variable {name} is not on the allow-list of results files; choose variables "
                        f"with hpccomm.results.schema.recorded_{stored}"
                    )
        if self.started.tzinfo is None:
            raise UsageError("started needs a time zone: use datetime.now().astimezone()")
        if not self.ranks:
            raise UsageError("ranks is empty: a run has at least one rank")


RANKS = -1
"""Stands for the number of ranks in the shape of an entry."""


class BesideArray(NamedTuple):
    """An array beside a table: each line of the table has a part of it.

    Attributes
    ----------
    name : str
        Its name in the file.
    kind : str
        Its NumPy type.
    wide : tuple of int
        The shape of one entry; `RANKS` stands for the number of ranks.
    first, many : str
        Names of two columns of the table: the first entry of a line's part, and the number of its entries.
    """

    name: str
    kind: str
    wide: tuple[int, ...]
    first: str
    many: str

    @property
    def crc(self) -> str:
        """The name of the column with the checksum of a line's part."""
        return f"{self.name}_crc"

    @property
    def location(self) -> tuple[Column, ...]:
        """The columns of the table that locate a line's part."""
        return (
            Column(self.first, "<i8", f"first entry of {self.name} that belongs to this line"),
            Column(self.many, "<i8", "how many do; 0 if none were kept"),
            Column(self.crc, "<u4", "CRC-32 of these"),
        )


class TableForm(NamedTuple):
    """A stored table, and the arrays beside it.

    Attributes
    ----------
    name : str
        Its name in the file.
    own : tuple of Column
        The columns that its lines hold.
    beside : tuple of BesideArray
        The arrays.
    """

    name: str
    own: tuple[Column, ...]
    beside: tuple[BesideArray, ...]

    @property
    def location(self) -> tuple[Column, ...]:
        """The columns behind its own: places of parts of the arrays, and checksums."""
        located = [column for array in self.beside for column in array.location]
        return (*located, Column("crc", "<u4", "CRC-32 of all columns before it"))


class SectionKind(NamedTuple):
    """A kind of group in a results file: runs or recordings.

    Attributes
    ----------
    group : str
        The name of the group that has all groups of this kind.
    prefix : str
        The name of each of them, without the number.
    forms : tuple of TableForm
        Its tables.
    """

    group: str
    prefix: str
    forms: tuple[TableForm, ...]


ROWS = TableForm(
    "rows",
    (*columns(Row), *columns(Timing)),
    (
        BesideArray("samples", "<f8", (RANKS,), "first_sample", "repetitions"),
        BesideArray("isolated", "<f8", (RANKS, 2), "first_isolated", "isolated_repetitions"),
    ),
)
"""The rows of a run."""

RUN = SectionKind(RUNS, "run", (ROWS,))
"""A run."""

STATUS = Column("status", "S1000", "completed, or failed: and why; empty while it has no end")

ENVIRONMENT: tuple[str, ...] = (
    *("HPCCOMM_*", "NCCL_*", "UCX_*", "FI_*"),
    *("OMPI_MCA_*", "MPICH_*", "MPIR_CVAR_*", "I_MPI_*"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
    *("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND"),
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    "LD_LIBRARY_PATH",
)
"""Environment variables that a results file may hold. The whole environment is never stored: it may contain secrets."""

_OF_MPIEXEC = {f"OMPI_MCA_{name}" for name in ("PREFIXES", "cpu_type", "initial_wdir", "num_procs")}
"""Variables that Open MPI's mpiexec sets, and that no user has chosen."""

SLURM: tuple[str, ...] = (
    *("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION"),
    *("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"),
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION"),
    *("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
)
"""Slurm variables that a results file may hold."""


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that are on the allow-list `ENVIRONMENT` and are a user's, sorted by name."""
    names = sorted(environ.keys() - _OF_MPIEXEC)
    return {name: as_utf8(environ[name]) for name in names if _listed(name, ENVIRONMENT)}


def recorded_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` that are on the allow-list `SLURM`, sorted by name."""
    return {name: as_utf8(environ[name]) for name in sorted(environ) if _listed(name, SLURM)}


def _listed(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
