"""The scripts of ``jobs/`` find the library of the ``mpiexec`` that they are given, and say what is missing."""

import subprocess
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.mark.parametrize(
    "launcher", ["mpiexec (Open MPI) 5.0.7", "mpiexec (OpenRTE) 4.1.6", "HYDRA build details:"]
)
def test_where_a_folder_has_two_libraries_the_launcher_decides(
    tmp_path: Path, launcher: str
) -> None:
    # As Debian 13 and Ubuntu 24.04 have them, with mpich and openmpi-bin; mpi4py takes libmpi.so.12, MPICH's, if it is not told.
    for name in (
        "bin/mpiexec",
        "lib/x86_64-linux-gnu/libmpi.so.12",
        "lib/x86_64-linux-gnu/libmpi.so.40",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    mpiexec = tmp_path / "bin/mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{launcher}'\n")
    mpiexec.chmod(0o755)
    script = f'source {JOBS}/environment.sh; mpiexec={mpiexec} find_site_library; echo "${{exported[*]}}"'
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    library = f"MPI4PY_LIBMPI={tmp_path}/lib/x86_64-linux-gnu/libmpi.so.40"
    assert (library in done.stdout) == ("Open" in launcher)


def test_virtual_hosts_are_asked_for_by_number() -> None:
    done = subprocess.run(["bash", JOBS / "virtual_cluster.sh"], capture_output=True, text=True)
    assert (done.returncode, "give --nodes and --ranks-per-node" in done.stderr) == (2, True)
