"""Schedules that the prover refuses, one fault at a time, as its docstring lists them; and its messages."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from hpccomm.contracts.collectives import COLLECTIVES
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm, shm, shm_staged
from hpccomm.schedules.proof import case, check_same_program
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Group,
    Place,
    Round,
    Schedule,
    copies,
    folds,
    signals,
    transfers,
)
from hpccomm.testing import Unproven, prove
from hpccomm.topology import arrange

Step = Callable[[Group], Round]
"""What a group of ranks does in a round."""

GIVEN, RESULT, HELD = (Place(buffer, 0) for buffer in (SEND, RECV, SCRATCH))
SECOND, THIRD = Place(SCRATCH, 1), Place(SCRATCH, 2)


def sends(src: int, dst: int, source: Place = RESULT, count: int = 1) -> Step:
    return lambda g: Round(
        sends=(transfers(g.rank, dst, source.buffer, source.start, count, g.at == src),)
    )


def receives(src: int, dst: int, target: Place = RESULT, count: int = 1) -> Step:
    return lambda g: Round(
        (transfers(g.rank, src, target.buffer, target.start, count, g.at == dst),)
    )


def at_once(*steps: Step) -> Step:
    """Messages and local steps in one round."""

    def joined(group: Group) -> Round:
        every = [each(group)[:3] for each in steps]
        return Round(*(tuple(chain(*tables)) for tables in zip(*every, strict=True)))

    return joined


def message(src: int, dst: int, source: Place = RESULT, target: Place = RESULT) -> Step:
    return at_once(sends(src, dst, source), receives(src, dst, target))


def swapped(source: Place, target: Place) -> Step:
    """Each of two ranks sends an element to the other."""
    return at_once(message(0, 1, source, target), message(1, 0, source, target))


def copied(source: Place, target: Place, count: int = 1) -> Step:
    return lambda g: Round(local=(copies(g.rank, source, target, count),))


def folded(
    *sources: Place, into: Place = RESULT, final: bool = True, on: int | None = None
) -> Step:
    """A fold of all ranks, or of one."""
    return lambda g: Round(
        local=(
            folds(g.rank, sources, into, 1, final=final, where=None if on is None else g.at == on),
        )
    )


def told_the_next(group: Group) -> Round:
    told = signals(group.rank, (group.at + 1) % 3)
    return Round((signals(group.rank, (group.at - 1) % 3),), (told,))


def meet(group: Group) -> Round:
    return Round(barrier=group)


def left_waiting(group: Group) -> Round:
    """Rank 0 alone meets all."""
    return Round(barrier=Group(group.rank[:1], group.at[:1], group.size))


def read(group: Group) -> Round:
    """Each of two ranks reads what the other was given."""
    return copied(Place(SEND, 0, 1 - group.at), HELD)(group)


def write(group: Group) -> Round:
    """Each of two ranks writes the other's result."""
    return copied(GIVEN, Place(RECV, 0, 1 - group.at))(group)


def read_beyond(group: Group) -> Round:
    return copied(Place(SEND, 0, group.at + 1), HELD)(group)


def of_nobody(group: Group) -> Round:
    return Round(local=(copies(group.rank + 1, GIVEN, HELD, 1),))


def met_by_a_stranger(group: Group) -> Round:
    """Each of two ranks comes to the barrier of the other alone."""
    return Round(barrier=Group(group.rank, group.at * 0, 1, np.array([[0], [1]]), 1 - group.at))


def met_twice(group: Group) -> Round:
    """Two ranks meet in two barriers, of which each names them in another order."""
    both = np.array([[0, 1], [1, 0]])
    return Round(
        barrier=Group(np.tile(group.rank, 2), np.tile(group.at, 2), 2, both, np.repeat([0, 1], 2))
    )


SENT, AWAITED = sends(0, 1), receives(0, 1)
SUMMED = [swapped(GIVEN, HELD), folded(HELD, GIVEN)]
"""An all-reduce of two ranks."""
FOLDED_IN_TWO = [
    message(0, 2, GIVEN, HELD),
    message(1, 2, GIVEN, SECOND),
    folded(HELD, SECOND, into=THIRD, final=False, on=2),
    folded(THIRD, GIVEN, on=2),
]
"""Rank 2 folds what is of rank 0 with what is of rank 1, and that with its own."""


