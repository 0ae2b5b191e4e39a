"""Cases: a second communicator of the same ranks and backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.mirrored import OnDevice

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

CREATION = Behaviours("creation")


def another(comm: Communicator, **keywords: Any) -> Communicator:
    """Make a communicator like `comm`, from nothing; collective over it."""
    if isinstance(comm, OnDevice):
        other: Communicator = comm.another(**keywords)
        return other
    backend = str(comm.backends["host"])
    return hpccomm.new_comm(backend, **{"mpi_comm": comm.mpi_comm, **keywords})


@CREATION.behaviour()
def a_second_communicator(comm: Communicator) -> None:
    """It has the same ranks and backend, its own name, and messages of its own."""
    with another(comm, name="second") as second:
        assert (second.rank, second.size) == (comm.rank, comm.size), "ranks"
        assert second.backends == comm.backends, "backends"
        assert second.name == "second", "name"
        works = [
            each.all_reduce(np.array([i]), async_op=True) for i, each in ((1, comm), (2, second))
        ]
        results = [int(work.wait()[0]) for work in works]
        assert results == [comm.size, 2 * comm.size], results
