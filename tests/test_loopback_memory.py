"""Threads that are ranks reach each other's arrays."""

import threading

import numpy as np
import pytest

from hpccomm import CommOptions, Communicator, UsageError
from hpccomm.backends.loopback import LoopbackMemory, LoopbackTransport, make_world
from hpccomm.errors import CollectiveTimeout, CommunicationError
from hpccomm.testing import run_ranks


def test_what_a_late_rank_reaches_is_still_there() -> None:
    given_up, over = threading.Event(), threading.Barrier(2)

    def late(comm: Communicator) -> str:
        x = np.full(100_000, comm.rank + 1.0)
        if comm.rank:
            assert given_up.wait(60)
        with pytest.raises(CommunicationError) as caught:
            comm.all_reduce(x, algorithm="shm", timeout=0.2)
        del x
        given_up.set()  # rank 0 has let go when rank 1 begins
        over.wait(60)  # and is still there
        return type(caught.value).__name__

    assert run_ranks(2, late)[0] == CollectiveTimeout.__name__


def test_arrays_are_let_go_of() -> None:
    world = make_world(2)
    mine, theirs = (LoopbackTransport(world, ("it",), (0, 1), rank) for rank in range(2))
    assert mine.shared is not None
    assert theirs.shared is not None
    one, other = np.arange(3), np.arange(4)
    here, there = (
        each.expose([data], 0, 0, plain=True, room=0)
        for each, data in ((mine.shared, one), (theirs.shared, other))
    )
    assert np.shares_memory(here.reach(1, 0, other.dtype), other)
    assert np.shares_memory(there.reach(0, 0, one.dtype), one)
    assert not world.exposed
    here.withdraw()
    there.withdraw()
    for exposure in (here, there):
        with pytest.raises(KeyError):
            exposure.reach(0, 0, one.dtype)


def test_ranks_on_several_nodes_do_not_share_memory() -> None:
    def asks(comm: Communicator) -> None:
        with pytest.raises(UsageError, match="'ring'"):
            comm.all_reduce(np.ones(3), algorithm="shm")

    run_ranks(4, asks, ranks_per_node=2)


def test_what_a_room_cuts_into_too_many_pieces_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    expose = LoopbackMemory.expose

    def noted(self, buffers, fingerprint, scratch, **keywords):
        wanted.append(scratch)
        return expose(self, buffers, fingerprint, scratch, **keywords)

    monkeypatch.setattr(LoopbackMemory, "expose", noted)
    smallest = CommOptions(shared_memory="staging", shared_memory_room=64, self_check=False)

    def summed(comm: Communicator, count: int) -> None:
        assert (comm.all_reduce(np.ones(count), algorithm="shm") == 2).all()

    run_ranks(2, summed, 500, options=smallest)
    assert min(wanted) > 0
    wanted.clear()
    run_ranks(2, summed, 40_000, options=smallest)
    assert max(wanted) == 0
