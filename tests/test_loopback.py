"""The loopback backend, where ranks are threads, does what every backend must do."""

import pytest

from hpccomm.testing import conformance, run_ranks

SIZES = (1, 2, 3, 4, 5, 8)
TIMEOUT = 60.0


SPREAD = 5
"""Ranks of the runs that place two ranks on a node each, the last node with one."""

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


@pytest.mark.parametrize("case", conformance.cases(), ids=lambda case: case.name)
def test_conformance_on_several_nodes(case: conformance.Case) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    run_ranks(SPREAD, case.run, timeout=TIMEOUT, ranks_per_node=2)
