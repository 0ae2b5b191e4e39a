"""Programs of nccl-tests' names, read by scripts made for nccl-tests."""

import json
import os
import re
import subprocess
import sys

import pytest

from hpccomm.backends.bootstrap import mpi
from hpccomm.errors import ResultsError
from hpccomm.tools.perf import nccl_tests
from hpccomm.tools.perf.nccl_tests import PROGRAMS, make

from ...conftest import launch_environment

# What Slurm and the protocols of MPI libraries set for the task of a step (seen with Slurm 22.05).
NAMES = "SLURM_JOB_ID SLURM_JOBID SLURM_NODELIST SLURM_NTASKS SLURM_TASKS_PER_NODE"
OF_A_JOB = dict(zip(NAMES.split(), ["7", "7", "n1", "1", "1"], strict=True))
OF_A_STEP = OF_A_JOB | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory, launcher):
    folder = tmp_path_factory.mktemp("nccl-tests") / "build"
    assert [file.name for file in make(folder)] == list(PROGRAMS)
    return folder


def run(programs, *words, **variables):
    return subprocess.run(
        [str(programs / words[0]), *words[1:]],
        capture_output=True,
        text=True,
        timeout=100,
        env=launch_environment() | variables,
    )


def rows_between_two_lines(text):
    """Read the table as SuperBench does: between two lines, columns by the words of the heading, from the right."""
    table = re.search(r"out-of-place.*\n((.*\n)*)# Out of bounds values", text)[1]
    heading, _, *rows = (line.lstrip("#").split() for line in table.splitlines())
    place = len(heading) - heading.index("busbw")  # the first is out of place
    return {int(row[0]): float(row[-place]) for row in rows}


@pytest.mark.slow("starts a program alone, and one on two ranks")
def test_a_script_of_nccl_tests_runs_unchanged(programs, tmp_path):
    """The command of SuperBench; and with two ranks in one process, as on a node of two GPUs."""
    sizes = ("-b", "8", "-e", "1K", "-f", "2")
    words = (*sizes, "-c", "1", "-n", "20", "-w", "5", "-G", "0", "-d", "float")
    alone = run(programs, "all_reduce_perf", *words, "-g", "1")
    assert alone.returncode == 0, alone.stderr
    assert list(rows_between_two_lines(alone.stdout)) == [8 << step for step in range(8)]
    document = tmp_path / "two.json"
    one_task = OF_A_STEP | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    words += ("-t1", "--ngpus=2", "-J", str(document))
    two = run(programs, "all_reduce_perf", *words, **one_task)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("#  Rank ") == 2
    results = {
        each["size"]: each["out_of_place"] for each in json.loads(document.read_text())["results"]
    }
    assert [each["nwrong"] for each in results.values()] == [0] * 8
    busbw = {size: round(each["bus_bw"], 2) for size, each in results.items()}
    assert rows_between_two_lines(two.stdout) == busbw


@pytest.mark.thorough
def test_a_program_that_starts_ranks_has_their_exit_status(programs):
    words = ("sendrecv_perf", "-b", "64", "-e", "64", "-g", "2")
    assert run(programs, *words, NCCL_TESTS_MIN_BW="1000").returncode != 0
    assert run(programs, *words, NCCL_TESTS_MIN_BW="0").returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_measures_what_its_name_says(programs, name):
    done = run(programs, name, "-b", "1K", "-e", "1K", "-g", "2")
    assert done.returncode == 0, done.stderr
    assert f"# Collective test starting: {PROGRAMS[name]} " in done.stdout
    assert "Out of bounds values : 0 OK" in done.stdout


def test_other_programs_of_these_names_are_left_alone(tmp_path):
    (tmp_path / "all_reduce_perf").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ResultsError, match="all_reduce_perf is there already, and not from hpc"):
        make(tmp_path)
    assert (tmp_path / "all_reduce_perf").read_text() == "#!/bin/sh\nexit 3\n"
    again = make(tmp_path / "own")
    assert make(tmp_path / "own") == again


def test_flags_that_do_not_fit_are_refused(capsys):
    for devices, message in (("0", "give an integer from 1 up"), ("x", "'x' is not an integer")):
        assert nccl_tests.main(["broadcast_perf", "-g", devices]) == 2
        assert message in capsys.readouterr().err


def test_one_task_starts_a_rank_for_each_device():
    """nccl-tests has them in the one process. No launcher may take the job's one slot, or ask for a step."""
    for variables in (
        OF_A_JOB,  # by salloc
        OF_A_STEP,
        OF_A_STEP | {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.7"},
        OF_A_STEP | {"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "9"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    ):
        environment = nccl_tests.launch_environment(variables | {"OMPI_MCA_btl": "self,sm"})
        assert not environment.keys() & variables.keys() - {"SLURM_JOB_ID"}
        assert environment["OMPI_MCA_btl"] == "self,sm"


TWO_TASKS = OF_A_STEP | {"SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (TWO_TASKS | {"SLURM_STEP_NUM_NODES": "2"}, "srun .* --ntasks-per-node=8"),
        (TWO_TASKS | {"PMI_RANK": "0", "PMI_SIZE": "2"}, "srun .* --ntasks-per-node=16"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpiexec -n 16"),
    ],
)
def test_several_tasks_get_a_line_that_starts_all_ranks(monkeypatch, capsys, variables, line):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert nccl_tests.main(["all_reduce_perf", "-b", "8", "-g", "8"]) == 2
    openmpi = mpi.vendor(mpi.load()).startswith("Open MPI")
    how = f"--mpi={'pmix' if openmpi else 'pmi2'} --overlap --overcommit --ntasks=16"
    line = line.replace(".*", how)
    program = f"{sys.executable} -m hpccomm.tools.perf.nccl_tests all_reduce_perf -b 8\n"
    assert f"start all: {line} {program}" in capsys.readouterr().err


def test_without_a_launcher_a_job_gets_a_line_for_srun(tmp_path):
    """Of a Python that has no mpiexec beside it."""
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), **OF_A_STEP}
    words = ["python", "-m", nccl_tests.RUN_BY, "all_reduce_perf", "-g", "8"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert "no mpiexec is there to start them" in done.stderr
    line = r"start all: srun --mpi=pmi\w+ --overlap --overcommit --ntasks=8 "
    assert re.search(line, done.stderr)


def test_a_program_ends_with_the_status_of_what_it_runs(programs):
    done = run(programs, "broadcast_perf", "-Q", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no flag -Q" in done.stderr
