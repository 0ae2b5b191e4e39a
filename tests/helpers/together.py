"""Cases of the conformance suite, or of ``front``, that make one test of several on ranks that they share.

Starting ranks, making communicators and agreeing on an outcome cost more than most cases do. A failure
names its case.
"""

import traceback
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from chosen import behaviour_of
from mpi_ranks import AGREEMENT, Outcome

from hpccomm.testing import conformance

if TYPE_CHECKING:
    import hpccomm

Cases = list[conformance.Case]

LATE = 1
"""A seed of `late_sends`. Threads send as libraries do: what does not wait for its sends is found without MPI."""

MOST, MOST_FAILING = 16, 6
"""Cases of a test: more of them would take long, and those that fail wait for deadlines."""


def together(cases: Iterable[conformance.Case]) -> list[tuple[str, Cases]]:
    """Return groups of cases of a section, in their order, with names for them."""
    groups: list[tuple[str, Cases]] = []
    for section, each in groupby(cases, section_of):
        members = list(each)
        most = MOST_FAILING if section == "failures" else MOST
        for first in range(0, len(members), most):
            part = members[first : first + most]
            ends = [behaviour_of(case).removeprefix(f"{section}.") for case in part]
            groups.append((f"{section}.{'..'.join(dict.fromkeys((ends[0], ends[-1])))}", part))
    return groups


def section_of(case: conformance.Case) -> str:
    """Return the part of a case's name before that of its behaviour."""
    return behaviour_of(case).rpartition(".")[0]


def skip_missing(cases: Cases) -> None:
    """Skip a test whose cases need PyTorch, as their section's name says, where it is not installed."""
    if section_of(cases[0]).endswith("torch"):
        pytest.importorskip("torch")


def run_all(comm: "hpccomm.Communicator", cases: Cases) -> None:
    """Run those cases that so many ranks suit, one after the other. Each rank calls it."""
    for case in cases:
        if case.min_size <= comm.size:
            case.run(comm)


def run_over_mpi(
    request: pytest.FixtureRequest, comm: "hpccomm.Communicator", cases: Cases
) -> None:
    """Do the same on the ranks of an MPI job. None goes on when a case failed on any."""
    agreement = request.config.stash[AGREEMENT]
    for case in cases:
        if case.min_size > comm.size:
            continue
        fault: Exception | None = None
        text = ""
        try:
            case.run(comm)
        except Exception as error:  # noqa: BLE001 (raised below)
            fault, text = error, "".join(traceback.format_exception(error))
        mine = Outcome(f"case {case.name}", "passed" if fault is None else "failed", text)
        outcomes = agreement.exchange(mine)
        agreement.limit()
        if fault is not None:
            raise fault
        ranks = [rank for rank, outcome in enumerate(outcomes) if outcome.kind == "failed"]
        assert not ranks, f"{mine.what} failed on ranks {ranks}"
