"""The ReFrame tests of jobs/reframe, run by ReFrame: on this machine, and as Slurm's jobs."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import script

from hpccomm.results.reader import Run, read
from hpccomm.tools.perf.collectives import COLLECTIVES

from .conftest import READY, Reframe, Session

SMALL = (
    *("-S", "smallest=64", "-S", "largest=4K", "-S", "factor=8", "-S", "repetitions=5"),
    "-r",
)


def values(case: dict[str, Any], *which: int) -> dict[str, Any]:
    """What ReFrame's report has of each performance variable, at those places of its entry."""
    named = {name.split(":")[-1]: each for name, each in case["perfvalues"].items()}
    return {name: tuple(each[at] for at in which) for name, each in named.items()}


def assert_passed_with_the_figures_of_its_file(session: Session) -> Run:
    assert session.status == 0, session.printed
    assert session.summary.startswith("Ran 1/1 test case(s) from 1 check(s) (0 failure(s)")
    (case,) = session.cases
    (run,) = read(Path(case["outputdir"]) / "results.h5")
    assert run.status == "completed"
    assert len(run.info.ranks) == 2
    rows = [row for row in run.rows if not row.in_place]
    smallest, largest = (pick(rows, key=lambda row: row.bytes) for pick in (min, max))
    mean = np.mean([row.busbw for row in run.rows])
    assert values(case, 0, 4) == {
        "latency": (pytest.approx(smallest.time, rel=1e-9), "us"),
        "bus_bandwidth": (pytest.approx(largest.busbw, rel=1e-9), "GB/s"),
        "average_bus_bandwidth": (pytest.approx(mean, rel=1e-9), "GB/s"),
    }
    return run


SITE = """
import reframe as rfm
from hpccomm_perf import HpccommPerf


@rfm.simple_test
class Site(HpccommPerf):
    valid_systems = ["local:cpu"]
    backend = "mpi"
    algorithm = "ring"
    flags = ["-d", "double"]
    reference = {
        "local:cpu": {"latency": (1e9, -1, None)},
        "elsewhere": {"latency": (1e-6, None, 0.1)},
    }
"""


def test_a_sites_own_passes_on_this_machine(reframe: Reframe, tmp_path: Path) -> None:
    """Derived from a class of jobs/reframe, with further settings on the command line."""
    own = tmp_path / "own.py"
    own.write_text(SITE)
    path = {"PYTHONPATH": str(READY)}
    session = reframe(*SMALL, "-S", "collective=all_gather", tests=own, env=path)
    rows = assert_passed_with_the_figures_of_its_file(session).rows
    made = {(row.collective, row.backend, row.algorithm, row.dtype) for row in rows}
    assert made == {("all_gather", "mpi", "ring", "double")}
    assert {row.bytes for row in rows} == {64, 512, 4096}
    assert {row.iterations for row in rows} == {5}
    assert values(session.cases[0], 1, 2)["latency"] == (1e9, -1)


@pytest.mark.slow("starts Slurm, ReFrame and a job")
@pytest.mark.parametrize("start", ["srun", pytest.param("mpiexec", marks=pytest.mark.thorough)])
def test_passes_as_a_job_of_slurm(
    reframe: Reframe, slurm: dict[str, str], start: str, open_mpi: bool
) -> None:
    protocol = start
    if start == "srun":
        protocol = "pmix" if open_mpi else "pmi2"
        variables = os.environ | slurm
        listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, env=variables)
        if protocol.encode() not in (listed.stdout + listed.stderr).split():
            pytest.skip(f"this srun has no {protocol}")
    place = f"slurm-{protocol}:cpu"
    met = {place: {"latency": [1e9, -1, None], "bus_bandwidth": [1e-9, None, 1e18]}}
    references = ("-S", f"references={json.dumps(met)}")
    session = reframe("--system", place, "-n", "CpuLatency", *SMALL, *references, env=slurm)
    run = assert_passed_with_the_figures_of_its_file(session)
    (case,) = session.cases
    assert run.info.slurm["SLURM_JOB_ID"] == str(case["jobid"])
    assert start in run.info.launcher


