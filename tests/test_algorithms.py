"""Every algorithm is right for any number of ranks, root and count, and cannot deadlock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prover import IN_PLACE, Unproven, ask, prove

from hpccomm.algorithms import ALGORITHMS
from hpccomm.algorithms.partition import even, offsets, slices
from hpccomm.contracts.schedule import Copy, Fold, Round, Schedule
from hpccomm.contracts.signature import Signature

SIZES = range(1, 18)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ONE_COUNT = ("all_reduce", "broadcast", "reduce", "scan", "barrier")
ALL = [(collective, name) for collective, named in ALGORITHMS.items() for name in named]


def build(collective: str, name: str, calls: Sequence[Signature]) -> list[Schedule]:
    algorithm = ALGORITHMS[collective][name]
    return [algorithm(rank, len(calls), call) for rank, call in enumerate(calls)]


def check(collective: str, name: str, calls: Sequence[Signature]) -> None:
    try:
        prove(build(collective, name, calls), calls)
    except Unproven as fault:
        fault.add_note(f"{name} {collective} on {len(calls)} ranks; rank 0: {calls[0]}")
        raise


def variants(collective: str, size: int) -> Iterator[list[Signature]]:
    """The calls of one collective that are proven at `size` ranks."""
    if collective == "barrier":
        yield ask("barrier", [0] * size)
        return
    distributions = [[count] * size for count in {0, 1, size - 1, size, size + 1, 2 * size + 3}]
    if collective not in ONE_COUNT:
        distributions.append([(rank * rank + 2) % 4 for rank in range(size)])
    roots = range(size) if collective in ROOTED else [-1]
    for counts in distributions:
        for root in roots:
            for in_place in (False, True) if collective in IN_PLACE else (False,):
                for exclusive in (False, True) if collective == "scan" else (False,):
                    asked: Sequence[int] | list[list[int]] = counts
                    if collective == "all_to_all":  # who sends more to whom differs for each pair
                        asked = [[counts[(i - j) % size] for j in range(size)] for i in range(size)]
                        in_place = in_place and len(set(counts)) == 1
                    yield ask(collective, asked, root=root, exclusive=exclusive, in_place=in_place)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "name"), ALL)
def test_proof(collective: str, name: str, size: int) -> None:
    for calls in variants(collective, size):
        check(collective, name, calls)


@given(st.sampled_from(ALL), st.data())
def test_proof_of_odd_cases(which: tuple[str, str], data: st.DataObject) -> None:
    collective, name = which
    size = data.draw(st.integers(1, 9), "ranks")
    counts: list[int] | list[list[int]]
    counts = data.draw(st.lists(st.integers(0, 12), min_size=size, max_size=size), "counts")
    if collective in ONE_COUNT:
        counts = [counts[0]] * size
    elif collective == "all_to_all":
        row = st.lists(st.integers(0, 5), min_size=size, max_size=size)
        counts = data.draw(st.lists(row, min_size=size, max_size=size), "counts of each rank")
    root = data.draw(st.integers(0, size - 1), "root") if collective in ROOTED else -1
    check(collective, name, ask(collective, counts, root=root))


# What the prover must find. Each fault is planted at every place where it can be.


def with_round(schedules: list[Schedule], rank: int, at: int, *new: Round) -> list[Schedule]:
    """The schedules with one round of one rank replaced."""
    rounds = schedules[rank].rounds
    changed = replace(schedules[rank], rounds=(*rounds[:at], *new, *rounds[at + 1 :]))
    return [*schedules[:rank], changed, *schedules[rank + 1 :]]


def each_round(schedules: list[Schedule]) -> Iterator[tuple[int, int, Round]]:
    for rank, schedule in enumerate(schedules):
        for at, each in enumerate(schedule.rounds):
            yield rank, at, each


def without_a_part(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Drop one transfer or local step."""
    for rank, at, each in each_round(schedules):
        for part in ("receives", "sends", "local"):
            parts = getattr(each, part)
            for i in range(len(parts)):
                less = each._replace(**{part: parts[:i] + parts[i + 1 :]})
                yield with_round(schedules, rank, at, less)


