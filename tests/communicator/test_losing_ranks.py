"""Jobs that lose a rank and go on: Open MPI with ULFM."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alone import python
from conftest import launch_environment
from losing_ranks import KINDS

import hpccomm
from hpccomm.testing import run_ranks

HELPERS = Path(__file__).parents[1] / "helpers"
CRASHED = ("Signal: Segmentation fault", "ompi_comm_revoke_local", "ompi_comm_activate")
"""What Open MPI 5.0.11 prints where it hears of a loss for a communicator that it is making: it is half made."""
EXAMPLE = HELPERS.parents[1] / "docs/examples/losing_ranks.py"


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


def test_a_failed_communicator_says_which_shrink_goes_on() -> None:
    def main(comm: hpccomm.Communicator) -> None:
        comm.abort()
        comm._core.backend.survival = object()  # as where the library survives a loss
        for excluded in ([1 - comm.rank], iter([1 - comm.rank]), {1 - comm.rank}):
            with pytest.raises(hpccomm.CommunicatorAborted, match=r"call shrink\(\) without ranks"):
                comm.shrink(excluded)

    run_ranks(2, main)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_call_names_the_lost_rank(surviving, kind: str, seed: int) -> None:
    for row in _survivors(surviving(4, HELPERS / "losing_ranks.py", kind, seed), 3):
        assert row["error"] == "PeerLost", row
        assert row["ranks"] == row["victims"], row
        assert row["later"].startswith("CommunicatorAborted"), row
        assert row["name"] == "world.e1"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_a_rank_is_lost_while_others_shrink(surviving, seed: int) -> None:
    for row in _survivors(surviving(4, HELPERS / "losing_ranks.py", "native", seed, 2), 2):
        assert row["error"] == "PeerLost", row
        assert set(row["ranks"]) <= set(row["victims"]), row


def _survivors(done: subprocess.CompletedProcess[str], left: int) -> list[dict[str, Any]]:
    """Return what the ranks that are left have told: they have reduced rightly again."""
    told = done.stdout + done.stderr
    if all(each in told for each in CRASHED):
        pytest.skip("Open MPI crashed, since a rank was lost while it made a communicator")
    assert done.returncode == 0, told
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(row["rank"] for row in rows) == sorted(set(range(4)) - set(rows[0]["victims"]))
    assert [(row["size"], row["right"]) for row in rows] == [(left, True)] * left, told
    return rows


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

IDLE = """
comm.all_reduce(np.ones(8))
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)  # the watchdog finds it meanwhile
for _ in range(2):
    try:
        comm.all_reduce(np.ones(8))
    except hpccomm.CommunicationError as error:
        print(type(error).__name__, error.ranks, error.communicator, flush=True)
comm.finalize()
"""

APART = """
x = np.ones(10)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
received = comm.recv(x, 1, async_op=True)
time.sleep(2)  # its loss is found meanwhile
for call in (comm.barrier, comm.barrier, received.wait):
    try:
        call()
    except hpccomm.CommunicationError as error:
        print(type(error).__name__, error.operation, flush=True)
comm.finalize()
"""

LATE = """
comm.all_reduce(np.ones(8), algorithm="native")
comm.barrier()
if comm.rank == 1:
    time.sleep(4)
try:
    for _ in range(2):  # the first may find what the other rank had sent
        comm.all_reduce(np.ones(8), algorithm="native", timeout=1)
except hpccomm.CommunicationError as error:
    print("rank", comm.rank, type(error).__name__, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "program", "told"),
    [
        (4, TWICE, ["world.e2 2 2.0 2.0\nworld.e2 2 2.0 2.0\n"]),
        (2, IDLE, ["PeerLost (1,) world\nCommunicatorAborted (1,) world\n"]),
        (2, APART, ["PeerLost recv\nCommunicatorAborted None\nPeerLost recv\n"]),
        (2, LATE, ["rank 0 CollectiveTimeout\n", "rank 1 "]),
    ],
    ids=[
        "one after another",
        "between two calls",
        "beside an asynchronous call",
        "blocked past the deadline",
    ],
)
def test_a_loss_is_raised_and_what_is_left_goes_on(
    surviving, ranks: int, program: str, told: list[str]
) -> None:
    start = "import os, signal, time, numpy as np, hpccomm\n"
    done = surviving(ranks, "-c", f"{start}comm = hpccomm.new_comm('mpi', timeout=20){program}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(each in done.stdout for each in told), done.stdout + done.stderr


def test_without_ulfm_shrink_says_how_to_launch(launcher: str) -> None:
    program = (
        "import hpccomm\n"
        "comm = hpccomm.new_comm('mpi')\n"
        "try: comm.shrink()\n"
        "except hpccomm.UsageError as error: print(error)\n"
    )
    done = python("-c", program, env=launch_environment())
    assert "start the job with mpiexec --with-ft ulfm" in done.stdout, done.stdout + done.stderr
