"""The loopback backend, where ranks are threads, does what every backend must do."""

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from hpccomm.testing import conformance, run_ranks

if TYPE_CHECKING:
    import hpccomm

SIZES = (1, 2, 3, 4, 5, 8)
SPREAD = 5
"""Ranks of the runs that place two ranks on a node each, the last node with one."""
TIMEOUT = 60.0

# Starting ranks costs more than most cases do: those of one behaviour share them.
BEHAVIOURS = {
    name: tuple(cases)
    for name, cases in groupby(conformance.cases(), lambda case: case.name.partition("[")[0])
}
RUNS = [
    pytest.param(name, size, nodes, id=f"{name}-{size}{'' if nodes == 1 else f'-on-{nodes}-nodes'}")
    for name, cases in BEHAVIOURS.items()
    for size, nodes in (*((size, 1) for size in SIZES), (SPREAD, -(-SPREAD // 2)))
    if size >= cases[0].min_size
]


@pytest.mark.parametrize(("name", "size", "nodes"), RUNS)
def test_conformance(name: str, size: int, nodes: int) -> None:
    cases = [case for case in BEHAVIOURS[name] if size >= case.min_size]
    if reason := cases[0].missing():
        pytest.skip(reason)

    def run(comm: "hpccomm.Communicator") -> None:
        for case in cases:
            case.run(comm)

    run_ranks(size, run, timeout=TIMEOUT, ranks_per_node=None if nodes == 1 else 2)
