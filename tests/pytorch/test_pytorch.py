"""torch.distributed over the backend: scenarios that one job runs, PyTorch's own tests of a backend, and faults."""

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from alone import python
from conftest import Mpiexec, launch_environment

HERE = Path(__file__).parent

SECONDS = 400
"""That a job may take, where the cores are busy: each rank imports PyTorch."""

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
    ),
    pytest.mark.slow("PyTorch's import alone takes seconds a rank"),
]


def test_scenarios(mpiexec: Mpiexec) -> None:
    """What PyTorch programs do, all in one job of 4 ranks, which has groups of 2 and of 3."""
    done = mpiexec(4, HERE / "scenarios.py", timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


GLOO_PASSES = HERE / "gloo_passes.txt"
"""The tests of PyTorch's `DistributedTest` that pass on Gloo on 3 ranks: what ``distributed_tests.py`` says of Gloo
with PyTorch 2.13.0 and 2.14.1, which agree. On 2 ranks there are no groups of some of them, nor one that comes last."""

REFUSED = {"gloo", "gloo_subgroup", "failure_order", "wait_all_ranks"}
"""What fails of ``test_monitored_barrier_...`` with PyTorch 2.13, which refuses `monitored_barrier`."""

WORDED = {"gloo", "failure_order"}
"""What fails with others: off rank 0 the text of the error is hpccomm's. See docs/how_to/pytorch.rst."""


def test_what_passes_on_gloo(mpiexec: Mpiexec, tmp_path: Path) -> None:
    """PyTorch's own tests of a backend pass. One that hangs or crashes ends its job, and another job goes on."""
    pytest.importorskip("expecttest", reason="PyTorch's tests take it")
    left = names = GLOO_PASSES.read_text().split()
    passed, output = set(), ""
    while left:
        words = (HERE / "distributed_tests.py", tmp_path / left[0], "hpccomm", *left)
        done = mpiexec(3, *words, timeout=SECONDS)
        output += done.stdout + done.stderr
        passed |= set(re.findall(r"^ended (\w+) passed$", done.stdout, re.MULTILINE))
        begun = re.findall(r"^begun (\w+)$", done.stdout, re.MULTILINE) or left[:1]
        left = [name for name in left if name not in begun]
    kinds = REFUSED if version("torch").startswith("2.13.") else WORDED
    # One that passes is no exception any more.
    assert set(names) - passed == {f"test_monitored_barrier_{kind}" for kind in kinds}, output


def test_faults(mpiexec: Mpiexec) -> None:
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


def test_the_example_of_the_docs(mpiexec: Mpiexec) -> None:
    done = mpiexec(2, HERE.parents[1] / "docs/examples/train_torch.py", timeout=SECONDS)
    loss = done.stdout.partition("2 ranks, loss ")[2]
    assert loss, done.stdout + done.stderr
    assert float(loss) < 2


@pytest.mark.parametrize("library", ["accelerate", "lightning", "transformers"])
def test_libraries_run_after_init(mpiexec: Mpiexec, library: str) -> None:
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
