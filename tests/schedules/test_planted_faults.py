"""A planted fault in an algorithm is found at any place: its truth is that what was right is so no more.

Each kind of fault that the prover tells apart is told in ``test_proof.py``, where it is planted in one schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from proofs import EVERY, Which

from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.proof import ProofCase, Unproven, prove_all
from hpccomm.schedules.schedule import Channel, Place, Round, Transfers
from hpccomm.topology import arrange

N = 6
PLACES, CHOSEN_PLACES = 10, 2
"""How many places of a schedule each fault is planted at: of all cases, and of those chosen."""

Rounds = list[Round]
Fault = Callable[[Rounds, Which], Iterator[Rounds]]
"""Gives a channel's rounds with the fault, for each place where it can be."""


def asked(which: Which) -> ProofCase:
    # All slices and pieces of them are alike, so that no round moves only what is there anyhow.
    count: Any = 24
    if which.collective in BLOCKWISE:
        alike = which.algorithm.uniform or DESCRIPTIONS[which.collective].individual
        count = 3 if alike else [1, 2, 3, 4, 5, 6]
    topology = arrange([0, 1, 1, 0, 2, 2]) if which.name == "hierarchical" else None
    return which.case(N, count=count, root=2, segment=2, topology=topology)


@cache
def opened(which: Which) -> tuple[list[Rounds], Callable[[Sequence[Rounds]], ProofCase]]:
    """The rounds of each channel, and what makes a case of others."""
    right = asked(which)
    parts = right.parts()
    schedule = parts[0].schedule if len(parts) == 1 else merged([part.schedule for part in parts])
    first = parts[0].ranks[0]

    def channel(rounds: Rounds) -> Channel:
        return lambda: iter(rounds)

    def closed(channels: Sequence[Rounds]) -> ProofCase:
        changed = replace(schedule, channels=tuple(map(channel, channels)))
        # Where calls differ from rank to rank, the first part has what all ranks do.
        others = replace(changed, channels=())
        return replace(right, build=lambda group, *_: changed if group.rank[0] == first else others)

    channels = [list(each()) for each in schedule.channels]
    prove_all([closed(channels)])  # only a fault can make it unproven
    return channels, closed


def a_wrong_peer(table: Any, row: np.ndarray) -> Any:
    if not isinstance(table, Transfers):
        return None
    step = np.where((table.peer + 1) % N == table.rank, 2, 1)
    return replace(table, peer=(table.peer + step * row) % N)


def a_moved_slice(table: Any, row: np.ndarray) -> Any:
    if isinstance(table, Transfers):
        return replace(table, start=table.start + row) if table.count[row].any() else None
    place = table.target
    return replace(table, target=Place(place.buffer, place.start + row, place.peer))


def in_a_table(fault: Callable[[Any, np.ndarray], Any]) -> Fault:
    """A fault in a row of a table, of each round."""

    def planted(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
        for at, each in enumerate(rounds):
            kinds = {"receives": each.receives, "sends": each.sends, "local": each.local}
            for kind, tables in kinds.items():
                for i, table in enumerate(tables):
                    for row in np.eye(len(table.rank), dtype=bool):
                        if (wrong := fault(table, row)) is not None:
                            put = kinds | {kind: (*tables[:i], wrong, *tables[i + 1 :])}
                            yield [
                                *rounds[:at],
                                Round(**put, barrier=each.barrier),
                                *rounds[at + 1 :],
                            ]

    planted.__name__ = fault.__name__
    return planted


def a_dropped_round(rounds: Rounds, which: Which) -> Iterator[Rounds]:
    for at, each in enumerate(rounds):
        # Hierarchical: the root deals a slice to a neighbor, later it sends it that with the rest.
        again = str(which) == "broadcast-hierarchical" and sum(len(t.rank) for t in each.sends) == 1
        tables = (*each.receives, *each.sends, *each.local)
        if any(len(table.rank) for table in tables) and not again:
            yield [*rounds[:at], *rounds[at + 1 :]]


def a_dropped_barrier(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for at, each in enumerate(rounds):
        if each.barrier is not None:
            without = Round(each.receives, each.sends, each.local)
            yield [*rounds[:at], without, *rounds[at + 1 :]]


FAULTS: list[Fault] = [
    a_dropped_round,
    a_dropped_barrier,
    *map(in_a_table, (a_wrong_peer, a_moved_slice)),
]
BUILDS = [each for each in EVERY if each.form != "direct"]
"""Without those in which a barrier is held more often than the proof needs."""


@pytest.mark.parametrize("which", BUILDS, ids=str)
def test_a_planted_fault_is_found(which: Which, pytestconfig: pytest.Config) -> None:
    channels, closed = opened(which)
    places = PLACES if pytestconfig.getoption("--all") else CHOSEN_PLACES
    found = set()
    for fault in FAULTS:
        every = [(n, wrong) for n, rounds in enumerate(channels) for wrong in fault(rounds, which)]
        for number, wrong in every[:: -(-len(every) // places) or 1]:
            found.add(fault.__name__)
            with pytest.raises(Unproven):
                prove_all([closed([*channels[:number], wrong, *channels[number + 1 :]])])
    assert "a_dropped_round" in found
    shared = any(each.barrier is not None for rounds in channels for each in rounds)
    assert ("a_dropped_barrier" in found) == shared
