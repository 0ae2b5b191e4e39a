"""Chooses the cases of a run among all combinations of parameters.

``pytest --all`` runs every combination. Without it, the marks of a test say what runs: of one marked
``pairs`` as few cases as it takes for any two values of two of its parameters to meet in one of them.
Most faults depend on one value or on two that meet, so these cases find nearly all that the whole
product finds. Where the parameters have little to do with each other, ``values`` takes each value once, and so
does a run of the conformance suite's cases.

What is chosen depends on nothing but the cases and their order: it is the same in every run, on every
rank of a job and in every process of pytest-xdist.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from hpccomm.testing import conformance

Case = TypeVar("Case")
Values = Mapping[str, Hashable]
"""The value of each parameter of a case, by its name."""

EXAMPLES = 100
"""Examples that hypothesis draws for a run of all cases."""


def everything() -> bool:
    """Whether the run takes all cases: for what is decided as a file is read."""
    return settings.default is not None and settings.default.max_examples >= EXAMPLES


SCHEDULED = ("algorithms", "deterministic")
"""Sections of ``front`` to which every number of ranks is another case."""


def cover(cases: Sequence[Case], shows: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """Return cases that together show all that any of `cases` shows, in their order.

    Each is the one that shows most that those chosen before it do not.
    """
    shown = [frozenset(shows(case)) for case in cases]
    covered: set[Hashable] = set()
    chosen = []
    # A case never shows more that is new than it once did, so that most need not be counted again.
    most = [(-len(each), number) for number, each in enumerate(shown)]
    heapq.heapify(most)
    while most:
        before, number = most[0]
        new = -len(shown[number] - covered)
        if not new:
            heapq.heappop(most)
        elif new > before:
            heapq.heapreplace(most, (new, number))
        else:
            heapq.heappop(most)
            covered |= shown[number]
            chosen.append(number)
    return [cases[number] for number in sorted(chosen)]


def pairwise(cases: Sequence[Case], values: Callable[[Case], Values]) -> list[Case]:
    """Return cases in which all pairs of values meet that meet in any of `cases`, in their order."""
    return cover(cases, lambda case: _pairs(values(case)))


def _pairs(values: Values) -> Iterable[Hashable]:
    return values.items() if len(values) == 1 else combinations(values.items(), 2)


def each_value(cases: Iterable[conformance.Case]) -> list[conformance.Case]:
    """Return cases in which each behaviour takes each value of each of its parameters."""

    def shows(case: conformance.Case) -> Iterable[Hashable]:
        behaviour = behaviour_of(case)
        yield behaviour
        yield from ((behaviour, value) for value in values_of_case(case).items())

    return cover(list(cases), shows)


def behaviour_of(case: conformance.Case) -> str:
    """Return the name of a case without its parameters."""
    return case.name.partition("[")[0]


def values_of_case(case: conformance.Case) -> Values:
    """Return the values of a case's parameters; those of one section have parameters in common."""
    section = case.name.partition(".")[0]
    values: dict[str, Hashable] = {}
    for name, value in case.arguments.items():
        # Such as a collective and its algorithm, or a reduction and a dtype.
        joined = isinstance(value, tuple) and value and not isinstance(value[0], int)
        for number, part in enumerate(value if joined else [value]):
            values[f"{section} {name} {number}"] = part
    return values


MARKS = {
    "pairs": "without --all, as few cases as let any two values of parameters meet",
    "values": "without --all, as few cases as have each value of each parameter",
    "thorough": "with --all alone",
}


def chosen_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests of a run that does not take all: what their marks choose."""
    tests: dict[tuple[str, Hashable], list[pytest.Function]] = defaultdict(list)
    chosen = set()
    for item in items:
        mark = next((name for name in MARKS if item.get_closest_marker(name)), None)
        if mark is None:
            chosen.add(item)
        elif mark != "thorough" and isinstance(item, pytest.Function):
            tests[mark, (item.parent, item.originalname)].append(item)
    for (mark, _), cases in tests.items():
        if mark == "pairs":
            chosen.update(pairwise(cases, _values_of_item))
        else:
            chosen.update(cover(cases, lambda item: _values_of_item(item).items()))
    return chosen


def _values_of_item(item: pytest.Function) -> Values:
    return {name: _hashable(value) for name, value in item.callspec.params.items()}


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)
