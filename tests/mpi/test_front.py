"""The front end's cases on MPI ranks: once, on two ranks, unless ``--all`` is given."""

from typing import TYPE_CHECKING

import pytest
from chosen import each_value
from together import Cases, run_over_mpi, skip_missing, together

import front

if TYPE_CHECKING:
    import hpccomm

RANKS = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test its cases, or one that is skipped."""
    config = metafunc.config
    everything = config.getoption("--all")
    cases = list(front.cases()) if everything else each_value(front.cases())
    each = [pytest.param(part, id=name) for name, part in together(cases)]
    if config.getoption("--with-mpi") and not everything:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size != RANKS:
            skip = pytest.mark.skip(reason=f"runs on {RANKS} ranks, or with --all")
            each = [pytest.param([], id="none", marks=skip)]
    metafunc.parametrize("cases", each)


def test_front(
    cases: Cases, kept_comm: "hpccomm.Communicator", request: pytest.FixtureRequest
) -> None:
    skip_missing(cases)
    run_over_mpi(request, kept_comm, cases)
