"""The job that tests share: what it gives of a program, and that one that goes wrong spoils no other."""

import subprocess

import pytest

NAMES = """
import os, sys
from mpi4py import MPI
print(MPI.COMM_WORLD.rank, sys.argv[1:], os.environ.get("HPCCOMM_NAME"), os.getcwd(), "kept" in dir())
kept = 1
sys.exit(4 * MPI.COMM_WORLD.rank)
"""


def test_a_program_has_its_arguments_and_nothing_of_others(shared_job, tmp_path):
    for word, variables in (("first", {"HPCCOMM_NAME": "x"}), ("second", {})):
        job = shared_job(2, "-c", NAMES, word, env=variables, cwd=tmp_path)
        lines = [
            f"{rank} {[word]} {variables.get('HPCCOMM_NAME')} {tmp_path} False" for rank in range(2)
        ]
        assert job.stdout.splitlines() == lines, job.stderr
        assert job.returncode == 4


def test_what_raises_or_hangs_ends_the_job_alone(shared_job):
    job = shared_job(2, "-c", "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: 1 / 0")
    assert job.returncode == 1
    assert "ZeroDivisionError" in job.stderr
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        shared_job(2, "-c", "import time; time.sleep(1000)", timeout=0.5)
    assert "Timeout" in caught.value.stderr, "each rank shows where it is"
    assert shared_job(2, "-m", "hpccomm", "--version").returncode == 0
