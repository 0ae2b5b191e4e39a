"""The ReFrame tests of jobs/reframe, run by ReFrame: on this machine, and as Slurm's jobs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpccomm.results.reader import Run, read
from hpccomm.tools.perf.collectives import COLLECTIVES

from .conftest import READY, TESTS, Reframe, Session

SMALL = (
    *("-S", "smallest=64", "-S", "largest=4K", "-S", "factor=8", "-S", "repetitions=5"),
    "-r",
)
MET = {
    "latency": [1e9, -1, None],
    "bus_bandwidth": [1e-9, None, 1e18],
    "average_bus_bandwidth": [1e-9, None, 1e18],
}


def references(place: str, **values: list[float | None]) -> tuple[str, str]:
    return "-S", f"references={json.dumps({place: values})}"


def results(session: Session) -> Run:
    """Read the results file that the only test of a session has kept."""
    (case,) = session.cases
    (run,) = read(Path(case["outputdir"]) / "results.h5")
    return run


def figures(session: Session, place: str) -> dict[str, tuple[float, str]]:
    """Value and unit of each performance variable in ReFrame's report."""
    (case,) = session.cases
    return {
        name.removeprefix(f"{place}:"): (values[0], values[4])
        for name, values in case["perfvalues"].items()
    }


def expected(run: Run) -> dict[str, tuple[float, str]]:
    """Calculate the same from the results file."""
    rows = [row for row in run.rows if not row.in_place]
    smallest, largest = (pick(rows, key=lambda row: row.bytes) for pick in (min, max))
    return {
        "latency": (smallest.time, "us"),
        "bus_bandwidth": (largest.busbw, "GB/s"),
        "average_bus_bandwidth": (float(np.mean([row.busbw for row in run.rows])), "GB/s"),
    }


def assert_passed_with_the_figures_of_its_file(session: Session, place: str) -> Run:
    assert session.status == 0, session.printed
    assert session.summary.startswith("Ran 1/1 test case(s) from 1 check(s) (0 failure(s)")
    run = results(session)
    assert run.status == "completed"
    assert len(run.info.ranks) == 2
    found, truth = figures(session, place), expected(run)
    assert found.keys() == truth.keys()
    for name, (value, unit) in truth.items():
        assert found[name] == (pytest.approx(value, rel=1e-9), unit)
    return run


def test_passes_on_this_machine(reframe: Reframe) -> None:
    session = reframe(
        *("-n", "CpuLatency", *SMALL, "-S", "collective=all_gather"),
        *references("local:cpu", **MET),
    )
    run = assert_passed_with_the_figures_of_its_file(session, "local:cpu")
    assert {(row.collective, row.backend) for row in run.rows} == {("all_gather", "mpi")}
    assert {row.bytes for row in run.rows} == {64, 512, 4096}
    assert {row.iterations for row in run.rows} == {5}


def mpi_library() -> str:
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI;"
        "print(MPI.get_vendor()[0])"
    )
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


@pytest.mark.slow("starts Slurm, ReFrame and a job")
@pytest.mark.parametrize("start", ["srun", pytest.param("mpiexec", marks=pytest.mark.thorough)])
def test_passes_as_a_job_of_slurm(reframe: Reframe, slurm: dict[str, str], start: str) -> None:
    system = "slurm-mpiexec"
    if start == "srun":
        protocol = "pmix" if mpi_library() == "Open MPI" else "pmi2"
        listed = subprocess.run(
            ["srun", "--mpi=list"], capture_output=True, text=True, env=os.environ | slurm
        )
        if protocol not in (listed.stdout + listed.stderr).split():
            pytest.skip(f"this srun has no {protocol}")
        system = f"slurm-{protocol}"
    place = f"{system}:cpu"
    session = reframe(
        *("--system", place, "-n", "CpuLatency", *SMALL), *references(place, **MET), env=slurm
    )
    run = assert_passed_with_the_figures_of_its_file(session, place)
    (case,) = session.cases
    assert run.info.slurm["SLURM_JOB_ID"] == str(case["jobid"])
    assert start in run.info.launcher


def assert_not_met(case: dict[str, Any], impossible: list[str]) -> None:
    """Assert that a case fails by these figures, and by no other."""
    assert case["fail_phase"] == "performance"
    assert "failed to meet reference(s):" in case["fail_reason"]
    for name in impossible:
        assert f" {name}=" in case["fail_reason"]
    assert "average_bus_bandwidth=" not in case["fail_reason"]
    outcomes = {name.split(":")[-1]: values[5] for name, values in case["perfvalues"].items()}
    assert outcomes == {
        "latency": "fail",
        "bus_bandwidth": "fail",
        "average_bus_bandwidth": "pass",
    }


SUBCLASS = """
import reframe as rfm
from hpccomm_perf import HpccommPerf
from reframe.core.builtins import parameter, run_after


@rfm.simple_test
class Site(HpccommPerf):
    valid_systems = ["local:cpu"]
    backend = "mpi"
    smallest = largest = "4K"
    algorithm = "chain"
    flags = ["-d", "double"]
    reference = {
        "local:cpu": {"latency": (1e9, -1, None)},
        "elsewhere": {"latency": (1e-6, None, 0.1)},
    }
"""


@pytest.mark.thorough
def test_a_site_derives_its_own(reframe: Reframe, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(SUBCLASS)
    session = reframe("-r", "-S", "collective=broadcast", tests=own, env={"PYTHONPATH": str(READY)})
    assert session.status == 0, session.printed
    (row, _) = results(session).rows
    assert (row.collective, row.algorithm, row.dtype) == ("broadcast", "chain", "double")
    (case,) = session.cases
    assert case["perfvalues"]["local:cpu:latency"][1:3] == [1e9, -1]


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
    references = {
        "local:cpu": {
            "latency": [1e-6, None, 0.1],
            "bus_bandwidth": [1e9, -0.1, None],
            "average_bus_bandwidth": [1e-9, None, 1e18],
        }
    }
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
    for name, (printed, wrong, _, _) in PROGRAMS.items():
        write_program(folder, name, printed, wrong)
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

    assert (
        "no performance variable latnecy; there are latency, bus_bandwidth"
        in cases["NoVariable"]["fail_reason"]
    )
    assert "1 skipped" in session.summary
    assert "2 nodes are needed, and local:cpu has one" in session.printed
    assert_not_met(cases["NotMet"], ["latency", "bus_bandwidth"])


def write_program(folder: Path, name: str, printed: str, wrong: int | None) -> None:
    out_of_place = {"time": 1.0, "bus_bw": 1.0, "nwrong": 0}
    lines = [
        {"size": 8, "out_of_place": out_of_place, "in_place": out_of_place | {"nwrong": wrong}}
    ]
    table = {"results": lines, "average_bus_bandwidth": {"bandwidth": 1.0}}
    (folder / f"{name}.printed").write_text(printed)
    (folder / f"{name}.table").write_text(json.dumps(table))
    program = folder / name
    program.write_text(
        f"#!/bin/sh\ncp {folder}/{name}.table results.json\ncat {folder}/{name}.printed\n"
    )
    program.chmod(0o755)


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


@pytest.mark.thorough
def test_nccl_on_the_stand_in(reframe: Reframe) -> None:
    session = reframe(
        *("-n", "NcclAllReduce", *SMALL, "-S", "valid_systems=local:cpu"),
        env={"PYTHONPATH": str(TESTS / "standin")},
    )
    run = assert_passed_with_the_figures_of_its_file(session, "local:cpu")
    assert {row.backend for row in run.rows} == {"nccl"}