def wrong(match: str, collective: str, ranks: int, *channels: list[Step], **asked: object) -> Any:
    """A schedule, and what is said of it."""
    return pytest.param(match, collective, ranks, channels, {"count": 1} | asked, id=match)


FAULTY = [
    # Sends that wait for their receives would wait for ever, where both ranks do so.
    wrong("rank 0, channel 0, round 0: sends to rank 1", "broadcast", 2, [SENT, AWAITED]),
    wrong("which receives nothing from it in this round", "broadcast", 2, [SENT], [AWAITED]),
    wrong("rank 1, .* waits for a message of rank 0", "broadcast", 2, [AWAITED]),
    wrong("sends none in this round", "broadcast", 2, [at_once(message(0, 1), AWAITED)]),
    wrong(
        "expects 1 .* sends 2", "all_reduce", 2, [at_once(sends(0, 1, GIVEN, 2), AWAITED)], count=2
    ),
    *(
        wrong(f"(from|to) rank {peer} of 2", "broadcast", 2, [message(0, peer)])
        for peer in (-1, 0, 2)
    ),
    wrong(r"rank 0, .* sends scratch\[0\] .* never written", "broadcast", 2, [message(0, 1, HELD)]),
    wrong("receives 1 .* at 1 of recv, .* 1", "scan", 2, [message(0, 1, GIVEN, Place(RECV, 1))]),
    wrong("copies 1 .* at -1 of scratch, .* 4", "scan", 2, [copied(GIVEN, Place(SCRATCH, -1))]),
    wrong("twice at once", "scan", 3, [at_once(message(1, 0, GIVEN), message(2, 0, GIVEN))]),
    wrong("while it receives there", "all_reduce", 2, [swapped(RESULT, RESULT)], in_place=True),
    wrong(
        "another row of .* step",
        "scan",
        2,
        [copied(GIVEN, HELD, 2), copied(HELD, SECOND, 2)],
        count=2,
    ),
    wrong(r"what was given: send\[1\] of", "scan", 2, [copied(GIVEN, Place(SEND, 1))], count=2),
    wrong("what was given: send.* rank 1", "reduce", 2, [message(0, 1, GIVEN, GIVEN)]),
    wrong("the schedule names rank 2", "scan", 2, [of_nobody]),
    wrong(
        "rank 1 with element 0 of rank 0 with element 0 of rank 0: a contribution twice",
        *("all_reduce", 2, [SUMMED[0], folded(HELD, GIVEN, GIVEN)]),
    ),
    wrong(
        r"recv\[0\] of rank 0 holds element 0 of ranks 0 and 1 .* passed no final fold",
        *("all_reduce", 2, [SUMMED[0], folded(HELD, GIVEN, final=False)]),
    ),
    wrong("rank 0 .* not folded from left to right", "all_reduce", 2, SUMMED, deterministic=True),
    wrong(
        "a narrow float is rounded twice",
        *("reduce", 3, FOLDED_IN_TWO),
        root=2,
        deterministic=True,
        dtype=BFLOAT16,
    ),
    wrong("folds .* never written", "all_gather", 1, SUMMED[1:]),
    wrong("one passed its final fold", "all_reduce", 2, [*SUMMED, folded(HELD, RESULT)]),
    wrong("different elements", "scan", 2, [folded(GIVEN, Place(SEND, 1))], count=2),
    wrong("that does not reduce", "all_to_all", 2, [folded(GIVEN, Place(SEND, 1))]),
    wrong("rank 1 holds nothing in the end", "broadcast", 2, []),
    wrong("element 0 of rank 1 in the end, .* ranks 0 to 1", "scan", 2, [copied(GIVEN, RESULT)]),
    wrong("be left as it was", "scan", 1, [copied(GIVEN, RESULT)], exclusive=True),
    wrong(r"channel 1 .* touch scratch\[0\]", "scan", 1, *[[copied(GIVEN, HELD)]] * 2),
    wrong("rank 0 may leave before all others", "barrier", 3, [told_the_next], count=0),
    wrong("reaches into send of rank 1, which it may not", "scan", 2, [read]),
]
SHARED = [
    wrong("rank 1 may not have come to the call", "scan", 2, [read]),
    wrong("rank 1 may have left the call", "scan", 2, [meet, read]),
    wrong("into the memory of rank 2 of 2", "scan", 2, [read_beyond]),
    wrong("in two barriers at once", "scan", 2, [met_twice]),
    wrong("in a barrier that is not its group's", "scan", 2, [met_by_a_stranger]),
    wrong("memory of rank 1, on another node", "scan", 2, [read], topology=arrange([0, 1])),
    wrong(
        r"touches recv\[0\] of rank \d with no barrier between: rank \d touches it in round",
        *("scan", 2, [meet, write, copied(RESULT, HELD), meet]),
    ),
    wrong("rank 1, .* does not come to its group", "scan", 2, [left_waiting]),
]
"""Of ranks that share memory."""


