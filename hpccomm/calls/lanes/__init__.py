"""Lanes: one object for each kind of memory, which carries out calls on arrays in that memory.

A communicator has two lanes. A call selects its lane once, here; from then on the prepared call holds the lane.
`hpccomm.calls.core` and `hpccomm.communicator` call the lanes, and the lanes call the dispatches of `hpccomm.calls` and
`hpccomm.runtime`.

- `lane`: the common part, with a call and its memory (`Call`), and the arguments of a message.
- `host`, `device`: the lanes. A `RefusingLane` replaces the device lane if device arrays cannot be used.
- `check`: the comparison that all ranks make the same call.
- `streams`: puts calls on streams, one by one or several together.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.calls.lanes.check import Check as Check
from hpccomm.calls.lanes.host import HostLane as HostLane
from hpccomm.calls.lanes.lane import Call as Call
from hpccomm.calls.lanes.lane import Lane as Lane
from hpccomm.calls.lanes.lane import MessageRequest as MessageRequest
from hpccomm.contracts.signature import Choice
from hpccomm.dtypes import DType
from hpccomm.errors import BackendUnavailable
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.views import View, view

if TYPE_CHECKING:
    from hpccomm.calls.lanes.device import DeviceLane


class RefusingLane:
    """Refuses device arrays.

    Parameters
    ----------
    communicator : str
        Name of the communicator.
    reason : str
        Why the communicator takes no device arrays.
    """

    name = None
    memory = "device"

    def __init__(self, communicator: str, reason: str) -> None:
        self.reason = reason
        self._communicator = communicator

    def abandon(self) -> None:
        """Do nothing."""

    def fitting(self, _x: View | None, _out: View | None) -> NoReturn:
        """Refuse a call's arrays.

        Raises
        ------
        BackendUnavailable
            Always.
        """
        raise BackendUnavailable(
            f"communicator {self._communicator!r} takes no device arrays: {self.reason}. "
            "Or copy them to NumPy arrays first"
        )

    def empty_on(self, device: int, _shape: tuple[int, ...], _dtype: DType) -> NoReturn:
        """Refuse to make a device array.

        Raises
        ------
        BackendUnavailable
            Always.
        """
        raise BackendUnavailable(
            f"device is {device}, and communicator {self._communicator!r} takes no device arrays: "
            f"{self.reason}. Or leave it out, for an array of the host"
        )

    def tried(
        self, _given: NDArray[Any], _control: Control
    ) -> Iterator[tuple[Choice, NDArray[Any]]]:
        """Yield nothing, since there is no path to try."""
        return iter(())

    def close(self) -> None:
        """Do nothing: it owns nothing."""


AnyDeviceLane: TypeAlias = "DeviceLane | RefusingLane"
"""A lane of device arrays. A host without devices does not load `DeviceLane`."""


class Lanes:
    """The lanes of one communicator."""

    def __init__(self, host: HostLane, device: AnyDeviceLane) -> None:
        self.host, self.device = host, device

    def views(self, x: Any, out: Any) -> tuple[Lane, View | None, View | None]:
        """Return the lane for the arrays of a call, and views of the arrays.

        Parameters
        ----------
        x, out : object
            Arrays, or None.

        Raises
        ------
        UsageError
            If an argument is not an array, or the two are in different kinds of memory.
        BackendUnavailable
            If the arrays are in device memory, and device arrays cannot be used here.
        """
        a: View | None
        b: View | None
        a = x if x.__class__ is np.ndarray or x is None else view(x, "x")
        b = out if out.__class__ is np.ndarray or out is None else view(out, "out")
        if a.__class__ is DeviceArray or b.__class__ is DeviceArray:
            return self.device.fitting(a, b), a, b
        return self.host, a, b
