"""Which cases a run takes of the many that parameters combine to.

``pytest --all`` runs every combination. Without it, a test that is marked ``pairs`` runs only some: as
few as it takes for any two values of two of its parameters to meet in one of them. Most faults depend
on one value or on two that meet, so these cases find nearly all that the whole product finds. The
conformance suite is chosen from in the same way, over its cases and the numbers of ranks.

What is chosen depends on nothing but the cases and their order: it is the same in every run, on every
rank of a job and in every process of pytest-xdist.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest

from hpccomm.testing import conformance

Case = TypeVar("Case")
Values = Mapping[str, Hashable]
"""The value of each parameter of a case, by its name."""
Run = tuple[conformance.Case, Hashable]
"""A case of the conformance suite, and the ranks that run it."""


def pairwise(cases: Sequence[Case], values: Callable[[Case], Values]) -> list[Case]:
    """Return cases in which all pairs of values meet that meet in any of `cases`, in their order.

    Each is the case that brings the most new pairs: a greedy cover of the pairs.
    """
    pairs = [_pairs(values(case)) for case in cases]
    covered: set[Hashable] = set()
    chosen = []
    # A case never brings more new pairs than it once did, so that most need not be counted again.
    most = [(-len(each), number) for number, each in enumerate(pairs)]
    heapq.heapify(most)
    while most:
        before, number = most[0]
        new = -len(pairs[number] - covered)
        if not new:
            heapq.heappop(most)
        elif new > before:
            heapq.heapreplace(most, (new, number))
        else:
            heapq.heappop(most)
            covered |= pairs[number]
            chosen.append(number)
    return [cases[number] for number in sorted(chosen)]


def _pairs(values: Values) -> frozenset[Hashable]:
    """Return the pairs that a case covers; a case of one parameter covers its value."""
    if len(values) == 1:
        return frozenset(values.items())
    return frozenset(combinations(values.items(), 2))


def conformance_runs(runs: Iterable[Run], *, everything: bool) -> list[Run]:
    """Return the runs of the conformance suite that a test run takes: all, or some by pairs."""
    return list(runs) if everything else pairwise(list(runs), _values_of_run)


def _values_of_run(run: Run) -> Values:
    case, world = run
    behaviour = case.name.partition("[")[0]
    section = behaviour.partition(".")[0]
    values: dict[str, Hashable] = {"behaviour": behaviour, "world": world}
    for name, value in case.arguments.items():
        # Such as a collective and its algorithm, or a reduction and a dtype.
        joined = isinstance(value, tuple) and value and not isinstance(value[0], int)
        for number, part in enumerate(value if joined else [value]):
            values[f"{section} {name} {number}"] = part
    return values


def chosen_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests of a run that does not take all: of those marked ``pairs`` only some."""
    tests: dict[Hashable, list[pytest.Function]] = defaultdict(list)
    chosen = set()
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs"):
            tests[item.parent, item.originalname].append(item)
        else:
            chosen.add(item)
    for cases in tests.values():
        chosen.update(pairwise(cases, _values_of_item))
    return chosen


def _values_of_item(item: pytest.Function) -> Values:
    return {name: _hashable(value) for name, value in item.callspec.params.items()}


def _hashable(value: Any) -> Hashable:
    return value if isinstance(value, Hashable) else repr(value)
