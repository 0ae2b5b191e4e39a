"""Schedules that the prover refuses, one fault at a time, and its messages."""

from collections.abc import Callable

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


def refused(
    collective: str,
    ranks: int,
    *channels: Rounds,
    match: str,
    shared: bool = False,
    scratch: int = 4,
    **asked: object,
) -> None:
    def build(group: Group, _call: Signature, _tuning: Tuning) -> Schedule:
        made = [rounds(group) for rounds in channels]
        return Schedule(tuple(lambda each=each: iter(each) for each in made), scratch)

    algorithm = Algorithm(build, ordered=build, shared=shared)
    with pytest.raises(Unproven, match=match):
        prove(collective, algorithm, ranks, **asked)


def message(group: Group, src: int, dst: int, buffer: str, count: int, *, into: int = 0) -> Round:
    """One message from element 0 of `buffer` to `RECV`."""
    return Round(
        receives=(transfers(group.rank, src, RECV, into, count, group.at == dst),),
        sends=(transfers(group.rank, dst, buffer, 0, count, group.at == src),),
    )


def test_a_message_that_nobody_receives() -> None:
    def rounds(group: Group) -> list[Round]:
        return [message(group, 0, 1, RECV, 1)._replace(receives=())]

    refused("broadcast", 2, rounds, count=1, match="rank 0, channel 0, round 0: sends to rank 1")


def test_a_receive_in_another_round_than_its_send() -> None:
    # Sends that wait for their receives would wait for ever, where both ranks do so.
    def rounds(group: Group) -> list[Round]:
        each = message(group, 0, 1, RECV, 1)
        return [each._replace(receives=()), each._replace(sends=())]

    refused("broadcast", 2, rounds, count=1, match="receives nothing from it in this round")

    def late(group: Group) -> list[Round]:
        each = message(group, 0, 1, RECV, 1)
        return [each._replace(sends=()), each._replace(receives=())]

    refused("broadcast", 2, late, count=1, match="rank 1, .* waits for a message of rank 0")


def test_ends_in_two_channels() -> None:
    refused(
        "broadcast",
        2,
        lambda group: [message(group, 0, 1, RECV, 1)._replace(receives=())],
        lambda group: [message(group, 0, 1, RECV, 1)._replace(sends=())],
        count=1,
        match="channel 0, round 0: sends to rank 1, which receives nothing",
    )


def test_another_count() -> None:
    def rounds(group: Group) -> list[Round]:
        send = message(group, 0, 1, RECV, 2)
        return [send._replace(receives=message(group, 0, 1, RECV, 1).receives)]

    refused("broadcast", 2, rounds, count=2, match="expects 1 elements from rank 0, which sends 2")


def test_a_peer_that_there_is_not() -> None:
    for peer in (-1, 0, 2):

        def rounds(group: Group, peer: int = peer) -> list[Round]:
            return [message(group, 0, peer, RECV, 1)]

        refused("broadcast", 2, rounds, count=1, match=f"(from|to) rank {peer} of 2")


def test_what_was_never_written() -> None:
    refused(
        "broadcast",
        2,
        lambda group: [message(group, 0, 1, SCRATCH, 1)],
        count=1,
        match=r"rank 0, .* sends scratch\[0\] of rank 0, which was never written",
    )


def test_out_of_a_buffer() -> None:
    def rounds(group: Group) -> list[Round]:
        return [message(group, 0, 1, RECV, 1, into=1)]

    refused("broadcast", 2, rounds, count=1, match="receives 1 elements at 1 of recv, which has 1")

    def back(group: Group) -> list[Round]:
        place = Place(SCRATCH, -1)
        return [Round(local=(copies(group.rank, Place(SEND, 0), place, 1),))]

    refused("all_reduce", 2, back, count=1, match="copies 1 elements at -1 of scratch, .* 4")


def test_two_messages_into_one_place() -> None:
    def rounds(group: Group) -> list[Round]:
        one, other = (message(group, src, 0, SEND, 1) for src in (1, 2))
        return [Round(one.receives + other.receives, one.sends + other.sends)]

    refused("all_reduce", 3, rounds, count=1, match=r"receives into recv\[0\] of rank 0 twice")


