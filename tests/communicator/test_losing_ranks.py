"""Jobs that lose a rank and go on: Open MPI with ULFM. `chaos` loses one in every kind of operation."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HEAD, launch_environment
from ranked import on_threads

import hpccomm

CRASHED = ("Signal: Segmentation fault", "ompi_comm_revoke_local", "ompi_comm_activate")
"""What Open MPI 5.0.11 prints where it hears of a loss for a communicator that it is making: it is half made."""
EXAMPLE = Path(__file__).parents[2] / "docs/examples/losing_ranks.py"


@pytest.fixture(scope="module")
def surviving(launcher: str, open_mpi: bool):
    """Start a program on n ranks in a job that survives the loss of some."""
    if not open_mpi:
        pytest.skip("only Open MPI survives lost ranks")

    def run(ranks: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [launcher, "--with-ft", "ulfm", "-n", str(ranks), sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=90,
            env=launch_environment() | {"HPCCOMM_DUMP_DIR": ""},
        )

    return run


def test_the_example_loses_a_rank_and_finishes_right(surviving) -> None:
    done = surviving(3, EXAMPLE)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "PeerLost: all_reduce" in done.stdout, told
    assert "rank 2 is lost" in done.stdout
    assert "world.e1 goes on with 2 ranks" in done.stdout
    assert "pi is 3.1415876" in done.stdout


ON_DEVICES = """
import os, signal
import cupy, numpy as np
import hpccomm
comm = hpccomm.new_comm("nccl", timeout=60.0)
cupy.cuda.Device(comm.device).use()
x = cupy.full(4, comm.rank + 1, np.float32)
comm.all_reduce(x, async_op=True).wait(block=True)
if comm.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.all_reduce(x, async_op=True).wait(block=True)
except hpccomm.PeerLost as lost:
    assert lost.ranks == (2,), lost.ranks
    left = comm.shrink()
x = cupy.full(4, comm.rank + 1, np.float32)
print(left.name, left.backends["cuda"], left.all_reduce(x).get().tolist(), left.node_comm.size, flush=True)
"""


def test_nccl_begins_anew_without_the_lost_rank(surviving, tmp_path, monkeypatch) -> None:
    """On the stand-in. What has failed is not shrunk by NCCL, which could block for ever: no log tells that it cannot."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'tests/standin'}")
    (program := tmp_path / "program.py").write_text(ON_DEVICES)
    done = surviving(3, program)
    assert done.stdout == "world.e1 nccl [3.0, 3.0, 3.0, 3.0] 2\n" * 2, done.stderr
    assert "stand-in" not in done.stderr
    assert "cannot shrink" not in done.stderr


@on_threads(2)
def test_a_failed_communicator_says_which_shrink_goes_on(comm: hpccomm.Communicator) -> None:
    comm.abort()
    # As where the library survives a loss, which threads do not.
    comm._core.backend.survival = object()
    for excluded in ([1 - comm.rank], iter([1 - comm.rank]), {1 - comm.rank}):
        with pytest.raises(hpccomm.CommunicatorAborted, match=r"call shrink\(\) without ranks"):
            comm.shrink(excluded)


TWICE = """
for epoch in range(3):
    if comm.rank == comm.size - 1 and epoch < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while epoch < 2:
            comm.all_reduce(np.ones(10))
    except hpccomm.PeerLost as lost:
        assert lost.ranks == (comm.size - 1,), lost.ranks
        comm = comm.shrink()
same = comm.shrink()
assert same.name == "world.e3" and same.size == comm.size
node = same.node_comm.all_reduce(np.ones(3))
group = same.split(0)
print(comm.name, comm.size, node[0], group.all_reduce(np.ones(3))[0], flush=True)
"""

LATE = """
comm.all_reduce(np.ones(8), algorithm="native")
comm.barrier()
if comm.rank == 1:
    time.sleep(4)  # past the deadline of the other rank, which nothing tells this one
try:
    for _ in range(2):  # the first may find what the other rank had sent
        comm.all_reduce(np.ones(8), algorithm="native", timeout=1)
except hpccomm.CommunicationError as error:
    print("rank", comm.rank, type(error).__name__, flush=True)
"""


TOGETHER = """
draw = np.random.default_rng({})
moments = comm.broadcast_object(time.time() + np.sort(draw.uniform(0.1, 0.3, 2)))
if comm.rank % 2:
    until = moments[comm.rank // 2] - time.time()
    threading.Timer(until, os.kill, (os.getpid(), signal.SIGKILL)).start()
lost = False
while True:
    try:
        comm = comm.shrink() if lost else comm
        lost = False
        summed = comm.all_reduce(np.full(1000, comm.rank + 1.0))
        if comm.size == 2:
            break
    except (hpccomm.PeerLost, hpccomm.CommunicatorAborted) as error:
        assert comm.size < 4 or set(error.ranks) <= {{1, 3}}, error.ranks
        lost = True
print(comm.size, summed[0], flush=True)
"""


LOSSES = {
    f"another while others shrink-{seed}": (4, TOGETHER.format(seed), ["2 3.0\n2 3.0\n"])
    for seed in range(5)
} | {
    "one after another": (4, TWICE, ["world.e2 2 2.0 2.0\nworld.e2 2 2.0 2.0\n"]),
    "blocked past the deadline": (2, LATE, ["rank 0 CollectiveTimeout\n", "rank 1 "]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_raised_and_what_is_left_goes_on(surviving, loss: str) -> None:
    ranks, program, told = LOSSES[loss]
    done = surviving(ranks, "-c", f"{HEAD}comm = hpccomm.new_comm('mpi', timeout=20){program}")
    if all(each in done.stdout + done.stderr for each in CRASHED):
        pytest.skip("Open MPI crashed, since a rank was lost while it made a communicator")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(each in done.stdout for each in told), done.stdout + done.stderr
