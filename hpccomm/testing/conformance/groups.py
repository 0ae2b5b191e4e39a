"""Cases: communicators made of others, and the facts of a communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpccomm.errors import RankMismatch
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises

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
    assert set(comm.backends) == {"host", "cuda"}, "backends"
    assert isinstance(comm.backends["host"], str), "the host path's backend"
    assert isinstance(comm.name, str), "name"
    assert len(set(comm.all_gather_object((comm.size, comm.num_nodes, comm.name)))) == 1, "agreed"


@GROUPS.behaviour()
def split_by_parity(comm: Communicator) -> None:
    """Ranks of one colour make a communicator, in the parent's order."""
    group = comm.split(comm.rank % 2)
    assert group is not None, "a colour gives a communicator"
    with group:
        expected = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
        assert (group.rank, group.size) == (expected.index(comm.rank), len(expected)), "ranks"
        assert members(group, comm) == expected, "members"


@GROUPS.behaviour()
def split_without_colour(comm: Communicator) -> None:
    """The colour None takes part in the call and gets None."""
    group = comm.split(None if comm.rank == 0 else 5)
    assert (group is None) == (comm.rank == 0), "None for None"
    if group is not None:
        with group:
            assert members(group, comm) == list(range(1, comm.size)), "members"
    assert comm.split(None) is None, "no colour at all"


@GROUPS.behaviour()
def split_in_the_order_of_keys(comm: Communicator) -> None:
    """Ranks follow the key; of equal keys, the parent's rank."""
    for key in (-comm.rank, comm.rank // 2, 0, -(comm.rank % 2)):
        keys = comm.all_gather_object(key)
        group = comm.split(0, key)
        assert group is not None
        with group:
            expected = sorted(range(comm.size), key=lambda rank: (keys[rank], rank))
            assert members(group, comm) == expected, f"keys {keys}"


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


@GROUPS.behaviour()
def dup(comm: Communicator) -> None:
    """A duplicate has the same ranks, and its messages keep to it."""
    with comm.dup() as twin:
        assert (twin.rank, twin.size) == (comm.rank, comm.size), "ranks"
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        works = [comm.send(np.array([1]), right, async_op=True)]
        works.append(twin.send(np.array([2]), right, async_op=True))
        out = np.array([0])
        twin.recv(out, left)
        assert out[0] == 2, "the twin's message"
        comm.recv(out, left)
        assert out[0] == 1, "the parent's message"
        for work in works:
            work.wait()
    assert comm.all_reduce(np.array([1]))[0] == comm.size, "the parent lives on"


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
                    x = np.full(1000, comm.rank)
                    group.all_reduce(x)
                    equal(x, np.full(1000, sum(stay)), f"without {excluded}")
                    if group.rank:
                        with group.shrink([0], name="twice") as fewer:
                            assert fewer.name == "twice", fewer.name
                            assert members(fewer, comm) == stay[1:], "shrunk again"


@GROUPS.behaviour()
def node_comm(comm: Communicator) -> None:
    """The ranks of this node, in order; made once."""
    local = comm.node_comm
    assert local is comm.node_comm, "made once"
    assert (local.name == comm.name) == (comm.num_nodes == 1), "itself on one node"
    assert (local.rank, local.size) == (comm.local_rank, comm.local_size), "local rank and size"
    places = comm.all_gather_object(comm.node)
    expected = [rank for rank, node in enumerate(places) if node == comm.node]
    assert members(local, comm) == expected, "members"


@GROUPS.behaviour()
def groups_within_groups(comm: Communicator) -> None:
    """A group can be split again, and its own groups work."""
    half = comm.split(int(comm.rank >= comm.size // 2))
    assert half is not None
    with half:
        pair = half.split(half.rank // 2)
        assert pair is not None
        with pair:
            x = np.array([comm.rank])
            pair.all_reduce(x)
            assert x[0] == sum(members(pair, comm)), "sum over the pair"


@GROUPS.behaviour()
def groups_work_beside_their_parent(comm: Communicator) -> None:
    """Asynchronous calls on a parent and on groups that overlap are under way at once."""
    group = comm.split(comm.rank % 2)
    twin = comm.dup()
    assert group is not None
    with group, twin:
        ours = sum(members(group, comm))
        ranks = sum(range(comm.size))
        works = []
        for scale in range(1, 6):
            for each, expected in ((comm, ranks), (group, ours), (twin, ranks)):
                x = np.full(1000, comm.rank * scale, np.int64)
                works.append((each.all_reduce(x, async_op=True), expected * scale))
        for work, expected in reversed(works):
            equal(work.wait(), np.full(1000, expected, np.int64))


@GROUPS.behaviour()
def groups_outlive_their_parent(comm: Communicator) -> None:
    """Finalizing a parent leaves the groups made of it working."""
    parent = comm.dup()
    child = parent.split(0)
    assert child is not None
    parent.finalize()
    with child:
        assert child.all_reduce(np.array([1]))[0] == comm.size
