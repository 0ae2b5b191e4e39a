"""torch.distributed over the backend: scenarios that jobs of 2 and 4 ranks run, each job once for all of them."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from alone import python
from conftest import launch_environment

HERE = Path(__file__).parent

SECONDS = 400
"""That a job may take, where the cores are busy: each rank imports PyTorch."""

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
    ),
    pytest.mark.slow("PyTorch's import alone takes seconds a rank"),
]


def scenarios(module: str) -> Iterator[str]:
    """Names of a module's functions without parameters, without an import of PyTorch."""
    for node in ast.parse((HERE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and not ast.unparse(node.args):
            yield node.name


NAMES = [name for part in ("starts", "calls", "messages", "programs") for name in scenarios(part)]


@pytest.fixture(scope="module")
def outcome(mpiexec: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[str, int], str]:
    """What became of a scenario on that many ranks. One job does all."""

    @cache
    def of(ranks: int) -> dict[str, str]:
        done = mpiexec(ranks, HERE / "scenarios.py", timeout=SECONDS)
        told = dict.fromkeys(NAMES, done.stderr)
        for line in done.stdout.split("scenario ")[1:]:
            which, _, became = line.partition(": ")
            told[which] = became.strip()
        return told

    return lambda name, ranks: of(ranks)[name]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_scenario(outcome: Callable[[str, int], str], name: str, ranks: int) -> None:
    assert outcome(name, ranks) == "ok"


GLOO_PASSES = HERE / "gloo_passes.txt"
"""The tests of PyTorch's `DistributedTest` that pass on Gloo, with the numbers of ranks for which they do: what
``distributed_tests.py`` says of Gloo with PyTorch 2.13.0 and 2.14.1, which agree."""

REFUSED = {"gloo", "gloo_subgroup", "failure_order", "wait_all_ranks"}
"""What fails of ``test_monitored_barrier_...`` with PyTorch 2.13, which refuses `monitored_barrier`."""

WORDED = {"gloo", "failure_order"}
"""What fails on 3 ranks with others: off rank 0 the text of the error is hpccomm's. See docs/how_to/pytorch.rst."""


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_passes_on_gloo(
    mpiexec: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, ranks: int
) -> None:
    """PyTorch's own tests of a backend pass. One that hangs or crashes ends its job, and another job goes on."""
    pytest.importorskip("expecttest", reason="PyTorch's tests take it")
    lines = map(str.split, GLOO_PASSES.read_text().splitlines())
    # On two ranks there are no groups of some ranks, and no third one to send or come late.
    names = [
        name
        for name, *passing in lines
        if str(ranks) in passing and (ranks == 2 or re.search("group|send|recv|barrier", name))
    ]
    left, passed, output = names, set(), ""
    while left:
        folder = tmp_path / left[0]
        done = mpiexec(
            ranks, HERE / "distributed_tests.py", folder, "hpccomm", *left, timeout=SECONDS
        )
        output += done.stdout + done.stderr
        passed |= set(re.findall(r"^ended (\w+) passed$", done.stdout, re.MULTILINE))
        begun = re.findall(r"^begun (\w+)$", done.stdout, re.MULTILINE) or left[:1]
        left = [name for name in left if name not in begun]
    kinds = REFUSED if version("torch").startswith("2.13.") else WORDED if ranks == 3 else ()
    # One that passes is no exception any more.
    exceptions = {f"test_monitored_barrier_{kind}" for kind in kinds}
    assert set(names) - passed == exceptions & set(names), output


def test_faults(mpiexec: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Every rank gets an error that names rank and call, and no rank crashes."""
    done = mpiexec(2, HERE / "faults.py", timeout=SECONDS)
    assert done.stdout.count(": ok") == 10, done.stdout + done.stderr
    assert "Segmentation" not in done.stderr


def test_lost_rank(launcher: str, open_mpi: bool) -> None:
    if not open_mpi:
        pytest.skip("only Open MPI survives lost ranks")
    done = subprocess.run(
        [launcher, "--with-ft", "ulfm", "-n", "2", sys.executable, HERE / "faults.py", "loss"],
        capture_output=True, text=True, timeout=SECONDS, env=launch_environment(), check=False,
    )  # fmt: skip
    assert "fault loss: ok" in done.stdout, done.stdout + done.stderr


def test_the_example_of_the_docs(mpiexec: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = mpiexec(2, HERE.parents[1] / "docs/examples/train_torch.py", timeout=SECONDS)
    loss = done.stdout.partition("2 ranks, loss ")[2]
    assert loss, done.stdout + done.stderr
    assert float(loss) < 2


@pytest.mark.parametrize("library", ["accelerate", "lightning", "transformers"])
def test_libraries_run_after_init(
    mpiexec: Callable[..., subprocess.CompletedProcess[str]], library: str
) -> None:
    """16 samples, 2 at a time on each of 2 ranks: each library knows that there are several."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = mpiexec(2, HERE / "libraries.py", library, timeout=SECONDS)
    assert done.stdout.count("hpccomm: 4 steps of 2 ranks") == 2, done.stdout + done.stderr


def test_torchrun_without_mpi() -> None:
    """The error says how to start the program."""
    program = "import torch.distributed as dist, hpccomm.torch; dist.init_process_group('hpccomm')"
    words = ["--nproc-per-node=2", "--standalone", "--no-python", sys.executable, "-c", program]
    done = python("-m", "torch.distributed.run", *words, timeout=SECONDS)
    assert done.returncode != 0
    assert "LaunchError" in done.stderr
    assert "mpiexec -n 2" in done.stderr


SPAWNED = """
import sys, torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    import hpccomm.torch
    try:
        hpccomm.torch.init()
    except hpccomm.LaunchError as error:
        print("refused", error, flush=True)
    hpccomm.torch.init(rank=0, world_size=1)
    print("ranks", dist.get_world_size(), flush=True)
if __name__ == "__main__":
    # PyTorch finds the backend by itself, and that loads neither MPI nor CUDA.
    assert "hpccomm" in dist.Backend.backend_list
    assert not {"mpi4py", "cupy", "hpccomm.communicator"} & set(sys.modules)
    mp.spawn(work, nprocs=2)
"""


def test_processes_of_spawn_are_no_groups_of_one_in_silence(tmp_path: Path) -> None:
    """As open-mpi/ompi#11861 and pytorch/pytorch#28244 had it: each process trained alone."""
    (tmp_path / "program.py").write_text(SPAWNED)
    done = python(str(tmp_path / "program.py"), timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == done.stdout.count("mpiexec -n N") == 2, done.stdout
    assert done.stdout.count("ranks 1") == 2, done.stderr
