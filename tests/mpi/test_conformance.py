"""MPI ranks do what every backend must do."""

from typing import TYPE_CHECKING

import pytest

from hpccomm.testing import conformance

if TYPE_CHECKING:
    import hpccomm

RUNS = [
    pytest.param(case, id=case.name, marks=pytest.mark.mpi(min_size=case.min_size))
    for case in conformance.cases()
]


@pytest.mark.parametrize("case", RUNS)
def test_conformance(case: conformance.Case, comm: "hpccomm.Communicator") -> None:
    if reason := case.missing():
        pytest.skip(reason)
    case.run(comm)