def built(*channels: list[Step], shared: bool = False) -> Algorithm:
    def build(group: Group, *_: object) -> Schedule:
        return Schedule(tuple(lambda own=own: (each(group) for each in own) for own in channels), 4)

    return Algorithm(build, ordered=build, shared=shared)


@pytest.mark.parametrize(("match", "collective", "ranks", "channels", "asked"), FAULTY)
def test_a_fault_is_told_with_its_place(match, collective, ranks, channels, asked) -> None:
    with pytest.raises(Unproven, match=match):
        prove(collective, built(*channels), ranks, **asked)


@pytest.mark.parametrize(("match", "collective", "ranks", "channels", "asked"), SHARED)
def test_a_fault_in_shared_memory_is_told(match, collective, ranks, channels, asked) -> None:
    with pytest.raises(Unproven, match=match):
        prove(collective, built(*channels, shared=True), ranks, **asked)


def test_a_float_of_32_bits_may_be_rounded_twice_and_a_narrow_one_in_any_order() -> None:
    prove("reduce", built(FOLDED_IN_TWO), 3, root=2, count=1, deterministic=True)
    prove("reduce", built(FOLDED_IN_TWO), 3, root=2, count=1, dtype=BFLOAT16)


def lone(group: Group) -> int:
    return int(len(group.rank) == 1)


OTHERWISE_ALONE: dict[str, Step] = {
    # The first row is rank 0 only where all are asked for.
    "whether": lambda g: Round(
        local=(copies(g.rank, GIVEN, RESULT, 1, np.arange(len(g.at)) == 0),)
    ),
    "how much it copies": lambda g: copied(GIVEN, RESULT, 1 + lone(g))(g),
    "what it copies": lambda g: copied(Place(SEND, lone(g)), RESULT)(g),
    "whom it reads": lambda g: copied(Place(SEND, 0, g.at * lone(g)), RESULT)(g),
    "how it folds": lambda g: folded(GIVEN, HELD, final=lone(g) > 0)(g),
    "what it sends": lambda g: Round(sends=(transfers(g.rank, 0, SEND, lone(g), 1),)),
    "to whom": lambda g: Round(sends=(transfers(g.rank, g.at * lone(g), SEND, 0, 1),)),
    "from whom": lambda g: Round((transfers(g.rank, g.at * lone(g), RECV, 0, 1),)),
    "whom it meets": lambda g: Round(
        barrier=Group(g.rank, g.at, 2, np.array([[0, 1], [1, 0]]), np.full_like(g.at, lone(g)))
    ),
}
"""Programs that depend on who else is asked for, by what differs."""


@pytest.mark.parametrize("what", OTHERWISE_ALONE)
def test_a_program_that_depends_on_who_else_is_asked_for(what: str) -> None:
    with pytest.raises(Unproven, match=r"rank 1, asked for alone, does .* in round 0"):
        check_same_program(case("scan", built([OTHERWISE_ALONE[what]]), 2, count=1), [1])


def test_channels_that_depend_on_who_else_is_asked_for() -> None:
    def build(group: Group, *_: object) -> Schedule:
        return Schedule((lambda: iter(()),) * (1 + lone(group)))

    with pytest.raises(Unproven, match="has 2 channels, not 1 as among all"):
        check_same_program(case("scan", build, 2, count=1))


@pytest.mark.parametrize("collective", [each for each in COLLECTIVES if each != "barrier"])
def test_doing_nothing_is_not_proven_unless_there_is_nothing_to_do(collective: str) -> None:
    with pytest.raises(Unproven, match="holds nothing in the end"):
        prove(collective, built(), 3)
    prove(collective, built(), 3, count=0)