def with_swapped_peers(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Let two transfers of one round go to each other's peer."""
    for rank, at, each in each_round(schedules):
        for part in ("receives", "sends"):
            transfers = getattr(each, part)
            # Of transfers of the same data only the order would change.
            if len(transfers) > 1 and transfers[0].data != transfers[1].data:
                first, second, *others = transfers
                swapped = (first._replace(peer=second.peer), second._replace(peer=first.peer))
                wrong = each._replace(**{part: (*swapped, *others)})
                yield with_round(schedules, rank, at, wrong)


def with_wrong_folds(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Fold a contribution twice, or two in the wrong order."""
    for rank, at, each in each_round(schedules):
        for i, step in enumerate(each.local):
            if isinstance(step, Fold) and len(step.sources) > 1:
                first, second, *others = step.sources
                for sources in ((first, first, second, *others), (second, first, *others)):
                    local = (*each.local[:i], Fold(sources, step.target), *each.local[i + 1 :])
                    yield with_round(schedules, rank, at, each._replace(local=local))


def with_moved_slices(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Receive, send or write one element further on."""
    for rank, at, each in each_round(schedules):
        for part in ("receives", "sends"):
            transfers = getattr(each, part)
            for i, (peer, data) in enumerate(transfers):
                moved = transfers[i]._replace(peer=peer, data=replace(data, start=data.start + 1))
                changed = (*transfers[:i], moved, *transfers[i + 1 :])
                yield with_round(schedules, rank, at, each._replace(**{part: changed}))
        for i, step in enumerate(each.local):
            moved_step = step._replace(target=replace(step.target, start=step.target.start + 1))
            local = (*each.local[:i], moved_step, *each.local[i + 1 :])
            yield with_round(schedules, rank, at, each._replace(local=local))


def with_sends_first(schedules: list[Schedule]) -> Iterator[list[Schedule]]:
    """Complete the sends before the receives: fine only while messages are buffered."""
    changed = schedules
    for rank, at, each in reversed(list(each_round(schedules))):
        sends, rest = Round(sends=each.sends), each._replace(sends=())
        changed = with_round(changed, rank, at, sends, rest)
    yield changed


Plant = Callable[[list[Schedule]], Iterator[list[Schedule]]]
PLANTED: list[Plant] = [without_a_part, with_swapped_peers, with_wrong_folds, with_moved_slices]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize(("collective", "name"), ALL)
def test_planted_faults_are_found(collective: str, name: str, plant: Plant) -> None:
    size, root = 5, 2 if collective in ROOTED else -1
    counts = [7] * size if collective in ONE_COUNT else [2, 3, 4, 5, 6]
    if collective == "barrier":
        counts = [0] * size
    calls = ask(collective, [counts] * size if collective == "all_to_all" else counts, root=root)
    right = build(collective, name, calls)
    prove(right, calls)
    for wrong in plant(right):
        with pytest.raises(Unproven):
            prove(wrong, calls)


@pytest.mark.parametrize(
    ("collective", "name"), [("all_reduce", "pairwise"), ("all_gather", "ring")]
)
def test_a_deadlock_is_found(collective: str, name: str) -> None:
    calls = ask(collective, [4] * 4)
    (wrong,) = with_sends_first(build(collective, name, calls))
    with pytest.raises(Unproven, match=r"\[0, 1, 2, 3\] wait for ever"):
        prove(wrong, calls)


def test_a_block_that_is_received_while_it_is_sent_is_found() -> None:
    calls = ask("all_gather", [2, 2])
    right = build("all_gather", "ring", calls)
    _, exchange = right[0].rounds
    data = exchange.sends[0].data
    same = exchange.receives[0]._replace(data=data)
    wrong = with_round(right, 0, 1, exchange._replace(receives=(same,)))
    with pytest.raises(Unproven, match="overlap"):
        prove(wrong, calls)


def test_an_overwritten_argument_is_found() -> None:
    calls = ask("scan", [3, 3])
    right = build("scan", "linear", calls)
    last = right[1].rounds[-1]
    (fold,) = last.local
    spoil = Copy(fold.sources[0], fold.sources[1])
    with pytest.raises(Unproven, match="overwrites what it was given"):
        prove(with_round(right, 1, 0, last._replace(local=(fold, spoil))), calls)


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_even_blocks(count: int, parts: int) -> None:
    blocks = even(count, parts)
    assert len(blocks) == parts
    assert sum(blocks) == count
    assert max(blocks) - min(blocks) <= 1


@given(st.lists(st.integers(0, 9), min_size=1))
def test_slices_lie_one_after_the_other(counts: list[int]) -> None:
    laid = slices("send", counts)
    assert [each.count for each in laid] == counts
    assert [each.start for each in laid] == list(offsets(counts))
    assert all(a.start + a.count == b.start for a, b in pairwise(laid))
