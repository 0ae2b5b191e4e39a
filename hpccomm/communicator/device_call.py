"""A call on device arrays that is ready to go."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpccomm.contracts.device import DeviceRoute
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.cuda.streams import Queue
from hpccomm.runtime.engine import Label
from hpccomm.runtime.stats import Tally


@dataclass(slots=True)
class DeviceCall:
    """A call on device arrays that is ready to go.

    Attributes
    ----------
    way : DeviceRoute
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
    own_sends, own_receives : tuple of int
        Bytes of the messages between this rank and itself.
    """

    way: DeviceRoute
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
    own_sends: tuple[int, ...] = ()
    own_receives: tuple[int, ...] = ()


def check_own(calls: tuple[DeviceCall, ...]) -> None:
    """Raise if this rank sends to itself what it does not receive in the same calls.

    On a stream the one would wait for the other for ever.
    """
    going = [nbytes for call in calls for nbytes in call.own_sends]
    coming = [nbytes for call in calls for nbytes in call.own_receives]
    if going != coming:
        raise UsageError(
            f"this rank sends messages of {going} bytes to itself and receives {coming} in this call or "
            "batch; on a device both ends are given together: in one send_recv of the same size, or in "
            "one batch, in the same order"
        )


def check_apart(calls: tuple[DeviceCall, ...]) -> None:
    """Raise if one call of a batch touches what another one writes: they are carried out at once.

    Raises
    ------
    UsageError
        With the names of the two calls.
    """
    far = written = _Extent(0, 0, False, "")  # of those so far, that which reaches farthest
    for extent in sorted(each for call in calls for each in _extents(call)):
        other = far if extent.written else written
        if extent.start < other.end:
            raise UsageError(
                f"{other.name} and {extent.name} of a batch share memory that one of them writes, and "
                "a device carries a batch out at once; take one of them out of it"
            )
        far = max(far, extent, key=_end)
        if extent.written:
            written = max(written, extent, key=_end)


class _Extent(NamedTuple):
    """Memory that one call touches."""

    start: int
    end: int
    written: bool
    name: str


def _end(extent: _Extent) -> int:
    return extent.end


def _extents(call: DeviceCall) -> list[_Extent]:
    """Return where a call reads and writes. What it does to its own arrays is its own matter."""
    name = call.label[0]
    reads = [_extent(array, False, name) for array in call.reads if array.nbytes]
    writes = [_extent(array, True, name) for array in call.writes if array.nbytes]
    apart = [
        read
        for read in reads
        if not any(read.start < write.end and write.start < read.end for write in writes)
    ]
    both = [
        _Extent(
            min([write.start, *(read.start for read in reads if read not in apart)]),
            max([write.end, *(read.end for read in reads if read not in apart)]),
            True,
            name,
        )
        for write in writes
    ]
    return apart + both


def _extent(array: DeviceArray, written: bool, name: str) -> _Extent:
    return _Extent(array.pointer, array.pointer + array.nbytes, written, name)
