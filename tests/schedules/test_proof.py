"""Schedules that the prover refuses, one fault at a time, and its messages."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpccomm.contracts.collectives import COLLECTIVES
from hpccomm.contracts.signature import Signature
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
    Tuning,
    copies,
    folds,
    signals,
    transfers,
)
from hpccomm.testing import Unproven, prove
from hpccomm.topology import arrange

Rounds = Callable[[Group], list[Round]]


def message(
    group: Group, src: int, dst: int, buffer: str = RECV, count: int = 1, into: int = 0
) -> Round:
    """One message from element 0 of `buffer` to `RECV`."""
    return Round(
        receives=(transfers(group.rank, src, RECV, into, count, group.at == dst),),
        sends=(transfers(group.rank, dst, buffer, 0, count, group.at == src),),
    )


def sent(group: Group) -> Round:
    """Rank 0 sends to rank 1, which does not receive."""
    return Round(sends=message(group, 0, 1).sends)


def awaited(group: Group) -> Round:
    """Rank 1 receives from rank 0, which does not send."""
    return Round(receives=message(group, 0, 1).receives)


def received_twice(group: Group) -> Round:
    """Rank 1 receives one message of rank 0's into two places."""
    one, again = message(group, 0, 1), transfers(group.rank, 0, SCRATCH, 0, 1, group.at == 1)
    return Round((*one.receives, again), one.sends)


def shortened(group: Group) -> Round:
    """Of two elements one is expected."""
    return Round(message(group, 0, 1).receives, message(group, 0, 1, count=2).sends)


def both_to_rank_0(group: Group) -> Round:
    one, other = (message(group, src, 0, SEND) for src in (1, 2))
    return Round(one.receives + other.receives, one.sends + other.sends)


def swapped(group: Group, source: str, target: str) -> Round:
    """Each of two ranks sends an element to the other."""
    return Round(
        receives=(transfers(group.rank, 1 - group.at, target, 0, 1),),
        sends=(transfers(group.rank, 1 - group.at, source, 0, 1),),
    )


def folded_in_two(group: Group) -> list[Round]:
    """Rank 2 folds what is of rank 0 with what is of rank 1, and that with its own."""
    root, held = group.at == 2, [Place(SCRATCH, i) for i in range(3)]
    first = folds(group.rank, (held[0], held[1]), held[2], 1, final=False, where=root)
    then = folds(group.rank, (held[2], GIVEN), RESULT, 1, final=True, where=root)
    return [
        *(
            Round(
                (transfers(group.rank, src, SCRATCH, src, 1, root),),
                (transfers(group.rank, 2, SEND, 0, 1, group.at == src),),
            )
            for src in (0, 1)
        ),
        Round(local=(first,)),
        Round(local=(then,)),
    ]


GIVEN, HELD, RESULT = (Place(buffer, 0) for buffer in (SEND, SCRATCH, RECV))


def copied(group: Group, source: Place, target: Place, count: int = 1) -> Round:
    return Round(local=(copies(group.rank, source, target, count),))


def folded(group: Group, *sources: Place, final: bool = True) -> Round:
    return Round(local=(folds(group.rank, sources, RESULT, 1, final=final),))


def summed(group: Group, *more: Place, final: bool = True) -> list[Round]:
    """An all-reduce of two ranks; and what else is folded."""
    return [swapped(group, SEND, SCRATCH), folded(group, HELD, GIVEN, *more, final=final)]


def told_the_next(group: Group) -> Round:
    told = signals(group.rank, (group.at + 1) % 3)
    return Round((signals(group.rank, (group.at - 1) % 3),), (told,))


def of_peer(group: Group, buffer: str = SEND) -> Place:
    """The first element of the right neighbor."""
    return Place(buffer, 0, (group.at + 1) % group.size)


def reading(group: Group) -> Round:
    return copied(group, of_peer(group), HELD)


def written_and_read(group: Group) -> list[Round]:
    write, read = copied(group, GIVEN, of_peer(group, RECV)), copied(group, RESULT, HELD)
    return [Round(barrier=group), write, read, Round(barrier=group)]


def wrong(
    match: str,
    collective: str,
    ranks: int,
    *channels: Rounds,
    shared: bool = False,
    **asked: object,
) -> Any:
    """A schedule, and what is said of it."""
    count = {} if collective == "barrier" else {"count": 1}
    return pytest.param(match, collective, ranks, channels, shared, count | asked, id=match)


