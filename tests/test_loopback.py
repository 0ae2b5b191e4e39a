"""The loopback backend, whose ranks are threads, passes the conformance suite."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from chosen import SCHEDULED, conformance_runs
from together import Cases, run_all, skip_missing, together

from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance.check import raises

if TYPE_CHECKING:
    import hpccomm

World = tuple[int, int]
"""A number of ranks, and how many of them a node has."""

TIMEOUT = 60.0


class Choice(NamedTuple):
    """The ranks on which a run has cases.

    Attributes
    ----------
    one_node : mapping
        Numbers of ranks that share a node, by section.
    otherwise : sequence of int
        Those of the other sections.
    spread : World
        Ranks on several nodes, the last with one rank.
    scheduled : World
        The same for the sections in `SCHEDULED`, and for cases that need more ranks.
    placements : sequence of World
        More of them, for what depends on the nodes.
    """

    one_node: Mapping[str, Sequence[int]]
    otherwise: Sequence[int]
    spread: World
    scheduled: World
    placements: Sequence[World]


ALL = Choice(
    # Many calls by algorithms that other sections run on all these ranks.
    {"algorithms": range(1, 10), "deterministic": range(1, 9), "shared_memory": (1, 2, 4)},
    otherwise=(1, 2, 3, 4, 5, 8),
    spread=(5, 2),
    scheduled=(5, 2),
    placements=((2, 1), (3, 2), (4, 2), (6, 3), (6, 1), (7, 3), (8, 3), (8, 6)),
)
CHOSEN = Choice(
    # Two and three ranks on one node run the suite over MPI.
    {},
    otherwise=(),
    spread=(3, 2),
    scheduled=(5, 2),
    placements=((7, 3),),
)


def depends_on_nodes(case: conformance.Case) -> bool:
    """Whether ranks do something else in a case when they are placed in another way."""
    return case.name.startswith("deterministic.the") or "hierarchical" in case.name


def worlds(case: conformance.Case, *, everything: bool) -> Iterator[World]:
    """Return the ranks on which a case runs, or may be chosen to run."""
    section = case.name.partition(".")[0]
    choice = ALL if everything else CHOSEN
    few = section not in SCHEDULED and case.min_size <= choice.spread[0]
    yield choice.spread if few else choice.scheduled
    for size in choice.one_node.get(section, choice.otherwise):
        yield size, size
    if section in SCHEDULED and depends_on_nodes(case):
        yield from choice.placements


def runs(*, everything: bool) -> Iterator[tuple[str, World, Cases]]:
    """Return names with worlds, and the cases that share a start of ranks there."""
    possible = [
        (case, world)
        for case in conformance.cases()
        for world in worlds(case, everything=everything)
        if world[0] >= case.min_size
    ]
    # Over MPI any two values of their parameters meet, and each behaviour takes each value.
    chosen = conformance_runs(possible, everything=everything, pairs=False)
    for world in dict.fromkeys(world for _, world in chosen):
        for name, cases in together([case for case, each in chosen if each == world]):
            yield name, world, cases


def label(name: str, world: World) -> str:
    """Return a test's id."""
    size, per_node = world
    return f"{name}-{size}" if size == per_node else f"{name}-{size}-by-{per_node}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `test_conformance` its runs."""
    if metafunc.function is test_conformance:
        each = [
            pytest.param(world, cases, id=label(name, world))
            for name, world, cases in runs(everything=metafunc.config.getoption("--all"))
        ]
        metafunc.parametrize(("world", "cases"), each)


def test_conformance(world: World, cases: Cases) -> None:
    skip_missing(cases)
    size, per_node = world
    run_ranks(size, run_all, cases, timeout=TIMEOUT, ranks_per_node=per_node)


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
