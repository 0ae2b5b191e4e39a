"""torch.distributed over the backend: scenarios that jobs of 2 and 4 ranks run, each job once for all of them."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import launch_environment

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
    ),
    pytest.mark.slow("PyTorch's import alone takes seconds a rank"),
]


def scenarios(module: str) -> Iterator[str]:
    """Names in a module's SCENARIOS, without an import of PyTorch."""
    for node in ast.parse((HERE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SCENARIOS":
            yield from map(ast.unparse, node.value.elts)


NAMES = [
    name for module in ("starts", "calls", "messages", "programs") for name in scenarios(module)
]


@pytest.fixture(scope="module")
def outcomes(
    mpiexec: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[[int], dict[str, str]]:
    """What became of each scenario on that many ranks, by its name."""
    known: dict[int, dict[str, str]] = {}

    def of(ranks: int) -> dict[str, str]:
        if ranks not in known:
            done = mpiexec(ranks, HERE / "scenarios.py", timeout=280)
            parts = done.stdout.split("scenario ")[1:]
            known[ranks] = dict(each.split(": ", 1) for each in parts)
            known[ranks]["the job"] = done.stderr
        return known[ranks]

    return of


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_scenario(outcomes: Callable[[int], dict[str, str]], name: str, ranks: int) -> None:
    became = outcomes(ranks)
    assert became.get(name, became["the job"]).strip() == "ok"


def test_faults(mpiexec: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Every rank gets an error that names rank and call, and no rank crashes."""
    done = mpiexec(2, HERE / "faults.py", timeout=200)
    assert done.stdout.count(": ok") == 9, done.stdout + done.stderr
    assert "Segmentation" not in done.stderr


def test_lost_rank(launcher: str, open_mpi: bool) -> None:
    if not open_mpi:
        pytest.skip("only Open MPI survives lost ranks")
    done = subprocess.run(
        [launcher, "--with-ft", "ulfm", "-n", "2", sys.executable, HERE / "faults.py", "loss"],
        capture_output=True, text=True, timeout=120, env=launch_environment(), check=False,
    )  # fmt: skip
    assert "fault loss: ok" in done.stdout, done.stdout + done.stderr


def test_the_example_of_the_docs(mpiexec: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = mpiexec(2, HERE.parents[1] / "docs/examples/train_torch.py", timeout=120)
    loss = done.stdout.partition("2 ranks, loss ")[2]
    assert loss, done.stdout + done.stderr
    assert float(loss) < 2


def test_torchrun_without_mpi() -> None:
    """The error says how to start the program."""
    program = "import torch.distributed as dist, hpccomm.torch; dist.init_process_group('hpccomm')"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--no-python",
         sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "LaunchError" in done.stderr
    assert "mpiexec -n 2" in done.stderr


def test_entry_point_only_registers() -> None:
    """PyTorch finds the backend by itself, and that loads neither MPI nor CUDA."""
    program = (
        "import sys, torch.distributed as dist\n"
        "assert 'hpccomm' in dist.Backend.backend_list\n"
        "loaded = {'mpi4py', 'cupy', 'hpccomm.communicator'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
