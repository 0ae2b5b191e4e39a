"""A planted fault in any algorithm is found: its truth is that what was right is so no more.

Each kind of fault that the prover tells apart is told in ``test_proof.py``, where it is planted in one schedule.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest
from proofs import EVERY, Which

from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS
from hpccomm.schedules.proof import ProofCase, Unproven, prove_all
from hpccomm.schedules.schedule import Round, Schedule
from hpccomm.topology import arrange

N = 6
Change = Callable[[Round], list[Round]]


def asked(which: Which) -> ProofCase:
    # All slices and pieces of them are alike, so that no round moves only what is there anyhow.
    count: Any = 24
    if which.collective in BLOCKWISE:
        alike = which.algorithm.uniform or DESCRIPTIONS[which.collective].individual
        count = 3 if alike else [1, 2, 3, 4, 5, 6]
    topology = arrange([0, 1, 1, 0, 2, 2]) if which.name == "hierarchical" else None
    return which.case(N, count=count, root=2, segment=2, topology=topology)


def planted(case: ProofCase, at: int, change: Change) -> ProofCase:
    """Return the case with a changed round of the first channel, on all ranks."""

    def build(*given: Any) -> Schedule:
        schedule = case.build(*given)
        first, *others = schedule.channels
        rounds = list(first())
        wrong = [*rounds[:at], *change(rounds[at]), *rounds[at + 1 :]]
        return replace(schedule, channels=(lambda: iter(wrong), *others))

    return replace(case, build=build)


def to_a_wrong_peer(each: Round) -> list[Round]:
    sends = tuple(replace(table, peer=(table.peer + 1) % N) for table in each.sends)
    return [Round(each.receives, sends, each.local, each.barrier)]


def rows(tables: Any) -> int:
    return sum(len(table.rank) for table in tables)


FAULTS: list[tuple[Callable[[Round], bool], Change]] = [
    (lambda each: rows((*each.receives, *each.sends, *each.local)) > 0, lambda _: []),
    (lambda each: rows(each.sends) > 0, to_a_wrong_peer),
    (
        lambda each: each.barrier is not None,
        lambda each: [Round(each.receives, each.sends, each.local)],
    ),
]
"""Where each can be planted, and what it makes of a round: nothing, one to a wrong peer, and one without its barrier."""
BUILDS = [each for each in EVERY if each.form != "direct"]
"""Without those in which a barrier is held more often than the proof needs."""


@pytest.mark.parametrize("which", BUILDS, ids=str)
def test_a_planted_fault_is_found(which: Which, pytestconfig: pytest.Config) -> None:
    case = asked(which)
    prove_all([case])
    most = 10 if pytestconfig.getoption("--all") else 2
    channels = [list(part.schedule.channels[0]()) for part in case.parts()]
    for where, change in FAULTS:
        of_ranks = zip_longest(*channels, fillvalue=Round())
        places = [
            at
            for at, each in enumerate(of_ranks)
            # Hierarchical: the root deals a slice to a neighbor, later it sends it that with the rest.
            if any(map(where, each))
            and (str(which) != "broadcast-hierarchical" or rows(each[0].sends) != 1)
        ]
        for at in places[:: -(-len(places) // most) or 1]:
            with pytest.raises(Unproven):
                prove_all([planted(case, at, change)])
