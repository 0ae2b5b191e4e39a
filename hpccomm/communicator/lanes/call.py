"""A call: how it is carried out, and on which memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hpccomm.communicator.resolving import Resolved
from hpccomm.contracts.backend import both
from hpccomm.contracts.device import DeviceBackend, DeviceRoute
from hpccomm.dispatch.route import Route
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View, overlap
from hpccomm.runtime.operation import Label
from hpccomm.runtime.stats import Tally

if TYPE_CHECKING:
    from hpccomm.communicator.lanes.lane import Lane

R = TypeVar("R", Route, DeviceRoute)


@dataclass(slots=True, eq=False)
class PreparedCall(Generic[R]):
    """What was decided for calls with the same arguments but for the memory.

    Attributes
    ----------
    lane : Lane
        The lane of their arrays.
    route : Route or DeviceRoute
        How they are carried out.
    label : Label
        Name, bytes and terms.
    tally : Tally
        Where they are counted.
    issue : callable
        Carries one out: the lane calls it, with what only the single call has. The first call replaces
        it, once it is agreed.
    async_label : Label
        The same of asynchronous calls, which do not fit others.
    resolved : Resolved or None
        What the arguments mean; None for messages.
    ordered : bool
        Whether they are collectives, which all ranks issue in one order.
    arguments : callable
        ``arguments(send, recv)`` gives what `issue` is called with for arrays in host memory.
    direct : callable or None
        ``direct(x, out)`` gives the same for the user's arrays, flattened, where these fit; None where there is
        more to do.
    returns_x, returns_out : bool
        Whether the call returns x, or `out`.
    """

    lane: "Lane"
    route: R
    label: Label
    tally: Tally
    issue: Callable[..., None]
    async_label: Label
    resolved: Resolved | None = None
    ordered: bool = True
    arguments: Callable[[Any, Any], tuple[Any, ...]] = both
    direct: Callable[[Any, Any], tuple[Any, ...]] | None = None
    returns_x: bool = False
    returns_out: bool = False


@dataclass(slots=True)
class Call:
    """A call that is ready to go: checked, decided, with its memory.

    Attributes
    ----------
    prepared : PreparedCall
        How it is carried out.
    send, recv : View or None
        Arrays: flat on the host; on a device as they are. None where this rank has none.
    result : object
        What the call returns: an array, None, or a pair of that and the counts.
    keep : tuple
        What must live until it is done. The first is an array.
    queue : tuple of int and object, or None
        For arrays in device memory, the stream on which they are ready and the result will be, where
        the user gave one; else it is the current one of the arrays' framework when the call is issued.
    own_sends, own_receives : tuple of int
        Bytes of the messages between this rank and itself.
    """

    prepared: PreparedCall[Any]
    send: View | None
    recv: View | None
    result: Any
    keep: tuple[Any, ...]
    queue: Queue | None = None
    own_sends: tuple[int, ...] = ()
    own_receives: tuple[int, ...] = ()


def pointers(call: Call) -> tuple[int, int]:
    """Return the addresses of a call's arrays on a device; 0 where this rank has none."""
    send: Any = call.send
    recv: Any = call.recv
    return (0 if send is None else send.pointer, 0 if recv is None else recv.pointer)


class PointToPoint(NamedTuple):
    """What a point-to-point call is asked for, checked.

    Attributes
    ----------
    name : str
        Name of the call.
    source, target : View or None
        What is sent, and what takes what is received, as communication sees them.
    to, origin : int or None
        The receiver and the sender; None where the call does nothing there.
    tag : int
        The user's.
    replaced : bool
        Whether what is received takes the place of what is sent.
    result : object
        What the call returns.
    keep : tuple
        The user's arrays.
    queue : tuple of int and object, or None
        As in `Call`.
    """

    name: str
    source: View | None
    to: int | None
    target: View | None
    origin: int | None
    tag: int
    replaced: bool
    result: Any
    keep: tuple[Any, ...]
    queue: Queue | None


def places(call: Call, backend: DeviceBackend | None) -> list[tuple[int, int, int]]:
    """Return where a call's arrays lie in memory that can be registered; empty if one of them does not.

    Ranks must find the same. In place the larger array counts, since the own block lies elsewhere on each.
    """
    arrays: tuple[Any, Any] = (call.send, call.recv)
    there = [each for each in arrays if each is not None and each.nbytes]
    if backend is None or not there:
        return []
    whole = max(there, key=lambda each: each.nbytes)
    if all(overlap(each, whole) for each in there):
        there = [whole]
    found = [backend.place(each.pointer, each.nbytes) for each in there]
    return [each for each in found if each is not None] if all(found) else []
