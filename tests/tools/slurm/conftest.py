"""A real Slurm, and a folder of its own for the jobs of each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest takes fixtures from here by their names.
from slurm_jobs import Slurm, one_node

__all__ = ["one_node"]


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
