"""Whether the plans of ranks fit together."""

from hypothesis import given
from hypothesis import strategies as st

from hpccomm.communicator.plan_agreement import Announced, Sent, differing, read

Edge = tuple[int, int, int, int]
"""Sender, receiver, tag and bytes."""

EDGES = st.lists(st.tuples(*(st.integers(0, 3) for _ in range(4))), max_size=20)
RANKS = 4


def message(edge: Edge, peer: int) -> Sent:
    return Sent("a message", peer, edge[2], 8 * edge[3], "float64", "host")


def plans(edges: list[Edge]) -> list[Announced]:
    return [
        Announced(
            "here",
            None,
            [message(each, each[1]) for each in edges if each[0] == rank],
            [message(each, each[0]) for each in edges if each[1] == rank],
            False,
        )
        for rank in range(RANKS)
    ]


@given(EDGES)
def test_what_is_sent_as_it_is_received_fits(edges: list[Edge]) -> None:
    assert differing(plans(edges)) is None


@given(EDGES.filter(bool), st.data())
def test_a_message_more_less_or_changed_is_told_with_its_ranks(
    edges: list[Edge], data: st.DataObject
) -> None:
    made = plans(edges)
    rank = data.draw(st.sampled_from([each[1] for each in edges]))
    receives = list(made[rank].receives)
    place = data.draw(st.integers(0, len(receives) - 1))
    one = receives[place]
    receives[place : place + 1] = data.draw(
        st.sampled_from(
            [
                [],
                [one, one],
                [one._replace(tag=9)],
                [one._replace(nbytes=one.nbytes + 1)],
                [one._replace(dtype="int64")],
                [one._replace(memory="device")],
            ]
        )
    )
    made[rank] = made[rank]._replace(receives=receives)
    wrong = differing(made)
    assert wrong is not None
    text, ranks = wrong
    assert ranks == (one.peer, rank)
    assert f"rank {one.peer} sends rank {rank}" in text


def test_other_collectives_are_told_with_their_places() -> None:
    one, other = {"operation": "all_reduce", "count": 4}, {"operation": "all_reduce", "count": 5}
    mine = Announced("a.py line 2", one, [], [], False)
    theirs = Announced("b.py line 8", other, [], [], False)
    wrong = differing([mine, mine, read(*theirs)])
    assert wrong is not None
    assert wrong[1] == (2,)
    for word in ("count 4", "count 5", "a.py line 2", "b.py line 8"):
        assert word in wrong[0]
    wrong = differing([mine, mine, mine._replace(collective=None)])
    assert wrong is not None
    assert "no call" in wrong[0]
