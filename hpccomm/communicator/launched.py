"""A call on device arrays that is ready to go."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpccomm.buffers import overlap
from hpccomm.calls import Label, Operation
from hpccomm.contracts.device import DeviceWay
from hpccomm.cuda.arrays import DeviceArray
from hpccomm.cuda.streams import Queue
from hpccomm.errors import UsageError
from hpccomm.stats import Tally


@dataclass(slots=True)
class Launched:
    """A call on device arrays that is ready to go.

    Attributes
    ----------
    way : DeviceWay
        How.
    label : tuple of str and int
        Its name and bytes.
    tally : Tally
        Where it is counted.
    send, recv : int
        Addresses; 0 where this rank has no array.
    queue : tuple of int and object
        The stream on which its arrays are ready, and its result will be.
    current : callable
        Gives the current stream of the arrays' framework.
    result : object
        What the call returns.
    keep : object
        What must live until it is done.
    reads, writes : tuple of DeviceArray
        What it touches.
    ordered : bool
        Whether it is a collective, which all ranks issue in one order.
    """

    way: DeviceWay
    label: Label
    tally: Tally
    send: int
    recv: int
    queue: Queue
    current: Callable[[], Queue]
    result: Any
    keep: object
    reads: tuple[DeviceArray, ...]
    writes: tuple[DeviceArray, ...]
    ordered: bool = True

    def operation(self) -> Operation:
        """Return a call in which the host takes part as something polled."""
        start = self.way.start
        assert start is not None
        steps = partial(start, self.send, self.recv, self.queue[0])
        return Operation(*self.label, steps, (self.keep, self.queue), ordered=self.ordered)


def check_apart(calls: tuple[Launched, ...]) -> None:
    """Raise if one call of a batch touches what another one writes: they are carried out at once."""
    for number, one in enumerate(calls):
        for other in calls[number + 1 :]:
            for a in (*one.reads, *one.writes):
                for b in (*other.reads, *other.writes):
                    written = a in one.writes or b in other.writes
                    if written and overlap(a, b):
                        raise UsageError(
                            f"{one.label[0]} and {other.label[0]} of a batch share memory that one of "
                            "them writes, and a device carries a batch out at once; take them out of it"
                        )