def nobody(*_: object) -> None:
    """Build no schedule."""


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "asked", "said"),
    [
        ("gossip", "ring", 4, {}, "no collective is called 'gossip'; give one of all_reduce"),
        ("all_reduce", "rnig", 4, {}, "has no algorithm 'rnig'; did you mean ring"),
        ("all_reduce", 7, 4, {}, "algorithm is 7; give a name, an Algorithm, or a function"),
        ("all_reduce", "ring", 0, {}, "ranks is 0; give an integer of at least 1"),
        ("all_reduce", "ring", 2.5, {}, r"ranks is 2\.5; give an integer"),
        ("all_reduce", "ring", 4, {"segment": 0}, "segment is 0; give an integer of at least 1"),
        ("all_reduce", "ring", 4, {"channels": 0}, "channels is 0; give an integer of at least 1"),
        ("broadcast", "tree", 4, {"root": 4}, "root is 4 of 4 ranks; give one from 0 to 3"),
        ("broadcast", "tree", 4, {"root": -1}, "root is -1 of 4 ranks"),
        ("all_reduce", "ring", 4, {"count": -1}, "count is -1, .*; give an integer of at least 0"),
        ("all_reduce", "ring", 4, {"count": 2.5}, r"count is 2\.5, for all_reduce of 4 ranks"),
        ("all_reduce", "ring", 4, {"count": True}, "count is True, for all_reduce"),
        ("all_reduce", "ring", 4, {"count": [1, 2, 3, 4]}, "for all_reduce of 4 ranks"),
        ("all_gather", "ring", 4, {"count": [1, 2]}, "or 4 of them, one for each rank's block"),
        ("all_gather", "ring", 4, {"count": [1, 2, 3, -4]}, "integer of at least 0"),
        ("all_to_all", "pairwise", 2, {"count": [[1], [2, 3]]}, "or 2 rows of 2, what each rank"),
        ("barrier", "dissemination", 4, {"count": 3}, "a barrier moves no elements; leave it out"),
        ("all_reduce", "ring", 4, {"topology": arrange([0, 1])}, "one of 2 ranks, and ranks is 4"),
        ("all_gather", "ring", 4, {"in_place": [True]}, "in_place has 1 values for 4 ranks"),
        ("broadcast", "tree", 2, {"deterministic": True}, "in rank order; leave deterministic out"),
        ("all_reduce", "ring", 2, {"form": "staged"}, "has no staged form; give another"),
        ("all_reduce", "ring", 2, {"form": "other"}, "give one of 'build', 'direct', 'staged'"),
        ("all_reduce", nobody, 4, {}, "nobody all_reduce, 4 ranks, .* it returned None; let it"),
    ],
)
def test_arguments_that_do_not_fit(collective, algorithm, ranks, asked, said) -> None:
    with pytest.raises(UsageError, match=said):
        prove(collective, algorithm, ranks, **asked)


STAGED = [name for name, known in ALGORITHMS.items() if "shm" in known and known["shm"].staged]


@pytest.mark.parametrize("collective", STAGED)
def test_staging_keeps_to_its_slots_and_to_its_room(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def staged(**asked: Any) -> None:
        prove(collective, "shm", 4, count=40, form="staged", **asked)

    for room in (8, 9, 20, 64):
        staged(room=room)
    staged(segment=2)
    # The fault is planted in what every staged algorithm takes its slots from.
    monkeypatch.setattr(shm_staged, "SLOTS", 1)
    with pytest.raises(Unproven, match=r"with no barrier between|different elements"):
        staged(segment=2)


@pytest.mark.parametrize(
    ("algorithm", "asked", "said"),
    [
        (
            Algorithm(shm.all_reduce, staged=shm.all_reduce),
            {"form": "staged"},
            "send of rank 0, which",
        ),
        (Algorithm(shm_staged.all_reduce, shared=True), {}, "scratch of rank 1, which"),
        ("shm", {"form": "staged", "room": 7}, "its scratch is 8 elements of 7"),
    ],
)
def test_what_a_form_may_not_reach(algorithm, asked, said) -> None:
    with pytest.raises(Unproven, match=said):
        prove("all_reduce", algorithm, 4, **asked)
