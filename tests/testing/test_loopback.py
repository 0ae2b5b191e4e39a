"""The loopback backend, whose ranks are threads, passes the conformance suite."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from chosen import each_value
from together import LATE, Cases, run_all, together

from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance.case import raises

if TYPE_CHECKING:
    import hpccomm

WORLDS = (1, 1), (2, 2), (4, 4), (5, 2), (8, 3)
"""Numbers of ranks, and how many of them a node has, that run every case with --all alone."""


def run_on(size: int, per_node: int, cases: Cases) -> None:
    """Run cases on threads that are spread over nodes."""
    run_ranks(size, run_all, cases, ranks_per_node=per_node, late_sends=LATE)


@pytest.mark.parametrize(
    "cases",
    [pytest.param(each, id=name) for name, each in together(each_value(conformance.cases()))],
)
def test_conformance(cases: Cases) -> None:
    # Two and three ranks on one node run the suite over MPI.
    run_on(3, 2, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize(
    "cases", [pytest.param(each, id=name) for name, each in together(conformance.cases())]
)
def test_every_case(cases: Cases, world: tuple[int, int]) -> None:
    run_on(*world, cases)


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_gather"])
def test_memory_is_shared_within_a_node(collective: str) -> None:
    def run(comm: "hpccomm.Communicator") -> None:
        x = np.ones(3)
        if comm.num_nodes == 1:
            assert comm.explain(collective, x, algorithm="shm").algorithm == "shm"
            return
        fits = [repr(name) for name, each in ALGORITHMS[collective].items() if not each.shared]
        with raises(UsageError, "'shm'", *fits):
            comm.explain(collective, x, algorithm="shm")

    for per_node in (3, 2):
        run_ranks(3, run, ranks_per_node=per_node)
