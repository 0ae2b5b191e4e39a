"""Exchanges with listed peers, on any graph: proven, run on threads, and refused where lists do not fit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranked import on_threads

from hpccomm.errors import CommunicationError, RankMismatch, UsageError
from hpccomm.testing import prove, run_ranks

Peers = list["int | None"]


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> list[Peers]:
    """Symmetric lists of a few ranks, in any order, with repetitions, themselves and nobody."""
    size = draw(st.integers(1, most))
    rank = st.integers(0, size - 1)
    peers: list[Peers] = [[] for _ in range(size)]
    for one, other in draw(st.lists(st.tuples(rank, st.none() | rank), max_size=3 * size)):
        peers[one].append(other)
        if other is not None and other != one:
            peers[other].append(one)
    return [draw(st.permutations(mine)) for mine in peers]


def placed(peers: Sequence[Peers], rank: int, block: int) -> int:
    """Which block of its peer a block belongs to, found by counting."""
    peer = peers[rank][block]
    assert peer is not None
    before = sum(each == peer for each in peers[rank][:block])
    return [at for at, each in enumerate(peers[peer]) if each == rank][before]


@given(graphs(), st.data())
def test_any_graph_is_proven(peers: list[Peers], data: st.DataObject) -> None:
    def listed(each: st.SearchStrategy[Any], size: int) -> st.SearchStrategy[Any]:
        return st.lists(each, min_size=size, max_size=size)

    few = st.integers(0, 4)
    counts = few | st.tuples(*(listed(few, len(mine)) for mine in peers)).map(list)
    in_place = listed(st.booleans(), len(peers))
    drawn = {"count": counts, "in_place": in_place, "solo": st.booleans()}
    how: Any = {name: data.draw(each) for name, each in drawn.items()}
    prove("neighbor_all_to_all", "linear", len(peers), peers=peers, **how)


@given(graphs(4), st.integers(0, 3))
def test_any_graph_is_exchanged_on_threads(peers: list[Peers], rows: int) -> None:
    def call(comm: Any) -> None:
        mine = peers[comm.rank]
        x = np.arange(rows * len(mine)) + 1000.0 * comm.rank
        kept = comm.neighbor_all_to_all(x, mine, out=np.full(x.shape, -1.0))
        wanted = np.full((len(mine), rows), -1.0)
        for block, peer in enumerate(mine):
            if peer is not None:
                place = placed(peers, comm.rank, block)
                wanted[block] = 1000.0 * peer + rows * place + np.arange(rows)
        np.testing.assert_array_equal(kept, wanted.ravel())
        zeros = np.where(wanted == -1, 0, wanted).ravel()
        np.testing.assert_array_equal(comm.neighbor_all_to_all(x, mine), zeros)

    run_ranks(len(peers), call)


UNPROVEN: dict[str, list[Any]] = {
    "equally often": [[[1], []], [[1, 1], [0]], [[None], [0]]],
    "peers": [[[0]], [[0], [2]], [[0], "1"]],
}


def test_lists_that_mean_nothing_are_not_proven() -> None:
    for said, lists in UNPROVEN.items():
        for peers in lists:
            with pytest.raises(UsageError, match=said):
                prove("neighbor_all_to_all", "linear", 2, peers=peers)
    with pytest.raises(UsageError, match="peers is given, and all_to_all does not take it"):
        prove("all_to_all", "linear", 2, peers=[[1], [0]])


# MPI 4.1, 8.6: "neighbor collective operations" need edges that both ends agree on; a block that is sent must be
# expected as long (5.8, MPI_Alltoallv: "the type signature associated with sendcounts[j] ... must be equal").
def exchange_v(comm: Any, outgoing: Sequence[int], incoming: Sequence[int]) -> None:
    comm.all_to_all_v(np.ones(sum(outgoing)), outgoing, incoming)


WRONG_LISTS = {
    "right alone": (
        lambda c: c.neighbor_all_to_all(np.ones(2), [(c.rank + 1) % 3]),
        "lists rank . as a peer [01] times",
    ),
    "one twice": (
        lambda c: c.neighbor_all_to_all(np.ones(4 - 2 * c.rank), [[1, 1], [0], []][c.rank]),
        "lists rank . as a peer [12] times",
    ),
    "rows that nobody sends": (
        lambda c: exchange_v(c, [0, 0, 0], [0, 0, 5 * (c.rank == 0)]),
        "rank 2 sends 0 elements to rank 0, which expects 5",
    ),
    "other rows for a neighbor": (
        lambda c: c.neighbor_all_to_all(
            np.ones(3), [None if c.rank > 1 else 1 - c.rank], [3], [3 - c.rank]
        ),
        "rank 0 sends 3 elements to rank 1, which expects 2",
    ),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("wrong", WRONG_LISTS)
def test_lists_that_do_not_fit_are_found_in_the_first_call_and_later(wrong, known) -> None:
    call, said = WRONG_LISTS[wrong]

    def both(comm: Any) -> None:
        call(comm)
        comm.barrier()  # for those that wait for nobody

    def on_rank(comm: Any) -> None:
        for _ in range(2 if known else 0):  # of signatures, which the ranks then know
            comm.neighbor_all_to_all(np.ones(1), [(1, 0, None)[comm.rank]])
            exchange_v(comm, [1, 1, 1], [1, 1, 1])
        with pytest.raises(CommunicationError if known else RankMismatch, match=said):
            both(comm)

    if not (known and "other" in wrong):
        run_ranks(3, on_rank)


@on_threads(3)
def test_lists_in_a_batch_and_in_a_plan_are_compared(comm: Any) -> None:
    with pytest.raises(RankMismatch, match="lists rank"):
        comm.plan("neighbor_all_to_all", np.ones(2), [(comm.rank + 1) % 3])
    others = [(comm.rank + 1) % 3, (comm.rank - 1) % 3]
    sent = [2, 0] if comm.rank == 2 else [1, 1]
    with pytest.raises(RankMismatch, match="sends 2 elements to rank 0, which expects 1"):
        comm.plan("neighbor_all_to_all", np.ones(2), others, sent, [1, 1])
    with pytest.raises(RankMismatch, match="lists rank"), comm.batch():
        comm.neighbor_all_to_all(np.ones(2), [(comm.rank + 1) % 3])