FAULTY = [
    wrong("rank 0, channel 0, round 0: sends to rank 1", "broadcast", 2, lambda g: [sent(g)]),
    # Sends that wait for their receives would wait for ever, where both ranks do so.
    wrong("nothing from it in this round", "broadcast", 2, lambda g: [sent(g), awaited(g)]),
    wrong("rank 1, .* waits for a message of rank 0", "broadcast", 2, lambda g: [awaited(g)]),
    wrong("which sends none in this round", "broadcast", 2, lambda g: [received_twice(g)]),
    wrong(
        "channel 0, round 0: sends to rank 1, which receives nothing",
        *("broadcast", 2, lambda g: [sent(g)], lambda g: [awaited(g)]),
    ),
    wrong(
        "expects 1 elements from rank 0, which sends 2",
        *("broadcast", 2, lambda g: [shortened(g)]),
        count=2,
    ),
    *(
        wrong(f"(from|to) rank {peer} of 2", "broadcast", 2, lambda g, at=peer: [message(g, 0, at)])
        for peer in (-1, 0, 2)
    ),
    wrong(
        r"rank 0, .* sends scratch\[0\] of rank 0, which was never written",
        *("broadcast", 2, lambda g: [message(g, 0, 1, SCRATCH)]),
    ),
    wrong(
        "receives 1 elements at 1 of recv, which has 1",
        *("broadcast", 2, lambda g: [message(g, 0, 1, into=1)]),
    ),
    wrong(
        "copies 1 elements at -1 of scratch, .* 4",
        *("all_reduce", 2, lambda g: [copied(g, GIVEN, Place(SCRATCH, -1))]),
    ),
    wrong(
        r"receives into recv\[0\] of rank 0 twice", "all_reduce", 3, lambda g: [both_to_rank_0(g)]
    ),
    wrong(
        "while it receives there",
        *("all_reduce", 2, lambda g: [swapped(g, RECV, RECV)]),
        in_place=True,
    ),
    wrong(
        "another row of the same step",
        *(
            "all_reduce",
            2,
            lambda g: [copied(g, GIVEN, HELD, 2), copied(g, HELD, Place(SCRATCH, 1), 2)],
        ),
        count=2,
    ),
    wrong(
        r"overwrites what was given: send\[1\] of rank 0",
        *("scan", 2, lambda g: [copied(g, GIVEN, Place(SEND, 1))]),
        count=2,
    ),
    wrong(
        "rank 1 with element 0 of rank 0 with element 0 of rank 0: a contribution twice",
        *("all_reduce", 2, lambda g: summed(g, GIVEN)),
    ),
    wrong(
        r"recv\[0\] of rank 0 holds element 0 of ranks 0 and 1 .* passed no final fold",
        *("all_reduce", 2, lambda g: summed(g, final=False)),
    ),
    wrong(
        "rank 0 .* not folded from left to right in the order of ranks",
        *("all_reduce", 2, summed),
        deterministic=True,
    ),
    wrong(
        "a narrow float is rounded twice",
        *("reduce", 3, folded_in_two),
        root=2,
        deterministic=True,
        dtype=BFLOAT16,
    ),
    wrong("never written", "all_gather", 1, lambda g: summed(g)[1:]),
    wrong(
        "and one passed its final fold",
        *("all_reduce", 2, lambda g: [*summed(g), folded(g, RESULT)]),
    ),
    wrong(
        "different elements",
        *("all_reduce", 2, lambda g: [folded(g, GIVEN, Place(SEND, 1))]),
        count=2,
    ),
    wrong(
        "folds in a collective that does not reduce",
        *("all_to_all", 2, lambda g: [folded(g, GIVEN, Place(SEND, 1))]),
    ),
    wrong("rank 1 holds nothing in the end", "broadcast", 2, lambda _: []),
    wrong(
        "holds element 0 of rank 1 in the end, and must hold .* of each of ranks 0 to 1",
        *("scan", 2, lambda g: [copied(g, GIVEN, RESULT)]),
    ),
    wrong(
        "and must be left as it was",
        *("scan", 1, lambda g: [copied(g, GIVEN, RESULT)]),
        exclusive=True,
    ),
    wrong(
        r"channel 1 and one .* touch scratch\[0\]",
        *("scan", 1, *[lambda g: [copied(g, GIVEN, HELD)]] * 2),
    ),
    wrong(
        "rank 0 may leave before all others have come", "barrier", 3, lambda g: [told_the_next(g)]
    ),
    # Shared memory.
    wrong("reaches into send of rank 1, which it may not", "scan", 2, lambda g: [reading(g)]),
    wrong("rank 1 may not have come to the call", "scan", 2, lambda g: [reading(g)], shared=True),
    wrong(
        "rank 1 may have left the call",
        *("scan", 2, lambda g: [Round(barrier=g), reading(g)]),
        shared=True,
    ),
    wrong(
        "into the memory of rank 1, on another node",
        *("scan", 2, lambda g: [reading(g)]),
        shared=True,
        topology=arrange([0, 1]),
    ),
    wrong(
        r"touches recv\[0\] of rank \d with no barrier between: rank \d touches it in round",
        *("scan", 2, written_and_read),
        shared=True,
    ),
    wrong(
        "rank 1, .* does not come to its group",
        *("scan", 2, lambda g: [Round(barrier=Group(g.rank[:1], g.at[:1], g.size))]),
        shared=True,
    ),
]


