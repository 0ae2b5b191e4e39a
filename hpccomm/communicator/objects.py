"""Calls on Python objects, carried out in their turn.

Calls of a kind that was checked and agreed on before take the short way: a look-up by their arguments.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from hpccomm.calls.core import Core
from hpccomm.calls.lanes.lane import OBJECTS, REST, behind, in_order, wire_tag
from hpccomm.communicator import object_transfer as transfer
from hpccomm.communicator.arrivals import Rank, Tag, known, loaded
from hpccomm.communicator.object_transfer import Frame
from hpccomm.contracts.signature import CallFingerprint, compared, of_message
from hpccomm.contracts.transport import DTYPES, Steps
from hpccomm.errors import UsageError, untied
from hpccomm.runtime.callpath import PreparedCall, all_in_turn, in_turn
from hpccomm.runtime.work import Later
from hpccomm.settings import check_bool
from hpccomm.topology import check_rank

Given = Frame | Sequence[Frame]
"""What this rank brings to a call."""

Key = tuple[Any, ...]

_NOTHING = Frame()


@all_in_turn
def exchange_pickled(
    core: Core, name: str, value: Any, brings: bool, root: int, timeout: float | None
) -> list[Any]:
    """Carry out a call, to which this rank may bring an object; return the objects that arrive.

    To `scatter_object` the root brings one for each rank. What this rank's own object is refused for is raised after
    the call, as all ranks know of it.
    """
    given: Given = _NOTHING
    nbytes, error = 0, None
    if brings and name == "scatter_object":
        given, error = _dumped_each(value, core.backend.size)
    elif brings:
        given, error = _dumped(value)
        nbytes = given.nbytes
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    arrived: transfer.Frames = {}
    # What is alike for all ranks, each argument before its class: True is equal to 1.
    key = name, nbytes, root, root.__class__
    _carrier(core, key)((given, arrived), given, limit)
    if error is not None:
        raise untied(error)
    return [loaded(core, name, each, rank) for rank, each in arrived.items()] if arrived else []


@in_turn
def send_pickled(
    core: Core, value: Any, dst: int, tag: int, async_op: bool, timeout: float | None
) -> Any:
    """Carry out `send_object`, or begin it."""
    frame, error = _dumped(value)
    if error is not None and dst == core.backend.rank:
        raise untied(error)  # no other rank waits for it
    key = "send_object", frame.nbytes, dst, dst.__class__, tag, tag.__class__, async_op
    return _message_run(core, key, frame, timeout, error)


@in_turn
def receive_pickled(core: Core, src: Rank, tag: Tag, async_op: bool, timeout: float | None) -> Any:
    """Carry out `recv_object` of a given rank and tag, or begin it."""
    key = "recv_object", 0, src, src.__class__, tag, tag.__class__, async_op
    return _message_run(core, key, _NOTHING, timeout, None)


def _message_run(
    core: Core, key: Key, given: Frame, timeout: float | None, error: BaseException | None
) -> Any:
    """Run a message and return its object or None, or begin it and return its `Work`, as the key says last."""
    limit = core.calls.timeout if timeout is None else core.limit(timeout)
    arrived: transfer.Frames = {}

    carry = _carrier(core, key)
    if key[-1]:
        later = Later(lambda: _result(core, key, arrived, error))
        return carry((given, arrived), given, limit, later)
    carry((given, arrived), given, limit)
    return _result(core, key, arrived, error)


def _result(core: Core, key: Key, arrived: transfer.Frames, error: BaseException | None) -> Any:
    if error is not None:
        raise untied(error)
    return loaded(core, key[0], arrived[key[2]], key[2]) if arrived else None


def _carrier(core: Core, key: Key) -> Any:
    """Return what carries out such calls, or begins them."""
    carrier = known(core, key)
    return _first(core, key) if carrier is None or core.sink.diverted else carrier


def _first(core: Core, key: Key) -> Any:
    """Return what carries out calls of a new kind, whose arguments are checked, and which ranks agree on."""
    if len(key) > 4:
        prepared = core.lanes.host.message_of(*_message(core, *key[:-1]))
        issue = prepared.begin if check_bool("async_op", key[-1]) else prepared.issue
        core.sink.refuse_batch(key[0], ", which takes arrays only")
        core.known.keep(key, issue)
        return issue
    label, start = _collective(core, *key)
    core.sink.refuse_batch(label.name, ", which takes arrays only")
    issue = PreparedCall(core.calls, label, start).issue
    core.known.keep(key, issue)
    return issue


Start = Callable[[Any, Any], Steps]
"""Begins a call with what this rank brings, and what takes the frames that arrive."""


def _collective(
    core: Core, name: str, nbytes: int, root: Any, _kind: Any
) -> tuple[CallFingerprint, Start]:
    """Return the fingerprint of a collective call, and how it starts."""
    start = partial(getattr(transfer, name.removesuffix("_object")), core)
    if name != "all_gather_object":
        rank = check_rank("root", root, core.backend.size)
        label, start = _compared(name, root=rank), partial(start, rank)
    else:
        label = _compared(name)
    return label._replace(nbytes=nbytes), start


@lru_cache
def _compared(name: str, **values: object) -> CallFingerprint:
    return compared(name, {"operation": name, **values})


def _message(
    core: Core, name: str, nbytes: int, rank: Any, _kind: Any, tag: Any, _tag_kind: Any
) -> tuple[CallFingerprint, Start]:
    """Return the fingerprint of one end of a message, and how it starts."""
    sends = name == "send_object"
    peer = check_rank("dst" if sends else "src", rank, core.backend.size)
    number, transport = core.tag(tag), core.backend.messages
    wire = wire_tag(number, OBJECTS)
    channel, lane = wire // DTYPES, core.lanes.host
    cell = core.calls.traffic.cell(peer, channel)

    def start(given: Any, arrived: Any) -> Steps:
        cell[not sends] += 1
        if sends:
            return transfer.send(transport, peer, wire, wire + REST, given)
        receives = lane.open_receives
        return behind(receives, peer, wire, lambda: begun(arrived)) if receives else begun(arrived)

    def begun(arrived: Any) -> Steps:
        packet = transport.irecv_packet(peer, wire)
        steps = transfer.receive(transport, packet, peer, wire + REST, arrived)
        return in_order(lane.rests, peer, wire, steps)

    pair = (peer, None) if sends else (None, peer)
    return of_message(name, nbytes, pair, number, channel), start


def _dumped(value: Any) -> tuple[Frame, BaseException | None]:
    try:
        return transfer.dump(value), None
    except BaseException as error:  # noqa: BLE001 (the others must hear of it; then it is raised)
        return transfer.failed(error), error


def _dumped_each(values: Any, size: int) -> tuple[list[Frame], BaseException | None]:
    try:
        objects = _listed(values, size)
    except BaseException as wrong:  # noqa: BLE001 (a generator may raise anything; likewise)
        return [transfer.failed(wrong)] * size, wrong
    frames, errors = list[Frame](), list[BaseException]()
    for value in objects:
        frame, error = _dumped(value)
        frames.append(frame)
        if error is not None and not errors:
            errors.append(error)
        del error
    # This frame, which the error refers to, drops it.
    return frames, errors.pop() if errors else None


def _listed(values: Any, size: int) -> list[Any]:
    """Return `size` objects.

    Raises
    ------
    UsageError
        If their number differs, or it is not a sequence.
    """
    try:
        each = iter(values)
    except TypeError:
        raise UsageError(f"values is {values!r}; give a sequence of {size} objects") from None
    objects = list(each)
    if len(objects) != size:
        raise UsageError(f"values has {len(objects)} objects; give {size}, one for each rank")
    return objects
