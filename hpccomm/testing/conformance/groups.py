"""Cases of `Backend.group` and of the backend's facts: ranks, places, and messages of one's own."""

import numpy as np

from hpccomm.communicator import Communicator
from hpccomm.testing.conformance.case import Behaviours

GROUPS = Behaviours("groups")


def members(group: Communicator, comm: Communicator) -> list[int]:
    """Return the ranks in `comm` of `group`'s members, in `group`'s order; collective over it."""
    return [int(rank) for rank in group.all_gather(np.array(comm.rank))]


@GROUPS.behaviour()
def facts(comm: Communicator) -> None:
    """Rank, size, place and paths agree with one another over the ranks."""
    assert 0 <= comm.rank < comm.size, "rank"
    assert 0 <= comm.local_rank < comm.local_size <= comm.size, "local rank"
    assert 0 <= comm.node < comm.num_nodes <= comm.size, "node"
    places = comm.all_gather_object((comm.rank, comm.node, comm.local_rank, comm.local_size))
    assert [place[0] for place in places] == list(range(comm.size)), "ranks in order"
    for node in range(comm.num_nodes):
        local = [place for place in places if place[1] == node]
        assert [place[2] for place in local] == list(range(len(local))), "local ranks in order"
        assert {place[3] for place in local} == {len(local)}, "local size"
    assert isinstance(comm.backends["host"], str), "the host path's backend"
    assert len(set(comm.all_gather_object((comm.size, comm.num_nodes, comm.name)))) == 1, "agreed"
    local_comm = comm.node_comm
    assert local_comm is comm.node_comm, "made once"
    assert (local_comm.rank, local_comm.size) == (comm.local_rank, comm.local_size), "node_comm"
    here = [rank for rank, place in enumerate(places) if place[1] == comm.node]
    assert members(local_comm, comm) == here, "members of node_comm"


@GROUPS.behaviour()
def split(comm: Communicator) -> None:
    """Ranks of one color make a communicator in the order of keys; None takes part and gets None."""
    for color in (comm.rank % 2, 0, None if comm.rank == 0 else 5, None):
        for key in (0, -comm.rank, comm.rank // 2, -(comm.rank % 2)):
            chosen = comm.all_gather_object((color, key))
            group = comm.split(color, key)
            assert (group is None) == (color is None), "None for None"
            if group is not None:
                with group:
                    same = [rank for rank in range(comm.size) if chosen[rank][0] == color]
                    expected = sorted(same, key=lambda rank: (chosen[rank][1], rank))
                    assert group.rank == expected.index(comm.rank), f"rank, {chosen}"
                    assert members(group, comm) == expected, f"members, {chosen}"


@GROUPS.behaviour()
def split_ranks(comm: Communicator) -> None:
    """The ranks listed make a communicator in the order listed; the others get None."""
    lists = [[comm.size - 1], list(range(0, comm.size, 2)), list(reversed(range(comm.size)))]
    for ranks in lists:
        group = comm.split_ranks(ranks)
        assert (group is not None) == (comm.rank in ranks), f"ranks {ranks}"
        if group is not None:
            with group:
                assert group.rank == ranks.index(comm.rank), f"ranks {ranks}"
                assert members(group, comm) == ranks, f"ranks {ranks}"


@GROUPS.behaviour()
def groups_outlive_their_parent(comm: Communicator) -> None:
    """A group of a group works, also after both of its parents are finalized."""
    parent = comm.dup()
    half = parent.split(int(comm.rank >= comm.size // 2))
    assert half is not None
    pair = half.split(half.rank // 2)
    assert pair is not None
    parent.finalize()
    half.finalize()
    with pair:
        x = np.array([comm.rank])
        pair.all_reduce(x)
        assert x[0] == sum(members(pair, comm)), "sum over the pair"
