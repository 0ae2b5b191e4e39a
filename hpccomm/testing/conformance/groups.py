"""Cases of `Backend.group` and of the backend's facts: ranks, places, and messages of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import RankMismatch
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.trials import another

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

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


@GROUPS.behaviour(min_size=2)
def split_ranks_that_differ(comm: Communicator) -> None:
    """Ranks that list others get the error, on all ranks."""
    ranks = [0] if comm.rank == comm.size - 1 else [0, 1]
    with raises(RankMismatch, "split_ranks", "[0, 1]"):
        comm.split_ranks(ranks)
    comm.barrier()


@GROUPS.behaviour(min_size=2)
def shrink(comm: Communicator) -> None:
    """The remaining ranks make a communicator, in their order; the others do nothing."""
    everyone = range(comm.size)
    for excluded in ([0], (comm.size - 1,), {*everyone} - {0}, everyone[1::2]):
        # A parent whose ranks no longer count the same groups makes no more of them.
        with comm.dup() as parent:
            if comm.rank not in excluded:
                stay = [rank for rank in everyone if rank not in excluded]
                with parent.shrink(excluded) as group:
                    assert members(group, comm) == stay, f"without {excluded}"
                    if group.rank:
                        with group.shrink([0], name="twice") as fewer:
                            assert fewer.name == "twice", fewer.name
                            assert members(fewer, comm) == stay[1:], "shrunk again"


@GROUPS.behaviour()
def groups_work_beside_their_parent(comm: Communicator) -> None:
    """Asynchronous calls on a parent, on groups that overlap and on another one are under way at once."""
    group, twin = comm.split(comm.rank % 2), comm.dup()
    assert group is not None
    with group, twin, another(comm, name="second") as second:
        assert (second.rank, second.size, second.name) == (comm.rank, comm.size, "second"), second
        assert second.backends == comm.backends, "backends"
        ours, ranks, works = sum(members(group, comm)), sum(range(comm.size)), []
        for scale in range(1, 6):
            for each, expected in ((comm, ranks), (group, ours), (twin, ranks), (second, ranks)):
                x = np.full(1000, comm.rank * scale, np.int64)
                works.append((each.all_reduce(x, async_op=True), expected * scale))
        for work, expected in reversed(works):
            equal(work.wait(), np.full(1000, expected, np.int64))


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
