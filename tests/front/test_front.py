"""The front end's cases on ranks that are threads: see the package's docstring."""

import pytest
from chosen import SCHEDULED, each_value
from together import LATE, Cases, run_all, skip_missing, together

import front
from hpccomm.testing import conformance, run_ranks

SIZE = 3
"""Ranks on which every case shows."""

SPREAD = (5, 2)
"""A number of ranks, and how many of them a node has: the last has one."""

WORLDS = ((1, 1), (SIZE, SIZE), SPREAD)
"""Worlds that run every case with --all alone."""

SCHEDULED_WORLDS = ((2, 2), (4, 4), (8, 8), (7, 3), (8, 6))
"""More of them, for the sections to which every number of ranks is another case."""

OF_SCHEDULES = [case for case in front.cases() if case.name.startswith(SCHEDULED)]


def named(groups: list[tuple[str, Cases]]) -> pytest.MarkDecorator:
    """Return the mark that gives a test groups of cases."""
    return pytest.mark.parametrize(
        "cases", [each for _, each in groups], ids=[name for name, _ in groups]
    )


def run_on(size: int, per_node: int, cases: Cases) -> None:
    """Run cases on threads that are spread over nodes."""
    skip_missing(cases)
    run_ranks(size, run_all, cases, ranks_per_node=per_node, late_sends=LATE)


@named(together(each_value(front.cases())))
def test_front(cases: Cases, caplog: pytest.LogCaptureFixture) -> None:
    run_on(SIZE, SIZE, cases)
    assert "the watchdog failed" not in caplog.text


@named(together(each_value(OF_SCHEDULES)))
def test_schedules_over_several_nodes(cases: Cases) -> None:
    run_on(*SPREAD, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("world", WORLDS, ids=str)
@named(together(front.cases()))
def test_every_case(cases: Cases, world: tuple[int, int]) -> None:
    run_on(*world, cases)


@pytest.mark.thorough
@pytest.mark.parametrize("world", SCHEDULED_WORLDS, ids=str)
@named(together(OF_SCHEDULES))
def test_schedules(cases: Cases, world: tuple[int, int]) -> None:
    run_on(*world, cases)


def test_these_ranks_suit_every_case() -> None:
    assert max(case.min_size for case in front.cases()) <= SIZE


def test_names_are_unique() -> None:
    every = [*conformance.cases(), *front.cases(), *front.device_cases(front.NCCL)]
    assert len({case.name for case in every}) == len(every)
