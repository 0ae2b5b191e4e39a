"""The loopback backend, where ranks are threads, does what every backend must do."""

import pytest

from hpccomm.testing import conformance, run_ranks

SIZES = (1, 2, 3, 4, 5, 8)
TIMEOUT = 60.0


RUNS = [
    pytest.param(case, size, id=f"{case.name}-{size}")
    for case in conformance.cases()
    for size in SIZES
    if size >= case.min_size
]


@pytest.mark.parametrize(("case", "size"), RUNS)
def test_conformance(case: conformance.Case, size: int) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    run_ranks(size, case.run, timeout=TIMEOUT)
