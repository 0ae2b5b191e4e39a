"""MPI ranks do what every backend must do.

By default two and three ranks run other cases: together, they let every two values of parameters meet,
and each has each behaviour. ``--all`` runs all cases on any number of ranks.
"""

from typing import TYPE_CHECKING

import pytest
from chosen import conformance_runs
from together import Cases, run_over_mpi, skip_missing, together

from hpccomm.testing import conformance

if TYPE_CHECKING:
    import hpccomm

RANKS = (2, 3)
"""What any ranks suit is done by two: more take longer."""


def cases_on(size: int, *, everything: bool) -> Cases:
    """Return the cases that so many ranks run."""
    possible = [
        (case, ranks)
        for case in conformance.cases()
        for ranks in dict.fromkeys((*RANKS, size))
        if ranks >= case.min_size
    ]
    runs = conformance_runs(possible, everything=everything)
    return [case for case, ranks in runs if ranks == size]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test the cases that this number of ranks runs."""
    config = metafunc.config
    everything = config.getoption("--all")
    cases: Cases = list(conformance.cases()[:1])  # is skipped
    if config.getoption("--with-mpi"):
        from mpi4py import MPI

        cases = cases_on(MPI.COMM_WORLD.size, everything=everything)
    # With --all each case is a test, which its name can choose.
    parts = [(case.name, [case]) for case in cases] if everything else together(cases)
    metafunc.parametrize("cases", [pytest.param(part, id=name) for name, part in parts])


def test_conformance(
    cases: Cases, kept_comm: "hpccomm.Communicator", request: pytest.FixtureRequest
) -> None:
    skip_missing(cases)
    run_over_mpi(request, kept_comm, cases)