def test_a_message_into_what_is_sent() -> None:
    def rounds(group: Group) -> list[Round]:
        return [
            Round(
                receives=(transfers(group.rank, 1 - group.at, RECV, 0, 1),),
                sends=(transfers(group.rank, 1 - group.at, RECV, 0, 1),),
            )
        ]

    refused("all_reduce", 2, rounds, count=1, in_place=True, match="while it receives there")


def test_rows_of_one_step_that_depend_on_each_other() -> None:
    def rounds(group: Group) -> list[Round]:
        first = copies(group.rank, Place(SEND, 0), Place(SCRATCH, 0), 2)
        shift = copies(group.rank, Place(SCRATCH, 0), Place(SCRATCH, 1), 2)
        return [Round(local=(first,)), Round(local=(shift,))]

    refused("all_reduce", 2, rounds, count=2, match="another row of the same step")


def test_what_was_given_is_kept() -> None:
    def rounds(group: Group) -> list[Round]:
        return [Round(local=(copies(group.rank, Place(SEND, 0), Place(SEND, 1), 1),))]

    refused("scan", 2, rounds, count=2, match=r"overwrites what was given: send\[1\] of rank 0")


def own_and_other(group: Group, *, twice: bool = False, final: bool = True) -> list[Round]:
    """An all-reduce of two ranks."""
    exchange = Round(
        receives=(transfers(group.rank, 1 - group.at, SCRATCH, 0, 1),),
        sends=(transfers(group.rank, 1 - group.at, SEND, 0, 1),),
    )
    sources = (Place(SCRATCH, 0), Place(SEND, 0)) + (Place(SEND, 0),) * twice
    fold = folds(group.rank, sources, Place(RECV, 0), 1, final=final)
    return [exchange, Round(local=(fold,))]


def test_contributions_and_folds() -> None:
    refused(
        "all_reduce",
        2,
        lambda group: own_and_other(group, twice=True),
        count=1,
        match="rank 1 with element 0 of rank 0 with element 0 of rank 0: a contribution twice",
    )
    refused(
        "all_reduce",
        2,
        lambda group: own_and_other(group, final=False),
        count=1,
        match=r"recv\[0\] of rank 0 holds element 0 of ranks 0 and 1 .* passed no final fold",
    )
    refused(
        "all_reduce",
        2,
        own_and_other,
        count=1,
        deterministic=True,
        match="rank 0 .* not folded from left to right in the order of ranks",
    )
    refused("all_gather", 1, lambda group: own_and_other(group)[1:], count=1, match="never written")
    again = folds(np.array([0]), (Place(RECV, 0),), Place(RECV, 0), 1, final=True)
    refused(
        "all_reduce",
        2,
        lambda group: [*own_and_other(group), Round(local=(again,))],
        count=1,
        match="and one passed its final fold",
    )


def test_a_fold_of_different_elements_and_one_where_nothing_is_reduced() -> None:
    def rounds(group: Group) -> list[Round]:
        sources = (Place(SEND, 0), Place(SEND, 1))
        return [Round(local=(folds(group.rank, sources, Place(RECV, 0), 1, final=True),))]

    refused("all_reduce", 2, rounds, count=2, match="different elements")
    refused("all_to_all", 2, rounds, count=1, match="folds in a collective that does not reduce")


def test_a_narrow_float_that_is_rounded_twice() -> None:
    def build(group: Group, _call: Signature, _tuning: Tuning) -> Schedule:
        root = group.at == 2

        def come(src: int) -> Round:
            return Round(
                receives=(transfers(group.rank, src, SCRATCH, src, 1, root),),
                sends=(transfers(group.rank, 2, SEND, 0, 1, group.at == src),),
            )

        def fold(left: Place, right: Place, target: Place, *, final: bool) -> Round:
            step = folds(group.rank, (left, right), target, 1, final=final, where=root)
            return Round(local=(step,))

        first, second, both = (Place(SCRATCH, i) for i in range(3))
        rounds = [
            come(0),
            come(1),
            fold(first, second, both, final=False),
            fold(both, Place(SEND, 0), Place(RECV, 0), final=True),
        ]
        return Schedule((lambda: iter(rounds),), 3)

    prove("reduce", build, 3, root=2, count=1, deterministic=True)
    with pytest.raises(Unproven, match="a narrow float is rounded twice"):
        prove("reduce", build, 3, root=2, count=1, deterministic=True, dtype=BFLOAT16)


