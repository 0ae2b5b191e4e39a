"""What works behind a `Communicator`, put together of parts.

- `messages`, `objects`, `counts`, `allocation`, `group_calls`: point-to-point calls; objects; calls that list
  counts; registered memory; groups, and the end.

What all of them share is in `hpccomm.communicator.core`, which carries the collective calls out.
"""

from typing import TYPE_CHECKING

from hpccomm.communicator.core import Core
from hpccomm.communicator.engine.allocation import Allocator
from hpccomm.communicator.engine.counts import ListedCalls
from hpccomm.communicator.engine.group_calls import GroupCalls, Make
from hpccomm.communicator.engine.messages import MessageCalls
from hpccomm.communicator.engine.objects import ObjectCalls
from hpccomm.communicator.windows import WindowMaker

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator

__all__ = ["Core", "Engine"]


class Engine:
    """One communicator's parts, each of which a group of `Communicator` methods calls.

    Parameters
    ----------
    core : Core
        What they share.
    node_comm : Communicator or None
        That of this node; None where it is itself that of a node.
    make : callable
        Makes a communicator over a backend.

    Attributes
    ----------
    collective : callable
        `Core.collective`: every collective call on arrays that lists nothing.
    listed : callable
        `ListedCalls.collective`: those that list counts or peers.
    """

    def __init__(self, core: Core, node_comm: "Communicator | None", make: Make) -> None:
        self.core = core
        self.collective = core.collective
        self.listed = ListedCalls(core).collective
        self.messages = MessageCalls(core)
        self.objects = ObjectCalls(core)
        self.windows = WindowMaker(core)
        self.allocator = Allocator(core)
        self.groups = GroupCalls(core, self.windows, node_comm, make)
