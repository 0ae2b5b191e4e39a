"""A planted fault in an algorithm is found at any place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from proofs import EVERY, Which

from hpccomm.contracts.collectives import BLOCKWISE, DESCRIPTIONS
from hpccomm.schedules.algorithms.partition import merged
from hpccomm.schedules.proof import ProofCase, Unproven, prove_all
from hpccomm.schedules.schedule import (
    SEND,
    Channel,
    Column,
    Copies,
    Folds,
    Mask,
    Place,
    Round,
    Transfers,
    copies,
)
from hpccomm.topology import arrange

N = 6
PLACES, CHOSEN_PLACES = 10, 2
"""How many places of a schedule each fault is planted at: of all cases, and of those chosen."""

Rounds = list[Round]
Table = Transfers | Copies | Folds
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

    return [list(each()) for each in schedule.channels], closed


@cache
def sound(which: Which) -> bool:
    """Whether what is opened and closed again is proven: then only a fault can make it unproven."""
    channels, closed = opened(which)
    prove_all([closed(channels)])
    return True


def selected(table: Any, rows: Mask) -> Any:
    def of(place: Place) -> Place:
        start = place.start[rows] if isinstance(place.start, np.ndarray) else place.start
        return place._replace(start=start, peer=None if place.peer is None else place.peer[rows])

    common = {"rank": table.rank[rows], "count": table.count[rows]}
    if isinstance(table, Transfers):
        return replace(table, **common, peer=table.peer[rows], start=table.start[rows])
    if isinstance(table, Copies):
        return replace(table, **common, source=of(table.source), target=of(table.target))
    return replace(table, **common, sources=tuple(map(of, table.sources)), target=of(table.target))


def with_others(rounds: Rounds, at: int, kind: str, i: int, *new: Table) -> Rounds:
    """Return the rounds with `new` in the place of one table."""
    tables = getattr(rounds[at], kind)
    put = (*tables[:i], *new, *tables[i + 1 :])
    return [*rounds[:at], rounds[at]._replace(**{kind: put}), *rounds[at + 1 :]]


def each_table(
    rounds: Rounds, kinds: tuple[str, ...]
) -> Iterator[tuple[Any, Callable[..., Rounds]]]:
    """Each table with rows, and what makes the rounds with others in its place."""
    for at, each in enumerate(rounds):
        for kind in kinds:
            for i, table in enumerate(getattr(each, kind)):
                if len(table.rank):
                    yield table, partial(with_others, rounds, at, kind, i)


def each_row(rounds: Rounds, *kinds: str) -> Iterator[tuple[Any, int, Callable[..., Rounds]]]:
    for table, changed in each_table(rounds, kinds):
        for row in range(len(table.rank)):
            yield table, row, changed


def added(column: Column, row: int, what: int) -> Column:
    changed = column.copy()
    changed[row] += what
    return changed


def two_peers_swapped(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for table, changed in each_table(rounds, ("sends", "receives")):
        for i, j in combinations(range(len(table.rank)), 2):
            # Of two messages of one rank, swapped, only the order of their data differs.
            if table.rank[i] != table.rank[j] and table.peer[i] != table.peer[j]:
                peer = table.peer.copy()
                peer[[i, j]] = peer[[j, i]]
                yield changed(replace(table, peer=peer))


def a_wrong_peer(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for table, row, changed in each_row(rounds, "sends", "receives"):
        step = 2 if (table.peer[row] + 1) % N == table.rank[row] else 1
        peer = added(table.peer, row, step) % N
        yield changed(replace(table, peer=peer))


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
            yield [*rounds[:at], each._replace(barrier=None), *rounds[at + 1 :]]


def a_dropped_row(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for table, row, changed in each_row(rounds, "sends", "receives", "local"):
        yield changed(selected(table, np.arange(len(table.rank)) != row))


def a_repeated_reduction(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for table, row, changed in each_row(rounds, "local"):
        if isinstance(table, Folds):
            only = np.arange(len(table.rank)) == row
            once, again = selected(table, ~only), selected(table, only)
            yield changed(once, replace(again, sources=(*again.sources, again.sources[-1])))


def a_moved_slice(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for table, row, changed in each_row(rounds, "sends", "receives", "local"):
        if isinstance(table, Transfers):
            if table.count[row]:
                yield changed(replace(table, start=added(table.start, row, 1)))
            continue
        start = np.broadcast_to(table.target.start, table.rank.shape)
        moved = table.target._replace(start=added(start, row, 1))
        yield changed(replace(table, target=moved))


def sends_first(rounds: Rounds, _which: Which) -> Iterator[Rounds]:
    for at, each in enumerate(rounds):
        if any(len(table.rank) for table in each.sends):
            split = (Round(sends=each.sends), each._replace(sends=()))
            yield [*rounds[:at], *split, *rounds[at + 1 :]]


def a_missing_final(rounds: Rounds, which: Which) -> Iterator[Rounds]:
    for table, changed in each_table(rounds, ("local",)):
        if isinstance(table, Folds) and table.final:
            yield changed(replace(table, final=False))


def an_early_final(rounds: Rounds, which: Which) -> Iterator[Rounds]:
    for table, changed in each_table(rounds, ("local",)):
        if isinstance(table, Folds) and not table.final and which.collective != "scan":
            yield changed(replace(table, final=True))


def another_order(rounds: Rounds, which: Which) -> Iterator[Rounds]:
    for table, changed in each_table(rounds, ("local",)):
        if which.deterministic and isinstance(table, Folds) and len(table.sources) > 1:
            first, second, *rest = table.sources
            yield changed(replace(table, sources=(second, first, *rest)))


def an_overwritten_argument(rounds: Rounds, which: Which) -> Iterator[Rounds]:
    if which.collective not in ("broadcast", "barrier"):
        rank = np.array([2])  # scatter: only the root has two elements
        yield [*rounds, Round(local=(copies(rank, Place(SEND, 0), Place(SEND, 1), 1),))]


FAULTS: list[Fault] = [
    two_peers_swapped,
    a_wrong_peer,
    a_dropped_round,
    a_dropped_barrier,
    a_dropped_row,
    a_repeated_reduction,
    a_moved_slice,
    sends_first,
    a_missing_final,
    an_early_final,
    another_order,
    an_overwritten_argument,
]


def planted(which: Which, fault: Fault) -> Iterator[tuple[int, Rounds]]:
    """Each channel with the fault, and its number."""
    channels, _ = opened(which)
    for number, rounds in enumerate(channels):
        for wrong in fault(rounds, which):
            yield number, wrong


BUILDS = [each for each in EVERY if each.form != "direct"]
"""Without those in which a barrier is held more often than the proof needs."""
POSSIBLE = [(which, fault) for fault in FAULTS for which in BUILDS if any(planted(which, fault))]


def test_each_fault_has_its_places() -> None:
    assert {fault for _, fault in POSSIBLE} == set(FAULTS)
    assert {which for which, fault in POSSIBLE if fault is a_dropped_round} == set(BUILDS)


@pytest.mark.parametrize(
    ("which", "fault"), POSSIBLE, ids=[f"{fault.__name__}-{which}" for which, fault in POSSIBLE]
)
def test_a_planted_fault_is_found(which: Which, fault: Fault, pytestconfig: pytest.Config) -> None:
    assert sound(which)
    channels, closed = opened(which)
    every = list(planted(which, fault))
    places = PLACES if pytestconfig.getoption("--all") else CHOSEN_PLACES
    for number, wrong in every[:: -(-len(every) // places)]:
        with pytest.raises(Unproven):
            prove_all([closed([*channels[:number], wrong, *channels[number + 1 :]])])


@pytest.mark.parametrize(
    "which", [each for each in BUILDS if each.collective != "barrier"], ids=str
)
def test_two_channels_on_one_cell_are_found(which: Which) -> None:
    assert sound(which)
    channels, closed = opened(which)
    used = next(rounds for rounds in channels if rounds)
    with pytest.raises(Unproven):
        prove_all([closed([*channels, used])])
