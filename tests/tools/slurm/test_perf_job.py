"""jobs/*.sbatch on a real Slurm, on which a node has no GPU."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from slurm_jobs import SWEEP, Slurm

from hpccomm.results.reader import read
from hpccomm.results.writer import Writer
from hpccomm.tools.perf.nccl_tests import make

pytestmark = pytest.mark.slow("starts Slurm, and jobs")

PROGRAM = "programs/all_reduce_perf -b 8 -e 8 -n 2 -g 2"
SAID = f"srun -n2 --overcommit --mpi=pmix {PROGRAM} 2>said"
PASTED = f"{SAID}\neval $(sed -n 's/.*start all: //p' said)"


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (f"srun -n1 --mpi=pmix {PROGRAM}", 2),
        pytest.param(PROGRAM, 2, marks=pytest.mark.thorough),
        pytest.param(PASTED, 4, marks=pytest.mark.thorough),
    ],
)
def test_programs_of_nccl_tests_names_start_ranks_in_a_task(
    slurm: Slurm, launcher: str, protocols: str, lines: str, ranks: int
) -> None:
    """As ``--ntasks-per-node=1 --gpus-per-node=2`` has them; for two tasks the line can be pasted."""
    make(slurm.folder / "programs")
    script = slurm.folder / "script.sh"
    script.write_text(f"#!/bin/bash\n{lines}\n")
    # The tests' own environment would let it start more ranks than there are slots.
    slurm.environment = {
        name: value for name, value in slurm.environment.items() if "_rmaps_" not in name
    }
    job = slurm.submit("--ntasks-per-node=1", str(script))
    assert job.ended() == "COMPLETED", job.printed()
    assert job.printed().count("#  Rank ") == ranks, job.printed()
    assert "# Out of bounds values : 0 OK" in job.printed(), job.printed()


@pytest.mark.parametrize(
    ("start", "ranks"),
    [
        ("srun", 2),  # unless sbatch is told otherwise
        pytest.param("srun", 1, marks=pytest.mark.thorough),
        pytest.param("mpiexec", 2, marks=pytest.mark.thorough),
    ],
)
def test_sweep_ends_in_a_file_named_by_the_job_or_by_its_user(
    slurm: Slurm, launcher: str, protocols: str, start: str, ranks: int
) -> None:
    own = start == "mpiexec"
    told = () if ranks == 2 else (f"--ntasks-per-node={ranks}",)
    more = ("--output", "own.h5") if own else ()
    variables = {"HPCCOMM_MPIEXEC": launcher} if own else {}
    job = slurm.submit(*told, "jobs/perf.sbatch", *SWEEP, *more, **variables)
    job.swept(launcher if own else "srun", ranks, file="own.h5" if own else "")
    assert (slurm.folder / "results").exists() != own


def test_nccl_without_a_gpu_fails_and_says_so(slurm: Slurm) -> None:
    job = slurm.submit("--gpus-per-node=0", "jobs/nccl.sbatch")
    assert (job.ended(), job.status()) == ("FAILED", 2), job.printed()
    assert "NCCL needs a GPU, and on " in job.printed()
    assert "sbatch --gpus-per-node=N" in job.printed()


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [False, True])
def test_acceptance_misses_only_gpus_that_were_asked_for(
    slurm: Slurm, protocols: str, asked: bool
) -> None:
    # This Slurm knows of no GPUs, and would not take the flag that leads to this variable.
    variables = {"SLURM_JOB_GPUS": "0"} if asked else {}
    job = slurm.submit("jobs/acceptance.sbatch", *SWEEP, "-d", "int32,half", **variables)
    state = job.ended()
    assert "== PASS  every result is right on all ranks" in job.printed()
    assert "== PASS  no node, rank or pair is slow" in job.printed()
    if asked:
        assert (state, job.status()) == ("FAILED", 1)
        assert "== FAIL  GPUs: the job asked for some, and on " in job.printed()
    else:
        assert state == "COMPLETED", job.printed()
        assert "== SKIP  GPUs: the job asked for none" in job.printed()


def forged(source: Path, target: Path, seconds: float) -> Path:
    """Write 20 launches of a machine that takes so long for each case of the first run of a file."""
    (run, *_) = read(source)
    for number in range(20):
        slightly = seconds * (1 + number / 1000)  # no two alike
        with Writer(target, run.info) as writer:
            for at, row in enumerate(run.rows):
                samples = np.full_like(run.samples(at), slightly)
                writer.append(replace(row, time=slightly * 1e6), samples)
            writer.end("completed")
    return target


NIGHT = ("all_reduce", "-b", "8", "-e", "8", "-n", "20", "--launches")


@pytest.mark.parametrize("nights", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_nightly_makes_the_first_runs_its_baseline_and_decides(
    slurm: Slurm, protocols: str, nights: int
) -> None:
    job = slurm.submit("jobs/nightly.sbatch", *NIGHT, "1")
    assert job.ended() == "COMPLETED", job.printed()
    assert "== there was no baseline: this run begins it" in job.printed()
    (first,) = (slurm.folder / "results" / "nightly" / "baseline").iterdir()
    assert len(read(first)) == 1
    if nights == 2:  # no rank-sum test decides on one value a side
        job = slurm.submit("jobs/nightly.sbatch", *NIGHT, "1")
        assert (job.ended(), job.status()) == ("FAILED", 2), job.printed()
        assert "No case is decided" in job.printed()
        assert len([*first.parent.iterdir()]) == 2


@pytest.mark.thorough
def test_nightly_fails_when_the_machine_is_slower(
    slurm: Slurm, protocols: str, launcher: str
) -> None:
    once = slurm.folder / "once.h5"
    perf = (sys.executable, "-m", "hpccomm", "perf", *NIGHT[:-1], "--output", str(once))
    slurm.ask(launcher, "-n", "2", *perf)
    nightly = slurm.folder / "results" / "nightly"
    # Against what was much slower, three launches are enough to pass.
    slow = forged(once, slurm.folder / "slow.h5", 1e3)
    passes = slurm.submit("jobs/nightly.sbatch", "--baseline", str(slow), *NIGHT, "3")
    fast = forged(once, slurm.folder / "fast.h5", 1e-9)
    fails = slurm.submit("jobs/nightly.sbatch", "--baseline", str(fast), *NIGHT, "3")
    assert passes.ended() == "COMPLETED", passes.printed()
    assert (fails.ended(), fails.status()) == ("FAILED", 1), fails.printed()
    assert f"== slower than {fast}, or wrong: see above" in fails.printed()
    assert json.loads((nightly / f"{fails.number}.json").read_text())["failed"]
    assert "<failure" in (nightly / f"{fails.number}.xml").read_text()
    assert len(read(fast)) == 20