def test_a_result_that_is_not_there_or_another_one() -> None:
    refused("broadcast", 2, lambda _group: [], count=1, match="rank 1 holds nothing in the end")
    refused(
        "scan",
        2,
        lambda group: [Round(local=(copies(group.rank, Place(SEND, 0), Place(RECV, 0), 1),))],
        count=1,
        match="holds element 0 of rank 1 in the end, and must hold .* of each of ranks 0 to 1",
    )
    refused(
        "scan",
        1,
        lambda group: [Round(local=(copies(group.rank, Place(SEND, 0), Place(RECV, 0), 1),))],
        count=1,
        exclusive=True,
        match="and must be left as it was",
    )


def test_channels_that_touch_one_cell() -> None:
    def rounds(group: Group) -> list[Round]:
        return [Round(local=(copies(group.rank, Place(SEND, 0), Place(SCRATCH, 0), 1),))]

    refused("scan", 1, rounds, rounds, count=1, match=r"channel 1 and one .* touch scratch\[0\]")


def test_a_barrier_that_does_not_wait_for_all() -> None:
    def rounds(group: Group) -> list[Round]:
        told = signals(group.rank, (group.at + 1) % 3)
        return [Round((signals(group.rank, (group.at - 1) % 3),), (told,))]

    refused("barrier", 3, rounds, match="rank 0 may leave before all others have come")


# Shared memory.


def reading(group: Group) -> Round:
    """Each rank copies the element of its right neighbor."""
    peer = (group.at + 1) % group.size
    return Round(local=(copies(group.rank, Place(SEND, 0, peer), Place(SCRATCH, 0), 1),))


def test_memory_of_peers() -> None:
    def alone(group: Group) -> list[Round]:
        return [reading(group)]

    refused("scan", 2, alone, count=1, match="reaches into send of rank 1, which it may not")
    refused("scan", 2, alone, count=1, shared=True, match="rank 1 may not have come to the call")
    refused(
        "scan",
        2,
        lambda group: [Round(barrier=group), reading(group)],
        count=1,
        shared=True,
        match="rank 1 may have left the call",
    )
    refused(
        "scan",
        2,
        alone,
        count=1,
        shared=True,
        topology=arrange([0, 1]),
        match="into the memory of rank 1, on another node",
    )


def test_accesses_without_a_barrier_between() -> None:
    def rounds(group: Group) -> list[Round]:
        peer = (group.at + 1) % group.size
        write = copies(group.rank, Place(SEND, 0), Place(RECV, 0, peer), 1)
        read = copies(group.rank, Place(RECV, 0), Place(SCRATCH, 0), 1)
        return [
            Round(barrier=group),
            Round(local=(write,)),
            Round(local=(read,)),
            Round(barrier=group),
        ]

    refused(
        "scan",
        2,
        rounds,
        count=1,
        shared=True,
        match=r"touches recv\[0\] of rank \d with no barrier between: rank \d touches it in round",
    )


def test_a_barrier_to_which_one_does_not_come() -> None:
    def rounds(group: Group) -> list[Round]:
        first = Group(group.rank[:1], group.at[:1], group.size)
        return [Round(barrier=first)]

    refused("scan", 2, rounds, count=1, shared=True, match="rank 1, .* does not come to its group")


# Views.


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


# Arguments.


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
    with pytest.raises(UsageError, match="ring all_reduce has no staged form; give another"):
        prove("all_reduce", "ring", 2, form="staged")
    with pytest.raises(
        UsageError, match="form is 'other'; give one of 'build', 'direct', 'staged'"
    ):
        prove("all_reduce", "ring", 2, form="other")  # type: ignore[arg-type]
