"""A right backend without windows and shared memory passes; other cases are skipped."""

from typing import Any

import bare_backend
import pytest

from hpccomm import backends
from hpccomm.testing import conformance, run_ranks

RANKS = 2


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(backends._BUILT_IN, "bare", bare_backend.__name__)
    return "bare"


def each_behaviour() -> dict[str, conformance.Case]:
    """The first case of each."""
    found: dict[Any, conformance.Case] = {}
    for case in conformance.cases():
        if case.min_size <= RANKS:
            found.setdefault(case.function, case)
    return {case.name: case for case in found.values()}


def reasons(cases: dict[str, conformance.Case], backend: str) -> dict[str, str]:
    def missing(comm) -> dict[str, str]:
        return {name: case.missing(comm) or "" for name, case in cases.items()}

    of_ranks = run_ranks(RANKS, missing, backend=backend)
    assert of_ranks[0] == of_ranks[1]
    return of_ranks[0]


def test_what_a_backend_lacks_is_why_cases_are_skipped(bare: str) -> None:
    for name, why in reasons(each_behaviour(), bare).items():
        section = name.partition(".")[0]
        expected = {
            "window": "backend 'bare': Backend.window returns None",
            "arrivals": "backend 'bare': it has no arrivals",
            "shared_memory": "backend 'bare': Transport.shared is None",
        }
        assert why == expected.get(section, ""), name


def test_nothing_is_skipped_on_a_backend_that_has_all() -> None:
    assert set(reasons(each_behaviour(), "loopback").values()) == {""}


def test_it_passes_the_suite(bare: str, pytestconfig: pytest.Config) -> None:
    cases = each_behaviour()
    present = [name for name, why in reasons(cases, bare).items() if not why]
    for name in present if pytestconfig.getoption("--all") else present[::4]:
        run_ranks(RANKS, cases[name].run, timeout=20, backend=bare)
