"""Cases: hooks see the calls that the backend carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.testing.conformance.case import Behaviours

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

OBSERVERS = Behaviours("observers")


@OBSERVERS.behaviour()
def hooks_see_calls(comm: Communicator) -> None:
    """A hook before and one after each call learn which it is, how much it moves and how long."""
    before: list[Any] = []
    after: list[Any] = []
    handles = (comm.register_pre_hook(before.append), comm.register_post_hook(after.append))
    try:
        comm.all_reduce(np.zeros(4))
        comm.broadcast(np.zeros(2, np.int8))
        comm.barrier()
        comm.all_gather_object("x")
        comm.all_reduce(np.zeros(8), async_op=True).wait()
    finally:
        for handle in handles:
            handle.close()
    operations = ["all_reduce", "broadcast", "barrier", "all_gather_object", "all_reduce"]
    assert [info.operation for info in before] == operations, before
    assert [info.operation for info in after] == operations, after
    assert [info.nbytes for info in before][:3] == [32, 2, 0], before
    assert before[-1].nbytes == 64, before
    for first, last in zip(before, after, strict=True):
        assert (first.rank, first.communicator) == (comm.rank, comm.name), first
        assert first.sequence == last.sequence, (first, last)
        assert first.elapsed is None, first
        assert last.elapsed is not None, last
        assert last.elapsed >= 0, last
        assert last.error is None, last
    sequences = [info.sequence for info in before]
    assert sequences == sorted(set(sequences)), "sequence numbers grow"
