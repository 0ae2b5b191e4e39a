"""Whether the plans of ranks fit together, and which numbers their messages have."""

from hypothesis import given
from hypothesis import strategies as st

from hpccomm.communicator.steps import Announced, Sent, differing, most_messages, numbers, read

Edge = tuple[int, int, int, int]
"""Sender, receiver, tag and bytes."""

EDGES = st.lists(st.tuples(*(st.integers(0, 3) for _ in range(4))), max_size=20)
RANKS = 4


def message(edge: Edge, peer: int) -> Sent:
    return Sent(0, "a message", peer, edge[2], 8 * edge[3], "float64", "host")


def plans(edges: list[Edge]) -> list[Announced]:
    return [
        Announced(
            ["here"],
            [],
            [message(each, each[1]) for each in edges if each[0] == rank],
            [message(each, each[0]) for each in edges if each[1] == rank],
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


@given(EDGES, st.randoms())
def test_both_ends_of_a_message_find_the_same_number_in_whatever_order_tags_come(
    edges: list[Edge], random: "object"
) -> None:
    each = [(*edge[:3], place) for place, edge in enumerate(edges)]  # bytes tell them apart
    # The receiver has another order of the tags, and the same within one.
    order = sorted(range(10), key=lambda _: random.random())  # type: ignore[attr-defined]
    taken = sorted(each, key=lambda edge: order[edge[2]])
    found: dict[tuple[int, int, int], set[int]] = {}
    for rank in range(RANKS):
        sends = [message(edge, edge[1]) for edge in each if edge[0] == rank]
        receives = [message(edge, edge[0]) for edge in taken if edge[1] == rank]
        for one, number in zip(sends, numbers(sends), strict=True):
            found.setdefault((rank, one.peer, one.nbytes), set()).add(number)
        for one, number in zip(receives, numbers(receives), strict=True):
            found.setdefault((one.peer, rank, one.nbytes), set()).add(number)
    assert all(len(both) == 1 for both in found.values())
    pairs = [(src, dst, *number) for (src, dst, _), number in found.items()]
    assert len(set(pairs)) == len(pairs)  # none has the number of another one
    assert max((number for *_, number in pairs), default=-1) < max(most_messages(plans(edges)), 1)


def test_collectives_are_compared_in_their_order() -> None:
    one, other = {"operation": "all_reduce", "count": 4}, {"operation": "all_reduce", "count": 5}
    mine = Announced(["a.py line 1", "a.py line 2"], [(0, one), (1, one)], [], [])
    theirs = Announced(["b.py line 7", "b.py line 8"], [(0, one), (1, other)], [], [])
    wrong = differing([mine, mine, read(theirs)])
    assert wrong is not None
    assert wrong[1] == (2,)
    for word in ("number 2", "count 4", "count 5", "a.py line 2", "b.py line 8"):
        assert word in wrong[0]
    wrong = differing([mine, mine, mine._replace(collectives=[(0, one)])])
    assert wrong is not None
    assert "no call" in wrong[0]
