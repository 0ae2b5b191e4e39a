"""Messages between two ranks: their arguments, their tags and the order of receives. The lanes send them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpccomm.contracts.arrivals import Wanted
from hpccomm.contracts.backend import Buffer, Start
from hpccomm.contracts.transport import DTYPES, Request, Steps, Transport, dtype_code
from hpccomm.dtypes import DType
from hpccomm.memory.cuda.arrays import Queue
from hpccomm.memory.views import View
from hpccomm.runtime.traffic import Traffic
from hpccomm.runtime.waiting import no_steps

# Arrays and objects share the transport; one bit of the tag distinguishes them.
ARRAYS, OBJECTS = 0, 1

REST = 1
"""An object has no dtype. The tag of what follows its packet has this one, so that no receive takes it for another's packet."""

BLOCKS = -1
"""The tag of blocks for neighbors in a plan. The ranks compare them as lists of their own."""


HALO = "halo"
"""Name of the exchange of a halo."""

Pairs = Sequence[tuple[Any, Any]]
"""What is copied: arrays, the target first."""


class HaloPart(NamedTuple):
    """A part of the messages of a halo, which begins when the part before it is complete.

    Attributes
    ----------
    messages : int
        How many it has.
    before, after : sequence of (array, array)
        What is copied before it begins, and when it is complete.
    """

    messages: int
    before: Pairs
    after: Pairs


Parts = Sequence[HaloPart] | None


def wire_tag(tag: int, kind: int, dtype: DType | None = None) -> int:
    """Return the transport's tag for the user's `tag`, a kind of message and its dtype, if it has one."""
    return (2 * tag + kind) * DTYPES + (0 if dtype is None else dtype_code(dtype))


class MessageRequest(NamedTuple):
    """The checked arguments of a point-to-point call.

    Attributes
    ----------
    name : str
        Name of the call.
    source, target : View or None
        The sent array, and the one to receive into, as views.
    to, origin : int or None
        The receiver and the sender; None for an end without a message.
    tag : int
        The user's.
    replaced : bool
        Whether the received message replaces the sent one.
    result : object
        The call's result.
    keep : tuple
        The user's arrays.
    queue : tuple of int and object, or None
        As in `Call`.
    synchronous : bool
        Whether it is sent only once its receive has begun.
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
    synchronous: bool = False


def beginning(
    traffic: Traffic,
    transport: Transport,
    receives: dict[object, Any],
    ends: tuple[Any, Any],
    wires: tuple[int, int],
    replaced: bool,
    isend: Any,
) -> Start:
    """Return the function that begins a message to a rank and one from a rank, on arrays in host memory.

    Parameters
    ----------
    traffic : Traffic
        Counts them.
    transport : Transport
        Moves them.
    receives : dict
        The open ones, as `OpenReceives` has them.
    ends : tuple of int or None
        The receiver and the sender; None for an end without a message.
    wires : tuple of int
        The transport's tags.
    replaced : bool
        Whether the received message replaces the sent one.
    isend : callable
        The transport's way to send it.
    """
    (to, origin), (outward, inward) = ends, wires
    out: Any = None if to is None else traffic.cell(to, outward // DTYPES)
    into: Any = None if origin is None else traffic.cell(origin, inward // DTYPES)
    begin: Any = None if origin is None else transport.receiving(origin, inward)

    def send(data: Any, _: Buffer) -> Steps:
        out[0] += 1  # before a peer may ask for it, since the library may take its time
        return iter(isend(data, to, outward), True)

    def receive(_: Buffer, data: Any, beside: Request | None = None) -> Steps:
        into[1] += 1
        if receives:
            return behind(receives, origin, inward, lambda: begin(data, beside))
        steps: Steps = begin(data, beside)
        return steps

    def both(data: Any, arriving: Any) -> Steps:
        out[0] += 1
        return receive(data, arriving, isend(data.copy() if replaced else data, to, outward))

    if to is None:
        return no_steps if origin is None else receive
    return send if origin is None else both


# The order of receives where one has no message yet and takes any: of any sender, of any tag or of any size. The
# host lane begins others behind it, and `Communicator.recv` the next of its kind.

Rests = dict[tuple[int, int], list[Steps]]
"""Objects whose packets are awaited or there, in their order, by sender and tag."""

OpenReceives = dict[object, Wanted]
"""In the order in which they were begun. Each stays here until no later one can take its message."""

_SAMPLES = 0, DTYPES  # an array's and an object's tag


def ahead_of(wanted: Wanted, receives: OpenReceives) -> list[object]:
    """Return the open receives to which a message that is wanted now may belong."""
    return [one for one, other in list(receives.items()) if other.meets(wanted, _SAMPLES)]


def behind(receives: OpenReceives, src: int, tag: int, begin: Callable[[], Steps]) -> Steps:
    """Begin a receive of known messages, behind the open ones that may take them."""
    channel = tag // DTYPES
    wanted = Wanted(src, lambda wire: wire // DTYPES == channel, (tag,))
    ahead, place = ahead_of(wanted, receives), object()
    if not ahead:
        return begin()
    receives[place] = wanted

    def steps() -> Steps:
        try:
            while not receives.keys().isdisjoint(ahead):
                yield False
            begun = begin()
        finally:
            del receives[place]
        yield from begun

    return steps()


def in_order(rests: Rests, src: int, tag: int, steps: Steps) -> Steps:
    """Receive an object after the earlier ones of its sender and tag: what follows their packets has the same tag."""
    queue = rests.setdefault((src, tag), [])
    queue.append(steps)
    try:
        while queue[0] is not steps:
            yield False
        yield from steps
    finally:
        queue.remove(steps)
