"""Cases of the conformance suite, or of ``front``, that make one test of several on ranks that they share.

Starting ranks, making communicators and agreeing on an outcome cost more than most cases do. A failure
names its case.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from chosen import behaviour_of

from hpccomm.testing import conformance

if TYPE_CHECKING:
    import hpccomm

Cases = list[conformance.Case]

MOST = 16
"""Cases of a test: more of them would take long."""


def together(cases: Iterable[conformance.Case]) -> list[tuple[str, Cases]]:
    """Return groups of cases of a section, in their order, with names for them.

    Cases that need a module are apart, as they may be skipped.
    """
    groups: list[tuple[str, Cases]] = []
    for (section, _), each in groupby(cases, lambda case: (section_of(case), case.needs)):
        members = list(each)
        for first in range(0, len(members), MOST):
            part = members[first : first + MOST]
            ends = [behaviour_of(case).removeprefix(f"{section}.") for case in part]
            groups.append((f"{section}.{'..'.join(dict.fromkeys((ends[0], ends[-1])))}", part))
    return groups


def section_of(case: conformance.Case) -> str:
    """Return the part of a case's name before that of its behaviour."""
    return behaviour_of(case).rpartition(".")[0]


def skip_missing(cases: Cases) -> None:
    """Skip a test whose cases need a module that is not installed."""
    if reason := cases[0].missing():
        pytest.skip(reason)


def run_all(comm: "hpccomm.Communicator", cases: Cases) -> None:
    """Run those cases that so many ranks suit, one after the other. Each rank calls it."""
    for case in cases:
        if case.min_size <= comm.size:
            case.run(comm)


def run_over_mpi(comm: "hpccomm.Communicator", cases: Cases) -> None:
    """Do the same on the ranks of an MPI job, of which none goes on when a case failed on any."""
    from mpi4py import MPI

    for case in cases:
        if case.min_size > comm.size:
            continue
        fault: Exception | None = None
        try:
            case.run(comm)
        except Exception as error:  # noqa: BLE001 (raised below)
            fault = error
        failed = MPI.COMM_WORLD.allgather(fault is not None)
        if fault is not None:
            raise fault
        ranks = [rank for rank, bad in enumerate(failed) if bad]
        assert not ranks, f"case {case.name} failed on ranks {ranks}"
