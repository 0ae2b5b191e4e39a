"""Cases: objects of several sizes pass through the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccomm.testing.conformance.case import Behaviours

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

OBJECTS = Behaviours("objects")


@OBJECTS.behaviour()
def large_objects(comm: Communicator) -> None:
    """Objects of some MiB pass through every call."""
    blob = bytes(range(256)) * (1 << 12)
    root = comm.size - 1
    given = blob + bytes([comm.rank])
    assert comm.broadcast_object(given, root) == blob + bytes([root]), "broadcast"
    everyone = comm.all_gather_object(given)
    assert everyone == [blob + bytes([rank]) for rank in range(comm.size)], "all_gather"
    scattered = comm.scatter_object(everyone if comm.rank == root else None, root)
    assert scattered == given, "scatter"
    gathered = comm.gather_object(given, root)
    assert gathered == (everyone if comm.rank == root else None), "gather"
    if comm.size > 1 and comm.rank == 0:
        comm.send_object(given, 1)
    elif comm.rank == 1:
        assert comm.recv_object(0) == blob + b"\0", "recv"
