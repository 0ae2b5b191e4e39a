"""jobs/virtual_cluster.sh: hosts out of namespaces, what ranks on them do, and that nothing stays."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from conftest import HEAD
from until import until

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "jobs" / "virtual_cluster.sh"
UNAVAILABLE = 77

FEW = "test_nodes or hierarchical or (forms and call) or (arrays_lie_anywhere and auto-plain)"
CASES = f"{FEW} or schedules or forms or arrays_lie_anywhere or groups"
"""What is asked of ranks on several hosts: each collective, by the algorithms that know of hosts,
on arrays that lie anywhere, of few and of many elements, even and uneven, against NumPy."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(launcher: str) -> Iterator[Start]:
    """Start the script: ``start(2, "2,1", "true", link="1gbit")``.

    What still runs at the test's end is killed; the kernel takes its cluster down.
    """
    started = []

    def popen(
        nodes: int, ranks: int | str, *command: str | Path, link: str = ""
    ) -> subprocess.Popen[str]:
        limit = ["--link", link] if link else []
        words = ["bash", SCRIPT, "--nodes", str(nodes), "--ranks-per-node", str(ranks)]
        process = subprocess.Popen(
            [*words, *limit, "--", *command],
            env=os.environ | {"HPCCOMM_MPIEXEC": launcher, "HPCCOMM_VENV": sys.prefix},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()  # if it still runs
        process.communicate()


def ended(process: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str, str]:
    """Wait for the end of a run; return its exit status, output and error output.

    Skips the test where the script says that there can be no cluster.
    """
    output, errors = process.communicate(timeout=timeout)
    if process.returncode == UNAVAILABLE:
        pytest.skip(" ".join(errors.split()))
    return process.returncode, output, errors


def namespaces_of(marker: str = "") -> set[str]:
    """Return the network namespaces of all processes, or of those that have `marker` among their arguments."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if not marker or marker.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.add(str((process / "ns" / "net").readlink()))
    return found


@pytest.mark.slow("three ranks start pytest and import all of hpccomm, on two hosts")
@pytest.mark.parametrize(
    ("nodes", "ranks"),
    [(2, "2,1"), *(pytest.param(nodes, "2", marks=pytest.mark.thorough) for nodes in (2, 3))],
)
def test_collectives_are_exact(start, nodes: int, ranks: str, request) -> None:
    every = request.config.getoption("--all")
    status, output, errors = ended(
        start(
            *(nodes, ranks, sys.executable, "-m", "pytest", "--with-mpi", "--all", "-q"),
            *("tests/mpi/test_conformance.py", "tests/mpi/test_nodes.py"),
            *("-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"),
            *("-k", CASES if every else FEW),
        ),
        timeout=110,
    )
    assert status == 0, output + errors
    (passed,) = re.findall(r"(\d+) passed", output)
    assert int(passed) >= (50 if every else 20), output


# The launcher ends the others when the first one fails: none does before all have written their names.
NAMES = """
cd "$1"
hostname >.$OMPI_COMM_WORLD_RANK && mv .$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_RANK
until [ $(ls | wc -l) -eq 4 ]; do sleep 0.05; done
exit 3
"""


def test_hosts_have_names_and_ranks_and_the_exit_status_is_passed_on(start, tmp_path) -> None:
    marker = uuid4().hex
    status, _, errors = ended(start(3, "2,1,1", "sh", "-c", NAMES, marker, tmp_path))
    assert status == 3, errors
    names = [(tmp_path / str(rank)).read_text().strip() for rank in range(4)]
    assert names == ["host0", "host0", "host1", "host2"]
    assert not namespaces_of(marker)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)],
    ids=str,
)
def test_nothing_is_left_of_a_run_that_is_ended(start, number: signal.Signals, status: int) -> None:
    marker = uuid4().hex
    run = start(2, 1, "sh", "-c", "trap '' TERM INT; while :; do sleep 0.1; done", marker)
    until(lambda: len(namespaces_of(marker)) > 3 or run.poll() is not None)
    if run.poll() is not None:
        ended(run)
    # Those of the two hosts, the launcher's, and this one's, in which the script itself runs.
    ours = str(Path("/proc/self/ns/net").readlink())
    hosts = namespaces_of(marker) - {ours}
    run.send_signal(number)
    assert ended(run)[0] == status
    assert len(hosts) == 3
    until(lambda: not hosts & namespaces_of())
    assert not namespaces_of(marker)


STOPS = """
comm = hpccomm.new_comm(timeout=3)
comm.barrier()
if comm.rank == 3:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    comm.all_reduce(np.ones(3), algorithm="ring")
except hpccomm.CollectiveTimeout as error:
    os.write(1, f"{error.ranks} {error}\\n".encode())
    time.sleep(2)  # Open MPI ends a rank whose peer on another host closes its connections
"""


@pytest.mark.thorough
def test_a_rank_that_is_stopped_on_another_host_is_named_on_all(start: Start) -> None:
    _, output, errors = ended(start(2, 2, sys.executable, "-c", HEAD + STOPS))
    told = re.findall(r"^\(3,\) .*rank 3 on node host1 .* is stopped", output, re.MULTILINE)
    assert len(told) == 3, output + errors


@pytest.mark.slow("two runs on links so slow that only they count")
def test_pairs_names_the_node_with_half_the_link(start: Start, tmp_path: Path) -> None:
    # Messages that take longer than a busy machine keeps a process waiting, and a threshold between half
    # and all.
    pairs = (sys.executable, "-m", "hpccomm", "perf", "pairs", "-b", "512K", "--threshold", "65%")
    words = (*pairs, "--latency-threshold", "1%", "--json", tmp_path / "verdict.json")
    status, output, errors = ended(start(3, 1, *words, link="200mbit,100mbit,200mbit"))
    assert status == 1, output + errors
    assert "# SLOW node host1: bandwidth" in output
    assert output.splitlines()[-1] == "# DRAIN host1"
    assert json.loads((tmp_path / "verdict.json").read_text())["drain"] == ["host1"]
    status, output, errors = ended(start(3, 1, *words, link="100mbit"))
    assert status == 0, output + errors
    assert "# Nothing is slow" in output
