"""On ranks that are threads, hpccomm's front end does what it should: see the package's docstring."""

import pytest
from together import Cases, run_all, skip_missing, together

import front
from hpccomm.testing import run_ranks

SIZE = 3
"""Ranks on which every case shows."""

WORLDS = ((1, 1), (5, 2))
"""More of them, with --all alone: numbers of ranks, and how many of them a node has."""

GROUPS = together(front.cases())


def run_on(size: int, per_node: int, cases: Cases) -> None:
    """Run cases on threads that are spread over nodes."""
    skip_missing(cases)
    run_ranks(size, run_all, cases, ranks_per_node=per_node)


@pytest.mark.parametrize("cases", [each for _, each in GROUPS], ids=[name for name, _ in GROUPS])
def test_front(cases: Cases) -> None:
    run_on(SIZE, SIZE, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("cases", [each for _, each in GROUPS], ids=[name for name, _ in GROUPS])
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_front_on_other_ranks(world: tuple[int, int], cases: Cases) -> None:
    run_on(*world, cases)


def test_these_ranks_suit_every_case() -> None:
    assert max(case.min_size for case in front.cases()) <= SIZE
