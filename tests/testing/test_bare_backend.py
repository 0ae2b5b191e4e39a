"""A right backend with the required abilities only passes; other cases are skipped.

It is found by the entry point of an installed package, as that of any other author.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from installed import announce

import hpccomm
from hpccomm.backends import names
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.__main__ import main

RANKS = 2


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    backends = {"bare": "backend", "wrong": "wrong", "alone": "alone", "absent": "nothing"}
    entries = {name: f"bare_backend:open_{what}" for name, what in backends.items()}
    announce(tmp_path, "bare", "hpccomm.backends", entries)
    monkeypatch.syspath_prepend(tmp_path)
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
    # All that end a communicator: without a side channel, ranks do not hear that it failed elsewhere.
    for name in present if pytestconfig.getoption("--all") else present[::4] + present[-9:]:
        run_ranks(RANKS, cases[name].run, timeout=20, backend=bare)


def test_it_is_one_of_the_backends(bare: str) -> None:
    assert {bare, "wrong", "absent"} <= {*names()}
    with pytest.raises(hpccomm.BackendUnavailable, match=r"'absent' \(bare_backend:open_nothing\)"):
        hpccomm.new_comm("absent")


def test_its_author_runs_the_suite(
    bare: str, capfd: pytest.CaptureFixture[str], shared_job: Callable[..., Any]
) -> None:
    def told(*words: str) -> tuple[int, str, str]:
        try:
            status = main(["--backend", *words])
        except SystemExit as error:
            status = int(str(error.code))
        return status, *capfd.readouterr()

    status, passed, traceback = told(bare, "--ranks=3", "--case=survival.abort")
    assert (status, traceback) == (0, "")
    assert passed.splitlines()[-1] == "rank 0 of 3: 0 failed, 1 passed, 0 skipped"
    status, skipped, _ = told(bare, "--ranks=2", "--case=window.signals")
    assert status == 1  # nothing has passed
    assert f"signals_are_counted skipped: backend {bare!r}: Backend.window returns None" in skipped
    status, wrong, traceback = told("wrong", "--ranks=2", "--case=survival.ranks_answer")
    assert status == 1
    assert "survival.ranks_answer_while_others_wait FAILED" in wrong
    assert "AssertionError: uid is equal on all ranks" in traceback
    status, told_nothing, refused = told("alone", "--ranks=2")
    assert (status, told_nothing) == (2, "")
    assert "threads are no ranks of backend 'alone'; leave --ranks out" in refused
    for words, why in (("--hint=a=1", "'a'"), ("--ranks=0", "n is 0")):
        status, _, refused = told(bare, "--ranks=2", words)
        assert (status, why in refused) == (2, True), refused
    job = shared_job(2, "-m", "hpccomm.testing", "--backend", "mpi", "--case", "groups.")
    assert job.returncode == 0, job.stderr
    assert "rank 1 of 2: 0 failed, 4 passed, 0 skipped" in job.stdout
