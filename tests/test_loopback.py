"""The loopback backend, where ranks are threads, does what every backend must do."""

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance.check import raises

if TYPE_CHECKING:
    import hpccomm

SIZES = (1, 2, 3, 4, 5, 8)
SCHEDULED = {"algorithms": range(1, 10), "deterministic": range(1, 9)}
"""Sections to which every number of ranks is another case."""
FEW = {"shared_memory": (1, 2, 4)}
"""Sections that make many calls, by algorithms that others run on all these ranks."""
SPREAD = (5, 2)
"""Ranks, and ranks a node, of the runs of all cases on several nodes, the last node with one rank."""
PLACEMENTS = ((2, 1), (3, 2), (4, 2), (6, 3), (6, 1), (7, 3), (8, 3), (8, 6))
"""More of them, for what depends on the nodes."""
TIMEOUT = 60.0

# Starting ranks costs more than most cases do: those of one behaviour share them.
BEHAVIOURS = {
    name: tuple(cases)
    for name, cases in groupby(conformance.cases(), lambda case: case.name.partition("[")[0])
}


def depends_on_nodes(case: conformance.Case) -> bool:
    """Whether ranks do something else in a case when they are placed in another way."""
    return case.name.startswith("deterministic.the") or "hierarchical" in case.name


def runs() -> list[tuple[str, int, int]]:
    """Return behaviours with numbers of ranks, and of ranks a node."""
    found = []
    for name, cases in BEHAVIOURS.items():
        section = name.partition(".")[0]
        sizes = SCHEDULED.get(section) or FEW.get(section, SIZES)
        worlds = [(size, size) for size in sizes]
        worlds.append(SPREAD)
        if section in SCHEDULED and any(map(depends_on_nodes, cases)):
            worlds += PLACEMENTS
        found += [(name, *world) for world in worlds if world[0] >= cases[0].min_size]
    return found


def label(name: str, size: int, per_node: int) -> str:
    """Return a test's id."""
    return f"{name}-{size}" if size == per_node else f"{name}-{size}-by-{per_node}"


@pytest.mark.parametrize(
    ("name", "size", "per_node"), [pytest.param(*run, id=label(*run)) for run in runs()]
)
def test_conformance(name: str, size: int, per_node: int) -> None:
    placed = (size, per_node) in PLACEMENTS
    cases = [case for case in BEHAVIOURS[name] if not placed or depends_on_nodes(case)]
    if reason := cases[0].missing():
        pytest.skip(reason)

    def run(comm: "hpccomm.Communicator") -> None:
        for case in cases:
            case.run(comm)

    run_ranks(size, run, timeout=TIMEOUT, ranks_per_node=per_node)


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
