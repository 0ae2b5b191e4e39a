"""The front end's cases on ranks that are threads: see the package's docstring."""

import pytest
from chosen import each_value
from together import Cases, run_all, skip_missing, together

import front
from hpccomm.testing import run_ranks

SIZE = 3
"""Ranks on which every case shows."""

WORLDS = ((1, 1), (SIZE, SIZE), (5, 2))
"""Numbers of ranks, and how many of them a node has, that run every case with --all alone."""


def named(groups: list[tuple[str, Cases]]) -> pytest.MarkDecorator:
    """Return the mark that gives a test groups of cases."""
    return pytest.mark.parametrize(
        "cases", [each for _, each in groups], ids=[name for name, _ in groups]
    )


def run_on(size: int, per_node: int, cases: Cases) -> None:
    """Run cases on threads that are spread over nodes."""
    skip_missing(cases)
    run_ranks(size, run_all, cases, ranks_per_node=per_node)


@named(together(each_value(front.cases())))
def test_front(cases: Cases) -> None:
    run_on(SIZE, SIZE, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("world", WORLDS, ids=str)
@named(together(front.cases()))
def test_every_case(cases: Cases, world: tuple[int, int]) -> None:
    run_on(*world, cases)


def test_these_ranks_suit_every_case() -> None:
    assert max(case.min_size for case in front.cases()) <= SIZE