GOOD = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1
#
# Collective test concluded: all_reduce
"""


PROGRAMS = {
    "Right": (GOOD, 0, True, ""),
    "Footer": (GOOD.replace("0 OK", "1 FAILED"), 0, False, "Out of bounds values"),
    "Line": (GOOD, 3, False, "numbers of wrong values in the table: {0, 3}"),
    "NotVerified": (GOOD, None, False, "None"),
    "Interrupted": (GOOD.replace("concluded", "interrupted"), 0, False, "test concluded"),
}
"""What a program prints and writes in the place of `hpccomm perf`, and what is said of it."""

CHECKS = """
import reframe as rfm
from hpccomm_perf import HpccommPerf


class Small(HpccommPerf):
    valid_systems = ["local:cpu"]
    backend = "mpi"


@rfm.simple_test
class NoVariable(Small):
    executable = "{folder}/Right"
    references = {"local:cpu": {"latnecy": [1, -1, None]}}


@rfm.simple_test
class TwoNodes(Small):
    nodes = 2


@rfm.simple_test
class NotMet(Small):
    executable = "{folder}/Right"
    references = {"local:cpu": {"latency": [1e-6, None, 0.1], "bus_bandwidth": [1e-9, None, 1e18]}}
"""
CHECK = """

@rfm.simple_test
class {name}(Small):
    executable = "{folder}/{name}"
"""


@pytest.mark.slow("ReFrame runs seven checks")
def test_wrong_results_and_runs_without_an_end_fail(reframe: Reframe, tmp_path: Path) -> None:
    """Also references that are not met or of no variable, and nodes that are not there: all in one run."""
    folder = tmp_path / "programs"
    folder.mkdir()
    text = CHECKS.replace("{folder}", str(folder))
    half = {"time": 1.0, "bus_bw": 1.0, "nwrong": 0}
    for name, (printed, wrong, _, _) in PROGRAMS.items():
        line = {"size": 8, "out_of_place": half, "in_place": half | {"nwrong": wrong}}
        table = {"results": [line], "average_bus_bandwidth": {"bandwidth": 1.0}}
        here = f"cat > results.json <<'E'\n{json.dumps(table)}\nE\ncat <<'E'\n{printed}E"
        script(folder / name, here)
        text += CHECK.format(name=name, folder=folder)
    checks = tmp_path / "checks.py"
    checks.write_text(text)
    session = reframe("-r", tests=checks, env={"PYTHONPATH": str(READY)})
    assert session.status != 0
    cases = {case["name"]: case for case in session.cases}
    for name, (_, _, passes, reason) in PROGRAMS.items():
        case = cases[name]
        assert (case["result"] == "pass") == passes, session.printed
        if not passes:
            assert case["fail_phase"] == "sanity"
            assert reason in case["fail_reason"]

    said = "no performance variable latnecy; there are latency, bus_bandwidth"
    assert said in cases["NoVariable"]["fail_reason"]
    assert "1 skipped" in session.summary
    assert "2 nodes are needed, and local:cpu has one" in session.printed
    case = cases["NotMet"]
    assert case["fail_phase"] == "performance"
    assert "failed to meet reference(s):" in case["fail_reason"]
    outcomes = values(case, 5)
    assert (outcomes["latency"], outcomes["bus_bandwidth"]) == (("fail",), ("pass",))
    assert " latency=" in case["fail_reason"]
    assert " bus_bandwidth=" not in case["fail_reason"]


def test_nccl_gets_a_gpu_for_each_rank(reframe: Reframe, tmp_path: Path) -> None:
    """Not submitted: the script of the job."""
    session = reframe(
        *("--system", "slurm-pmix:gpu", "-n", "NcclAllReduce|CpuLatency", "--dry-run"),
        *("-S", "nodes=2", "-S", "tasks_per_node=4"),
    )
    assert session.summary.startswith("Ran 1/1 "), session.printed
    script = (tmp_path / "stage/slurm-pmix/gpu/hpccomm/NcclAllReduce/rfm_job.sh").read_text()
    for option in ("--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--gpus-per-node=4"):
        assert f"#SBATCH {option}\n" in script
    assert "export SLURM_MPI_TYPE=pmix\n" in script
    assert "\nsrun hpccomm perf all_reduce " in script
    assert " --backend nccl " in script


def test_each_collective_has_a_test(reframe: Reframe) -> None:
    """But the one that takes 2, 4, 8, ... ranks only, and the one that moves nothing."""
    listed = re.findall(r"^- CpuCollectives %each=(\w+)", reframe("-l").printed, re.MULTILINE)
    assert sorted(listed) == sorted(COLLECTIVES.keys() - {"hypercube", "barrier"})
