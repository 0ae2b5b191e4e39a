"""The stages of the acceptance on GPUs, in their order: what each runs, takes and needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

HPCCOMM = ("numpy", "ml_dtypes")
"""Without these hpccomm cannot be imported."""
RESULTS = ("h5py", "tqdm")
TESTS = ("pytest", "hypothesis")

OF_ONE = {"one": "one_process", "threads": "threads", "graphs": "graphs"}


@dataclass(frozen=True)
class Command:
    """A part of a stage.

    Attributes
    ----------
    words : tuple of str
        What Python is given; a program of benchmarks/ by its name.
    ranks : int
        Of the job; 0 starts no job, and needs no MPI.
    title : str
        Of the verdict on its exit status; '' if its own lines are the verdicts.
    variables : dict
        Added to its environment.
    launcher : tuple of str
        Options of the launcher, which must be Open MPI's.
    figures : bool
        Whether its verdicts are on figures, which say little where ranks share a GPU.
    killed : bool
        Whether it kills a rank, so that the launcher's exit status says nothing.
    """

    words: tuple[str, ...]
    ranks: int = 0
    title: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    figures: bool = False
    killed: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes
    ----------
    name : str
        Such as ``perf-2``: of the kind ``perf``, on 2 ranks.
    seconds : int
        The most that it may take.
    commands : tuple of Command
        One after the other.
    packages : tuple of str
        That it needs beside CuPy.
    """

    name: str
    seconds: int
    commands: tuple[Command, ...]
    packages: tuple[str, ...] = HPCCOMM

    @property
    def kind(self) -> str:
        """What ``--stages`` takes beside the name."""
        return self.name.partition("-")[0]

    @property
    def ranks(self) -> int:
        """The most ranks of its commands; 0 if it needs no MPI."""
        return max(command.ranks for command in self.commands)


def stages(ranks: Sequence[int], *, standin: bool) -> list[Stage]:
    """Return all of them, in order. On the stand-in they are as short as they can be."""
    mpi = (*HPCCOMM, "mpi4py")
    some = list(ranks)
    return [
        *(Stage(name, 90, (program(f"device_{of}.py"),)) for name, of in OF_ONE.items()),
        Stage("two", 240, tuple(two(standin)), mpi),
        Stage("overhead", 240, tuple(overhead(standin)), mpi),
        *(Stage(f"perf-{n}", 480, tuple(perf(n, standin)), (*mpi, *RESULTS)) for n in some),
        Stage("tests", 540, (pytest(0, "tests/cuda", "--all"),), (*HPCCOMM, *TESTS)),
        *(
            Stage(
                f"tests-{n}", 540, (pytest(n, "tests/cuda", "--all"),), (*mpi, *TESTS, "pytest-mpi")
            )
            for n in some
        ),
        Stage(
            "torch",
            180,
            (pytest(0, "tests/cuda/test_front.py", "-k", "frameworks", "--all"),),
            (*HPCCOMM, *TESTS, "torch"),
        ),
        Stage("bandwidth", 540, (bandwidth(standin),), (*mpi, *RESULTS)),
        Stage("overlap", 540, (overlap(standin),), mpi),
    ]


def program(name: str, *arguments: str, ranks: int = 0, **how: object) -> Command:
    """Return a program of benchmarks/, which prints verdicts itself."""
    return Command((f"benchmarks/{name}", *arguments), ranks, **how)  # type: ignore[arg-type]


def two(standin: bool) -> Iterable[Command]:
    """Two ranks: calls of each kind, and a rank that is lost."""
    yield program("device_two_ranks.py", ranks=2)
    soon = ("--timeout", "1") if standin else ()
    for how, launcher in (("stop", ()), ("kill", ("--with-ft", "ulfm"))):
        words = ("--lose", how, *soon)
        yield program("device_two_ranks.py", *words, ranks=2, launcher=launcher, killed=True)


def overhead(standin: bool) -> Iterable[Command]:
    """The host's time of a call; NCCL_LAUNCH_ORDER_IMPLICIT costs every user of NCCL in the process."""
    few = ("--calls", "20", "--blocks", "5") if standin else ("--blocks", "101")
    yield program("device_overhead.py", *few, ranks=1, figures=True)
    for order in "10":
        variables = {"NCCL_LAUNCH_ORDER_IMPLICIT": order}
        yield program("device_overhead.py", *few, ranks=2, variables=variables, figures=True)


def perf(ranks: int, standin: bool) -> Iterable[Command]:
    """Every collective verified; of all_reduce also by algorithm, captured, registered, and over MPI."""
    small = ("-b", "8", "-e", "4K", "-f", "64", "-n", "2")
    sizes = small if standin else ("-b", "8", "-e", "16M", "-f", "64", "-n", "5")
    sweeps: list[tuple[str, ...]] = [("all", "--backend", "nccl")]
    if ranks == 2:
        sweeps += [
            ("all_reduce", "--backend", "nccl", "--algorithm", "ring,tree,native"),
            ("all_reduce", "--backend", "nccl", "-G", "10"),
            ("all_reduce", "--backend", "nccl", "-R", "1"),
            ("all_reduce", "--backend", "nccl,mpi"),
        ]
    for sweep in sweeps:
        title = f"perf {' '.join((*sweep, *sizes))}, ranks: {ranks}: every result right"
        words = ("-m", "hpccomm", "perf", *sweep, *sizes, "--output", "{results}")
        yield Command(words, ranks, title)


def pytest(ranks: int, *arguments: str) -> Command:
    """Return a run of tests; tests for one process run without a job."""
    title = f"{' '.join(arguments)}, {f'ranks: {ranks}' if ranks else 'one process'}"
    job = ("--with-mpi",) if ranks else ()
    # What needs the stand-in would be skipped on a GPU, and on the stand-in tests that itself.
    options = ("-p", "no:cacheprovider", "-o", "faulthandler_timeout=120", "-m", "not standin")
    return Command(("-m", "pytest", *job, *options, *arguments), ranks, title)


def bandwidth(standin: bool) -> Command:
    """Return perf's bandwidth against a bare loop's."""
    few = ("--sizes", "1M", "--iters", "3", "--turns", "2") if standin else ()
    return program("device_bandwidth.py", *few, ranks=2, figures=True)


def overlap(standin: bool) -> Command:
    """Return an asynchronous all-reduce beside a matrix product."""
    few = ("--turns", "2", "--milliseconds", "2") if standin else ()
    return program("device_overlap.py", *few, ranks=2)
