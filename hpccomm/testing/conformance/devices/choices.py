"""Cases: the facts of a communicator about its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

CHOICES = Behaviours("devices.choices")


@CHOICES.behaviour()
def facts(comm: Communicator) -> None:
    """A communicator knows its device, and by what device arrays go; groups are like it."""
    assert isinstance(comm.device, int), comm.device
    assert 0 <= comm.device < cupy().cuda.runtime.getDeviceCount(), comm.device
    assert comm.backends["cuda"] in ("nccl", "mpi", "staged"), comm.backends
    group = comm.split(comm.rank % 2)
    assert group is not None
    with group, comm.dup() as twin:
        assert group.backends == twin.backends == comm.backends, "backends"
        assert group.device == twin.device == comm.device, "device"
