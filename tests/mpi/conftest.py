"""Tests that run on every rank of an MPI job, as one test with one outcome: see ``mpi_ranks``.

mpiexec -n 4 python -m pytest --with-mpi tests/mpi
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

# pytest takes hooks and fixtures from here by their names.
from mpi_ranks import *  # noqa: F403
from mpi_ranks import FAILED

import hpccomm


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here as ``mpi``: pytest-mpi then skips it unless ``--with-mpi`` is given."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.mpi)


@pytest.fixture
def comm(request: pytest.FixtureRequest, mpi_comm) -> Iterator[hpccomm.Communicator]:
    """Give a communicator over all ranks, with the library's defaults."""
    made = hpccomm.new_comm(mpi_comm=mpi_comm)
    yield made
    if request.node.stash.get(FAILED, False):
        made.abort()
    else:
        made.finalize()


@pytest.fixture(scope="session")
def kept() -> Iterator[list[hpccomm.Communicator]]:
    """Keep a communicator from test to test, as making one takes longer than most tests do."""
    comms: list[hpccomm.Communicator] = []
    yield comms
    for comm in comms:
        comm.finalize()


@pytest.fixture
def kept_comm(request, kept: list[hpccomm.Communicator]) -> Iterator[hpccomm.Communicator]:
    """Give the one that is kept, or a new one after a failure."""
    if not kept:
        from mpi4py import MPI

        # Its deadline is shorter than that of a test.
        kept.append(hpccomm.new_comm(mpi_comm=MPI.COMM_WORLD.Dup(), timeout=30.0))
    yield kept[0]
    if request.node.stash.get(FAILED, False):
        kept.pop().abort()


@pytest.fixture
def several_on_a_node(comm: hpccomm.Communicator) -> None:
    """Skip a test of memory that ranks share where they cannot."""
    if comm.num_nodes > 1 or comm.size == 1:
        pytest.skip("needs several ranks on one node")
