"""One object a kind of memory: what a call on arrays in host or in device memory needs.

A communicator has two. Which one an array takes is asked once a call, here; from then on the
prepared call holds its lane.

- `lane`: what both have in common: a decision (`PreparedCall`), and a call with its memory (`Call`).
- `message`: what a message is asked for. `planned`: messages of plans.
- `host`, `device`, `refusing`: the lanes. `refusing` stands for device memory where none can be used.
- `check`: whether all ranks make the same call.
- `issuing`: puts calls on streams. `device_batch`: calls on one stream together. `ending`: the end.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpccomm.communicator.lanes.check import Check as Check
from hpccomm.communicator.lanes.host import HostLane as HostLane
from hpccomm.communicator.lanes.lane import Call as Call
from hpccomm.communicator.lanes.lane import Lane as Lane
from hpccomm.communicator.lanes.lane import PreparedCall as PreparedCall
from hpccomm.communicator.lanes.message import MessageRequest as MessageRequest
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.views import View, view

if TYPE_CHECKING:
    from hpccomm.communicator.lanes.device import DeviceLane
    from hpccomm.communicator.lanes.refusing import RefusingLane

AnyDeviceLane: TypeAlias = "DeviceLane | RefusingLane"
"""A lane of device arrays. A host without devices does not load the first."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one communicator."""

    host: HostLane
    device: AnyDeviceLane

    def views(self, x: Any, out: Any) -> tuple[Lane, View | None, View | None]:
        """Return the lane that the arrays of a call take, and the arrays as communication sees them.

        Parameters
        ----------
        x, out : object
            Arrays; None where there is none.

        Raises
        ------
        UsageError
            If one of them is no array, or they are not in one kind of memory.
        BackendUnavailable
            If they are in device memory, and no device arrays can be used here.
        """
        a: View | None
        b: View | None
        a = x if x.__class__ is np.ndarray or x is None else view(x, "x")
        b = out if out.__class__ is np.ndarray or out is None else view(out, "out")
        if a.__class__ is DeviceArray or b.__class__ is DeviceArray:
            return self.device.fitting(a, b), a, b
        return self.host, a, b