def built(channels: tuple[Rounds, ...], *, shared: bool = False) -> Algorithm:
    def build(group: Group, _call: Signature, _tuning: Tuning) -> Schedule:
        made = [rounds(group) for rounds in channels]
        return Schedule(tuple(lambda each=each: iter(each) for each in made), 4)

    return Algorithm(build, ordered=build, shared=shared)


@pytest.mark.parametrize(("match", "collective", "ranks", "channels", "shared", "asked"), FAULTY)
def test_a_fault_is_told_with_its_place(
    match: str,
    collective: str,
    ranks: int,
    channels: tuple[Rounds, ...],
    shared: bool,
    asked: dict[str, Any],
) -> None:
    with pytest.raises(Unproven, match=match):
        prove(collective, built(channels, shared=shared), ranks, **asked)


def test_a_float_of_32_bits_may_be_rounded_twice() -> None:
    prove("reduce", built((folded_in_two,)), 3, root=2, count=1, deterministic=True)


def test_a_program_that_depends_on_who_else_is_asked_for() -> None:
    def build(group: Group, call: Signature, _tuning: Tuning) -> Schedule:
        # The first row is rank 0 only where all are asked for.
        first = np.arange(len(group.rank)) == 0
        copy = copies(group.rank, Place(SEND, 0), Place(RECV, 0), call.counts[0], first)
        return Schedule((lambda: iter([Round(local=(copy,))]),))

    with pytest.raises(Unproven, match=r"rank 1, asked for alone, does .*copy.* in round 0"):
        check_same_program(case("scan", build, 2, count=1))


def test_an_algorithm_that_has_no_ordered_build() -> None:
    with pytest.raises(ValueError, match="has no build that folds in rank order"):
        case("broadcast", "binomial", 2, deterministic=True)


@pytest.mark.parametrize("collective", [each for each in COLLECTIVES if each != "barrier"])
def test_doing_nothing_is_not_proven_unless_there_is_nothing_to_do(collective: str) -> None:
    def nothing(_group: Group, _call: Signature, _tuning: Tuning) -> Schedule:
        return Schedule(())

    with pytest.raises(Unproven, match="holds nothing in the end"):
        prove(collective, nothing, 3)
    prove(collective, nothing, 3, count=0)


def nobody(_group: Group, _call: Signature, _tuning: Tuning) -> None:
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
        ("broadcast", "binomial", 2, {"deterministic": True}, "leave deterministic out"),
        ("all_reduce", "ring", 2, {"form": "staged"}, "has no staged form; give another"),
        ("all_reduce", "ring", 2, {"form": "other"}, "give one of 'build', 'direct', 'staged'"),
        ("all_reduce", nobody, 4, {}, "nobody all_reduce, 4 ranks, .* it returned None; let it"),
    ],
)
def test_arguments_that_do_not_fit(
    collective: str, algorithm: object, ranks: int, asked: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        prove(collective, algorithm, ranks, **asked)


STAGED = [name for name, known in ALGORITHMS.items() if "shm" in known and known["shm"].staged]


@pytest.mark.parametrize("collective", STAGED)
def test_a_slot_that_is_filled_again_too_early(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {"count": 40, "segment": 2, "form": "staged"}
    prove(collective, "shm", 4, **asked)  # type: ignore[arg-type]
    # The fault is planted in what every staged algorithm takes its slots from.
    monkeypatch.setattr(shm_staged, "SLOTS", 1)
    with pytest.raises(Unproven, match=r"with no barrier between|different elements"):
        prove(collective, "shm", 4, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", STAGED)
def test_staging_keeps_to_its_room(collective: str) -> None:
    for room in (8, 9, 20, 64):
        prove(collective, "shm", 4, count=40, form="staged", room=room)
    with pytest.raises(Unproven, match="its scratch is 8 elements of 7"):
        prove("all_reduce", "shm", 4, count=40, form="staged", room=7)


def test_what_a_form_may_not_reach() -> None:
    reaches_arrays = Algorithm(shm.all_reduce, shared=True, staged=shm.all_reduce)
    with pytest.raises(Unproven, match="reaches into send of rank 0, which it may not here"):
        prove("all_reduce", reaches_arrays, 2, form="staged")
    reaches_scratch = Algorithm(shm_staged.all_reduce, shared=True)
    with pytest.raises(Unproven, match="reaches into scratch of rank 1, which it may not here"):
        prove("all_reduce", reaches_scratch, 2)
