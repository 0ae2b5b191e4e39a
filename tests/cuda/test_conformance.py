"""MPI ranks do on device arrays what every backend must do, by each of the three ways."""

from typing import TYPE_CHECKING

import pytest

from hpccomm.testing import conformance
from hpccomm.testing.conformance.devices import WAYS

if TYPE_CHECKING:
    import hpccomm

RUNS = [
    pytest.param(way, case, id=f"{way}-{case.name}", marks=pytest.mark.mpi(min_size=case.min_size))
    for way in WAYS
    for case in conformance.device_cases(way)
]


@pytest.mark.parametrize(("way", "case"), RUNS)
def test_conformance(way: str, case: conformance.Case, comm: "hpccomm.Communicator") -> None:
    if reason := case.missing():
        pytest.skip(reason)
    case.run(comm)
