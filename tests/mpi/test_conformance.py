"""MPI ranks do what every backend must do.

Each number of ranks takes other cases, unless ``--all`` is given: together, those of 1 to 4 ranks let
every two values of parameters meet, and each number of ranks has each behaviour.
"""

from typing import TYPE_CHECKING

import pytest
from chosen import conformance_runs

from hpccomm.testing import conformance

if TYPE_CHECKING:
    import hpccomm

RANKS = (2, 1, 3, 4)
"""What any ranks suit is done by two: one communicates nothing, and more take longer."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test the cases that this number of ranks runs."""
    cases = conformance.cases()
    config = metafunc.config
    if config.getoption("--with-mpi") and not config.getoption("--all"):
        from mpi4py import MPI

        size = MPI.COMM_WORLD.size
        possible = [
            (case, ranks)
            for case in cases
            for ranks in dict.fromkeys((*RANKS, size))
            if ranks >= case.min_size
        ]
        runs = conformance_runs(possible, everything=False)
        cases = tuple(case for case, ranks in runs if ranks == size)
    each = [
        pytest.param(case, id=case.name, marks=pytest.mark.mpi(min_size=case.min_size))
        for case in cases
    ]
    metafunc.parametrize("case", each)


def test_conformance(case: conformance.Case, comm: "hpccomm.Communicator") -> None:
    if reason := case.missing():
        pytest.skip(reason)
    case.run(comm)
