"""A rank that is late, lost, or makes other calls than the others, in whole jobs.

Every other rank raises an error that names it, or the job ends with words that name it: never later than the deadline.
"""

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from conftest import Mpiexec, launch_environment

from hpccomm.runtime.lifetime import Status

PROGRAM = """
import json, os, signal, sys, time
import numpy as np
import hpccomm
from hpccomm.gradients import GradientSync

fault, way = sys.argv[1:]
comm = hpccomm.new_comm(timeout=50)
faulty = comm.rank == comm.size - 1
model = {f"p{n}": np.zeros(100, np.float32) for n in range(4)}
sync = GradientSync(comm, model, first_bucket_bytes=1, min_bucket_bytes=0, bucket_bytes=800, timeout=1)

def step(way):
    for view in sync.gradients.values():
        view[...] = comm.rank
    if way == "sync":
        sync.sync()
        return
    for name in reversed(model):
        sync.ready(name)
    sync.wait()

for _ in range(3):
    step(way)
error, begun = None, time.monotonic()
try:
    if faulty and fault == "late":
        time.sleep(2.5)
    if faulty and fault == "lost":
        if way == "ready":
            sync.ready("p3")  # its bucket is under way
        os.kill(os.getpid(), signal.SIGKILL)
    if faulty and fault == "other way":
        way = {"sync": "ready", "ready": "sync"}[way]
    if faulty and fault == "leaves":
        sys.exit(0)
    steps = 2 + faulty * {"a step more": 1, "a step less": -1}.get(fault, 0)
    for _ in range(steps):
        step(way)
    comm.barrier(timeout=1)
except hpccomm.CommunicationError as caught:
    error = caught
told = {"rank": comm.rank, "error": type(error).__name__, "ranks": getattr(error, "ranks", ())}
told |= {"text": str(error), "seconds": time.monotonic() - begun}
os.write(1, (json.dumps(told) + "\\n").encode())  # at once, so that lines stay whole
"""
DIFFERENT = "the ranks call different things.*rank 2: "
FAULTS = {
    # What is said, and the error of the ranks that live.
    "late": ("rank 2 on node .* has not called all_reduce", "CollectiveTimeout"),
    # Or what Open MPI's launcher or MPICH's says, if it is first.
    "lost": (r"process of rank 2 on node .* has ended|rank 2 with PID|EXIT CODE: 9", "PeerLost"),
    "other way": (DIFFERENT, "RankMismatch"),
    "a step more": (DIFFERENT, "RankMismatch"),
    "a step less": (DIFFERENT, "RankMismatch"),
    "leaves": (r"rank 2 on node \S+ \(pid \d+\) has come to the end of the program", "PeerLost"),
}
ALWAYS = {("late", "ready"), ("other way", "sync")}


def judge(done: subprocess.CompletedProcess[str], fault: str) -> list[dict[str, Any]]:
    """Check that all ranks are told of; return what those tell that were not ended."""
    told = done.stdout + done.stderr
    says, error = FAULTS[fault]
    assert re.search(says, told), told
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        assert row["ranks"] == [2], row
        assert row["seconds"] < 4
        # A late rank finds a communicator that has failed.
        assert row["error"] == error or (row["rank"], row["error"]) == (2, "CommunicatorAborted")
    return rows


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        pytest.param(fault, way, marks=[] if (fault, way) in ALWAYS else pytest.mark.thorough)
        for fault in FAULTS
        for way in ("sync", "ready")
    ],
)
def test_a_faulty_rank_is_named(mpiexec: Mpiexec, fault: str, way: str) -> None:
    done = mpiexec(3, "-c", PROGRAM, fault, way, timeout=60)
    rows = judge(done, fault)
    tell = {0, 1} if fault == "leaves" else {0, 1, 2}
    if {row["rank"] for row in rows} != tell:  # the job was ended
        ended = {137, 9} if fault == "lost" else set()  # Open MPI's launcher, and MPICH's
        ended |= {Status.ENDED}
        # Open MPI's launcher may crash when it has ended a job; a rank that crashes is told of by it.
        assert done.returncode in ended | {-signal.SIGSEGV}, done
        assert not re.search(r"signal 11|Segmentation fault", done.stdout + done.stderr), done


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["sync", "ready"])
def test_ranks_that_survive_a_loss_raise_an_error_that_names_it(
    launcher: str, open_mpi: bool, way: str
) -> None:
    if not open_mpi:
        pytest.skip("only Open MPI survives lost ranks")
    done = subprocess.run(
        [launcher, "--with-ft", "ulfm", "-n", "3", sys.executable, "-c", PROGRAM, "lost", way],
        capture_output=True,
        text=True,
        timeout=30,
        env=launch_environment(),
    )
    told = done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(row["rank"] for row in rows) == [0, 1], told
    for row in rows:
        assert (row["error"], row["ranks"]) == ("PeerLost", [2]), told
