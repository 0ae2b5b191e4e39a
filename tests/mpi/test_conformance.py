"""MPI ranks do what every backend must do.

By default two and three ranks run other cases, in which each behaviour takes each value of its parameters.
``--all`` runs all cases on any number of ranks.
"""

import pytest
from chosen import each_value
from together import Cases, run_over_mpi, together

import hpccomm
from hpccomm.testing import conformance


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test the cases of a run; with --all each case is a test, which its name can choose."""
    cases: Cases = list(conformance.cases())
    if metafunc.config.getoption("--all"):
        parts = [(case.name, [case]) for case in cases]
    else:
        parts = together(each_value(cases))
    metafunc.parametrize("cases", [pytest.param(part, id=name) for name, part in parts])


def test_conformance(cases: Cases, kept_comm: hpccomm.Communicator, request) -> None:
    run_over_mpi(request, kept_comm, cases)
