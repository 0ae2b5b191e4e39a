"""The ranks named for a late call, and the words."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpccomm
from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, STOPPED, Answer
from hpccomm.runtime.raised import beside
from hpccomm.runtime.verdict import judge, side_by_side

NUMBER = 7
TERMS = {"operation": "all_reduce", "count": 10, "op": "SUM"}
OTHERS = {"operation": "all_reduce", "count": 20, "op": "SUM"}

KINDS = {
    # What became of the rank: its state, whether it has begun the call, and what else is known.
    "waits": (ANSWERED, True, {"done": NUMBER - 1}),
    "has gone on": (ANSWERED, True, {"done": NUMBER, "collective": NUMBER + 3}),
    "has gone on for long": (ANSWERED, False, {"done": NUMBER, "collective": NUMBER + 9999}),
    "has done it and ended": (GONE, True, {"done": NUMBER}),
    "missing": (ANSWERED, False, {"doing": "step(), train.py line 41"}),
    "unknown": (ANSWERED, False, {"unknown": True}),
    "closed": (ANSWERED, False, {"closed": "was finalized"}),
    "left": (ANSWERED, False, {"leaving": True}),
    "gone": (GONE, False, {}),
    "stopped": (STOPPED, False, {}),
    "stopped in it": (STOPPED, True, {"done": NUMBER - 1}),
    "silent": (SILENT, False, {}),
    "failed in it": (ANSWERED, True, {"failed": "a deadline"}),
    "gone in it": (GONE, True, {"done": NUMBER - 1}),
    "silent in it": (SILENT, True, {"done": NUMBER - 1}),
}
HEALTHY = frozenset({"waits", "has gone on", "has gone on for long", "has done it and ended"})
FALLEN = frozenset({"failed in it", "gone in it", "silent in it"})
LEFT = frozenset({"closed", "left"})
"""They answer, and are as good as gone."""
FIELDS = {ANSWERED: "missing", GONE: "gone", STOPPED: "stopped", SILENT: "silent"}


def facts(rank: int, begun: bool, more: dict[str, Any], record: Any = TERMS) -> dict[str, Any]:
    known = {"collective": NUMBER if begun else NUMBER - 1, "record": record if begun else None}
    return {"rank": rank, "host": "n1", "pid": 100 + rank, "now": None, **known, **more}


def there(rank: int, begun: bool, **more: Any) -> Answer:
    """What a rank answers that is there."""
    return Answer(ANSWERED, facts(rank, begun, more))


def answered(kinds: dict[int, str], records: dict[int, Any] | None = None) -> dict[int, Answer]:
    answers = {}
    for rank, kind in kinds.items():
        state, begun, more = KINDS[kind]
        answers[rank] = Answer(state, facts(rank, begun, more, (records or {}).get(rank, TERMS)))
    return answers


def waits_in(operation: str, collective: int = 0, **more: Any) -> dict[str, Any]:
    """Facts of the rank that asks, which waits in a call."""
    now = {"operation": operation, "collective": collective, "site": "a", "since": 0.3}
    return facts(0, collective > 0, {"now": now | more})


MINE = waits_in("all_reduce", NUMBER)


def mentioned(text: str) -> set[int]:
    """Return the ranks that a text names."""
    found = set()
    for listed in re.findall(r"ranks? ([\d, and-]+)", text):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
            found.update(range(int(first), int(last or first) + 1))
    return found


def test_who_is_gone_is_lost_to_a_message_only_if_nobody_else_can_end_it() -> None:
    mine = waits_in("batch")
    assert judge(mine, answered({1: "closed"})).gone == (1,)
    verdict = judge(mine, answered({1: "closed", 2: "missing", 3: "gone"}))
    assert (verdict.gone, verdict.absent) == ((), (1, 2, 3))


def test_who_waits_in_an_earlier_call_is_not_to_blame_but_for_want_of_others() -> None:
    earlier = {1: there(1, False, now=waits_in("fence", NUMBER - 1)["now"])}
    verdict = judge(MINE, earlier | answered({2: "stopped"}))
    assert (verdict.absent, verdict.held_up) == ((2,), (1,))
    assert mentioned(verdict.text) == {1, 2}
    assert judge(MINE, earlier | answered({2: "waits"})).absent == (1,)


def test_of_two_neighbors_the_one_is_named_that_has_not_begun_its_part() -> None:
    mine = waits_in("send_recv", waits=[wait("dst", 1, 5, sure=False), wait("src", 2, 5)])
    mine["counts"] = {1: [(0, 5, 0)], 2: [(0, 0, 5)]}
    verdict = judge(mine, {1: there(1, False, counts=[(0, 0, 5)]), **answered({2: "gone"})})
    assert (verdict.absent, mentioned(verdict.text)) == ((2,), {2})


def wait(
    way: str, peer: int, number: int, channel: int = 0, *, sure: bool = True
) -> dict[str, Any]:
    ends = {"way": way, "peer": peer, "channel": channel, "told_apart": True}
    return ends | {"number": number, "of_all": number, "sure": sure, "lone": True, "open": False}


def receives(rank: int, awaited: dict[str, Any], counts: Any) -> dict[str, Any]:
    """Facts of a rank in a receive, about its messages with the rank that asks."""
    now = waits_in("recv", held=True, waits=[awaited])["now"]
    return facts(rank, False, {"now": now | {"site": f"{rank}.py"}, "counts": counts})


@pytest.mark.parametrize(
    ("channel", "said"),
    [(14, "an array with tag 7"), (7, "an object with tag 3"), (9, "an object with tag 4")],
)
def test_messages_of_another_tag_or_kind_are_told_and_match_nothing(
    channel: int, said: str
) -> None:
    mine = receives(0, wait("src", 1, 1, 6), {1: [(6, 0, 1)]})
    sends = receives(1, wait("src", 0, 1), [(channel, 1, 0)])
    verdict = judge(mine, {1: Answer(ANSWERED, sends)})
    assert verdict.missing == (1,)
    assert f"rank 1 has sent {said}, which no rank receives" in verdict.remarks
    assert "while an array with tag 3 is awaited" in verdict.unreceived
    # Where channels are not told apart, any message may be the one.
    assert judge(mine, {1: Answer(ANSWERED, {**sends, "counts": [(-2, 1, 0)]})}).missing == ()


def test_who_is_at_the_end_of_a_chain_is_blamed_and_not_those_that_wait() -> None:
    mine = receives(0, wait("src", 1, 1), {1: []})
    first = {1: Answer(ANSWERED, receives(1, wait("src", 2, 1), []))}
    third = there(3, False, doing="read(), load.py line 2")
    verdict = judge(mine, first, lambda _: {3: third})
    assert (verdict.absent, verdict.held_up, verdict.differing) == ((3,), (1,), ())
    assert verdict.text.endswith(
        "rank 3 on node n1 (pid 103) is in read(), load.py line 2, and has not taken part in the awaited call"
    )
    gone = Answer(GONE, {"host": "n1", "pid": 103})
    assert judge(mine, first, lambda _: {3: gone}).absent == (3,)
    assert judge(mine, first).absent == (1,)


@pytest.mark.parametrize("waited", [0.5, 3.0])
def test_a_rank_that_leaves_without_waiting_for_what_it_began_is_blamed(waited: float) -> None:
    mine = waits_in("all_reduce", NUMBER, since=waited)
    under_way = {"operation": "all_reduce", "collective": NUMBER, "site": "main(), b.py line 3"}
    left = {"now": under_way, "done": NUMBER - 1, "leaving": True}
    peers = {1: there(1, True, **left), **answered({2: "waits"})}
    verdict = judge(mine, peers)
    assert (verdict.gone, verdict.missing) == (((1,), ()) if waited > 2 else ((), (1,)))
    said = "rank 1 on node n1 (pid 101) has come to the end of the program without waiting for all_reduce #7 at main(), b.py line 3"
    assert verdict.text.startswith(said)
    # One that has not come at all explains more, and one that was done is no reason.
    assert judge(mine, peers | answered({2: "missing"})).absent == (2,)
    assert judge(mine, peers | {1: there(1, True, **left | {"done": NUMBER})}).absent == ()
    mine = waits_in("recv", since=waited, waits=[wait("src", 1, 1)]) | {"counts": {1: [(0, 0, 1)]}}
    assert judge(mine, {1: there(1, False, **left, counts=[(0, 1, 0)])}).absent == (1,)


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=9))
def test_those_are_blamed_who_keep_the_call_waiting_and_no_others(kinds: list[str]) -> None:
    of_rank = dict(enumerate(kinds, 1))
    verdict = judge(MINE, answered(of_rank))
    guilty = {rank for rank, kind in of_rank.items() if kind not in HEALTHY | FALLEN}
    guilty = guilty or {rank for rank, kind in of_rank.items() if kind in FALLEN}
    assert verdict.absent == tuple(sorted(guilty))
    assert verdict.differing == ()
    for rank in guilty:
        kind = of_rank[rank]
        assert rank in getattr(verdict, "gone" if kind in LEFT else FIELDS[KINDS[kind][0]])
    blaming = "; ".join(part for part in verdict.text.split("; ") if "wait in it" not in part)
    assert mentioned(blaming) == guilty
    if guilty and len(guilty) < len(kinds):
        waiting = {0} | {r for r, kind in of_rank.items() if kind in HEALTHY}
        assert waiting <= mentioned(verdict.text)


@given(
    st.lists(st.sampled_from(["waits", "has gone on", "missing", "gone"]), min_size=1, max_size=9),
    st.data(),
)
def test_calls_that_differ_are_shown_side_by_side_and_the_minority_is_blamed(
    kinds: list[str], data: st.DataObject
) -> None:
    of_rank = dict(enumerate(kinds, 1))
    odd = {rank for rank in of_rank if data.draw(st.booleans(), label=f"rank {rank} differs")}
    verdict = judge(MINE, answered(of_rank, dict.fromkeys(odd, OTHERS)))
    called = {0} | {rank for rank, kind in of_rank.items() if KINDS[kind][1]}
    fewer, more = sorted([called & odd, called - odd], key=len)
    blamed = called if len(fewer) == len(more) else fewer
    assert verdict.differing == tuple(sorted(blamed))
    if fewer:
        assert mentioned(verdict.text) == called
        assert "count 10" in verdict.text
        assert "count 20" in verdict.text
        assert "op" not in re.findall(r"\((.*?)\)", verdict.text)[0]  # all have the same


@pytest.mark.parametrize("operation", ["gather", "all_to_all", "all_reduce"])
def test_blocks_of_different_sizes_lead_to_the_call_that_takes_them(operation: str) -> None:
    called = {
        rank: {"record": {"operation": operation, "count": 3 + rank, "shape": str((3 + rank,))}}
        for rank in range(2)
    }
    text = f"{operation}_v takes blocks of different sizes"
    assert (text in side_by_side(called)) is hasattr(hpccomm.Communicator, f"{operation}_v")
    called[1]["record"] |= {"shape": "(1, 4)"}  # of other rows, which it does not take
    assert text not in side_by_side(called)
    called[1]["record"] |= {"shape": "(4,)", "dtype": "int64"}
    assert text not in side_by_side(called)


def test_the_sentence_says_who_is_where() -> None:
    mine = MINE | {"site": "step(), train.py line 38"}
    answers = answered({1: "waits", 2: "missing", 3: "missing", 4: "missing", 5: "gone"})
    for rank in (1, 3):
        more = {"site": mine["site"]} if rank == 1 else {"doing": "read(), load.py line 2"}
        answers[rank] = Answer(ANSWERED, {**answers[rank].facts, **more})
    assert judge(mine, answers).text == (
        "ranks 2 and 4 on node n1 are in step(), train.py line 41, and have not called all_reduce #7; "
        "rank 3 on node n1 (pid 103) is in read(), load.py line 2, and has not called all_reduce #7; "
        "the process of rank 5 on node n1 (pid 105) has ended; the last call heard of was #6; "
        "ranks 0 and 1 wait in it at step(), train.py line 38"
    )


def test_ranks_that_end_a_communicator_together_do_not_lose_each_other() -> None:
    closed = {"closed": "is finalized"}
    peers = {1: there(1, False, **closed)}
    assert judge(MINE, peers).gone == (1,)
    assert judge(MINE | closed, peers).absent == ()


@pytest.mark.parametrize("closed", [False, True], ids=["not closed yet", "closed"])
def test_a_call_that_others_have_left_by_their_own_error_is_no_mismatch_at_the_end(
    closed: bool,
) -> None:
    """How soon they close the communicator after the error must not matter."""
    mine = waits_in("finalize", NUMBER, since=3.0) | {"record": {"operation": "finalize"}}
    left = {"failed": "KeyError: 'x'", "closed": "left a call by KeyError: 'x'"}
    more = {"closed": "is finalized", "record": None} if closed else {}
    verdict = judge(mine, {1: there(1, True, **left | more)})
    assert (verdict.differing, verdict.gone) == ((), (1,))
    # Who still is in that call differs.
    assert judge(mine, {1: there(1, True, now=MINE["now"])}).differing == (0, 1)


def test_ranks_that_are_told_of_last_are_in_a_sentence_as_well() -> None:
    answers = answered(dict.fromkeys(range(1, 12), "missing"))
    for rank, answer in answers.items():
        answers[rank] = Answer(ANSWERED, {**answer.facts, "doing": f"step(), a.py line {rank}"})
    assert judge(MINE, answers).text.endswith("; ranks 9-11 have not called all_reduce #7 either")
    fewer = {rank: answer for rank, answer in answers.items() if rank < 10}
    assert judge(MINE, fewer).text.endswith("; rank 9 has not called all_reduce #7 either")
    mine = waits_in("recv") | {"record": None}
    text = judge(mine, answers).text
    assert text.endswith("; ranks 9-11 have not taken part in the recv either")


def test_many_ranks_are_shortened() -> None:
    kinds = {rank: "missing" if rank % 2 else "stopped" for rank in range(1, 4001)}
    text = judge(MINE, answered(kinds)).text
    assert len(text) < 500
    assert "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 1992 more" in text


def test_errors_of_other_ranks_are_told_beside_the_own_one() -> None:
    own, alike, other = (
        {"error": f"{what}\nmore", "site": "a.py line 7"} for what in ("no 3", "no 4", "not")
    )
    told = beside(own, {1: alike, 2: alike, 5: other, 7: other | {"error": "none", "site": ""}})
    assert told == (
        "; ranks 1 and 2 raised the same; rank 5 raised at a.py line 7: not; rank 7 raised: none"
    )
