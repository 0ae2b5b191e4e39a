"""The stages of the acceptance on GPUs: what each runs, takes and needs, by what they tell a minute."""

from typing import NamedTuple

GPU, CUPY, NVRTC, NCCL = "GPU", "CuPy", "NVRTC and CUDA's headers", "NCCL"
JOB, TORCH, TWO_GPUS = "mpiexec", "PyTorch", "two GPUs"
ONE = (GPU, CUPY, NVRTC, NCCL, "numpy", "ml_dtypes")
"""Needs of one process; packages by their names."""
RANKS = (*ONE, "mpi4py", JOB)
PERF = (*RANKS, "h5py", "tqdm")
TESTS = ("pytest", "hypothesis")
BOTH = (*RANKS, *TESTS, "pytest-mpi")
FRONT = "tests/cuda/test_front.py"
OF_ONE_RANK = ("tests/cuda/test_one_rank.py", "tests/cuda/test_folding.py")

PREFLIGHT_SECONDS = 30
"""What the look at the machine takes of a command."""


class Command(NamedTuple):
    """What Python is given, on how many ranks (0: no job, no MPI), with which variables.

    It is a program that prints verdicts, or ``-m`` and what the exit status is the verdict of. `launcher`
    has options of Open MPI's mpiexec: other ones do not run it.
    """

    words: tuple[str, ...]
    ranks: int = 0
    variables: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is run, as text."""
        return ", ".join([" ".join(self.words), f"ranks: {max(self.ranks, 1)}", *self.variables])


class Stage(NamedTuple):
    """A stage, the most seconds that it may take, and what must be there.

    ``perf-2`` is of the kind ``perf``, on 2 ranks. One without commands finds how ranks share a GPU.
    """

    name: str
    seconds: int
    needs: tuple[str, ...]
    commands: tuple[Command, ...] = ()


def program(name: str, *words: str, ranks: int = 0, launcher: tuple[str, ...] = ()) -> Command:
    """Return a program of benchmarks/, which prints verdicts itself."""
    return Command((f"benchmarks/device_{name}.py", *words), ranks, launcher=launcher)


def overhead(ranks: int, order: str) -> Command:
    """Return the host's time of a call; the variable costs every user of NCCL in the process."""
    words = ("benchmarks/device_overhead.py", "--blocks", "101")
    return Command(words, ranks, (f"NCCL_LAUNCH_ORDER_IMPLICIT={order}",))


def perf(ranks: int, most: str, *sweep: str) -> Command:
    """Return a sweep that is verified."""
    sizes = ("-b", "8", "-e", most, "-f", "64", "-n", "5", "--output", "{results}")
    return Command(("-m", "hpccomm", "perf", *sweep, *sizes), ranks)


def tests(ranks: int, *words: str) -> Command:
    """Return a run of tests, but for those that need the stand-in, or another kind of run."""
    marks = "not standin" if ranks else "not standin and not mpi"
    job = ("--with-mpi",) if ranks else ()
    options = ("-p", "no:cacheprovider", "-o", "faulthandler_timeout=120", "-m", marks, "--all")
    return Command(("-m", "pytest", *job, *options, *words), ranks)


NCCLS = ("--backend", "nccl")
SWEEPS = (
    perf(2, "16M", "all_reduce", *NCCLS, "--algorithm", "ring,tree,native"),
    perf(2, "16M", "all_reduce", *NCCLS, "-G", "10"),
    perf(2, "16M", "all_reduce", *NCCLS, "-R", "1"),
    perf(2, "16M", "all_reduce", "--backend", "nccl,mpi"),
)
LOSE = ("two_ranks", "--lose")
ULFM = ("--with-ft", "ulfm")

STAGES = (
    Stage("mixed", 40, (*RANKS, TWO_GPUS), (program("two_ranks", ranks=2),)),
    Stage("process", 120, ONE, (program("one_process"),)),
    Stage("one", 90, (*ONE, *TESTS), (tests(0, *OF_ONE_RANK),)),
    Stage("torch", 120, (*BOTH, TORCH), (program("torch"), tests(0, FRONT, "-k", "frameworks"))),
    Stage("sharing", 60, RANKS),
    Stage("stop", 60, RANKS, (program(*LOSE, "stop", ranks=2),)),
    Stage("kill", 60, RANKS, (program(*LOSE, "kill", ranks=2, launcher=ULFM),)),
    Stage("perf-2", 90, PERF, (perf(2, "1M", "all", *NCCLS),)),
    Stage("overhead-2", 90, RANKS, (overhead(2, "1"), overhead(2, "0"))),
    Stage("front", 120, (*ONE, *TESTS), (tests(0, FRONT, "-k", "nccl"),)),
    Stage("tests-0", 540, (*ONE, *TESTS), (tests(0, "tests/cuda"),)),
    Stage("tests-2", 540, BOTH, (tests(2, "tests/cuda"),)),
    Stage("sweeps", 300, PERF, SWEEPS),
    Stage("bandwidth", 540, PERF, (program("bandwidth", ranks=2),)),
    Stage("overlap", 540, RANKS, (program("overlap", ranks=2),)),
    Stage("perf-1", 300, PERF, (perf(1, "16M", "all", *NCCLS),)),
    Stage("overhead-1", 120, RANKS, (overhead(1, "1"),)),
    Stage("tests-1", 540, BOTH, (tests(1, "tests/cuda"),)),
    Stage("perf-4", 480, PERF, (perf(4, "16M", "all", *NCCLS),)),
    Stage("tests-4", 540, BOTH, (tests(4, "tests/cuda"),)),
)
