"""Threads that are ranks reach each other's arrays."""

import time

import numpy as np
import pytest

from hpccomm import Communicator, UsageError
from hpccomm.backends.loopback import LoopbackTransport, make_world
from hpccomm.errors import CollectiveTimeout, CommunicationError
from hpccomm.testing import run_ranks


def test_what_a_late_rank_reaches_is_still_there() -> None:
    def late(comm: Communicator) -> str:
        x = np.full(100_000, comm.rank + 1.0)
        if comm.rank:
            time.sleep(0.5)
        with pytest.raises(CommunicationError) as caught:
            comm.all_reduce(x, algorithm="shm", timeout=0.2)
        del x
        time.sleep(0.6 - 0.4 * comm.rank)  # rank 0 has given up and let go when rank 1 begins
        return type(caught.value).__name__

    assert run_ranks(2, late)[0] == CollectiveTimeout.__name__


def test_arrays_are_let_go_of() -> None:
    world = make_world(2)
    mine, theirs = (LoopbackTransport(world, ("it",), (0, 1), rank) for rank in range(2))
    assert mine.shared is not None
    assert theirs.shared is not None
    one, other = np.arange(3), np.arange(4)
    here, there = mine.shared.expose([one]), theirs.shared.expose([other])
    assert here.reach(1, 0) is other
    assert there.reach(0, 0) is one
    here.withdraw()
    there.withdraw()
    assert not world.exposed


def test_ranks_on_several_nodes_do_not_share_memory() -> None:
    def asks(comm: Communicator) -> None:
        with pytest.raises(UsageError, match="'ring'"):
            comm.all_reduce(np.ones(3), algorithm="shm")

    run_ranks(4, asks, ranks_per_node=2)
