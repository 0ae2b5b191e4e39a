"""A real Slurm, which one_node.sh starts on this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_jobs import Slurm

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def one_node() -> Iterator[dict[str, str]]:
    """Give the environment in which commands reach a Slurm of one node, one for each test process."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a Slurm")
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm munge libpmix-dev)")
    # The path of a socket has little room: not pytest's long folder names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    control = ["bash", str(HERE / "one_node.sh")]
    # Jobs that fail leave dumps, and Open MPI's launcher leaves files.
    own = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "HPCCOMM_VENV": sys.prefix,
        "HPCCOMM_DUMP_DIR": "",
        "TMPDIR": str(folder),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name != "HPCCOMM_MPIEXEC"}
    try:
        subprocess.run([*control, "start", folder], check=True, timeout=90)
        yield kept | own
    finally:
        subprocess.run([*control, "stop", folder], check=True, timeout=90)
        shutil.rmtree(folder)


@pytest.fixture
def slurm(one_node: dict[str, str], tmp_path: Path) -> Iterator[Slurm]:
    """Slurm, and a folder of its own for the jobs; ends those that a test has left."""
    found = Slurm(one_node, tmp_path)
    yield found
    found.ask("scancel", "--quiet", "--user=root")


@pytest.fixture
def protocols(slurm: Slurm) -> str:
    """What this srun starts MPI by; skips the test if it is nothing."""
    found = slurm.ask("srun", "--mpi=list")
    if "pmi" not in found:
        pytest.skip("this srun starts no MPI: it has neither pmix nor pmi2")
    return found
