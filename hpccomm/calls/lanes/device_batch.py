"""Calls on device arrays that are put on one stream together, for batches and plans."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from hpccomm.calls.lanes.lane import HALO, Call, HaloPart, Pairs
from hpccomm.contracts.device import Begun, DeviceBackend, DeviceImplementation, Launch
from hpccomm.contracts.signature import CallFingerprint, joined
from hpccomm.contracts.transport import Steps
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.streams import used_for
from hpccomm.memory.views import address
from hpccomm.runtime.callpath import PreparedCall
from hpccomm.runtime.waiting import at_once


def pointers(call: Call) -> tuple[int, int]:
    """Return the addresses of a call's arrays on a device; 0 without one."""
    send: Any = call.send
    recv: Any = call.recv
    return (0 if send is None else send.pointer, 0 if recv is None else recv.pointer)


def array_of(call: Call) -> Any:
    """Return the array whose framework's stream is meant."""
    result = call.result[0] if isinstance(call.result, tuple) else call.result
    return call.keep[0] if result is None else result


def whole(prepared: PreparedCall, calls: Sequence[Call]) -> Call:
    """Return calls that are carried out together as one."""
    keep = (array_of(calls[0]), *(call.keep for call in calls))
    return Call(prepared, None, None, None, keep, queue=calls[0].queue)


def grouped(calls: tuple[Call, ...], backend: DeviceBackend) -> Launch:
    """Return the function that puts calls on a stream: a group first, then the others.

    Which can is the same on all ranks, and so is the order of collectives. Messages all stand in the
    group, so that none waits for a call that its peer issues after it.
    """
    each = [(call.prepared.more, *pointers(call)) for call in calls]

    def launch(_send: int, _recv: int, stream: int) -> None:
        together = []
        for found, send, recv in each:
            if found.groups:
                begun = found.begin(send, recv, stream) if found.begin else Begun(send, recv)
                together.append((found.launch, begun))
        with backend.group():
            for run, begun in together:
                run(begun.send, begun.recv, stream)
        for _, begun in together:
            begun.end()
        for found, send, recv in each:
            if not found.groups:
                found.alone()(send, recv, stream)

    return launch


def as_one(
    calls: tuple[Call, ...], backend: DeviceBackend
) -> tuple[CallFingerprint, CallFingerprint, DeviceImplementation, bool]:
    """Return calls that are put on a stream together as one.

    Its label, that of its asynchronous form, its implementation, and whether there are collectives in it.
    """
    nbytes = sum(call.prepared.label.nbytes for call in calls)
    each = [call.prepared.label for call in calls if call.prepared.ordered]
    label = joined(nbytes, each, 0) if each else CallFingerprint("batch", nbytes)
    async_label = joined(nbytes, each, 1) if each else label
    return label, async_label, DeviceImplementation(grouped(calls, backend)), bool(each)


def halo_as_one(
    calls: Sequence[Call], parts: Sequence[HaloPart], backend: DeviceBackend | None, device: int
) -> tuple[CallFingerprint, DeviceImplementation]:
    """Return the label and the implementation of a halo, one part after the other: on a stream, or without a backend by the host."""
    left, array = iter(calls), calls[0].keep[0]
    every: list[tuple[HaloPart, Any]] = []
    for part in parts:
        messages = tuple(islice(left, part.messages))
        every.append((part, grouped(messages, backend) if backend else _by_host(messages)))

    def copy(pairs: Pairs, stream: int) -> None:
        if pairs:
            with used_for(array, stream, device):
                for into, what in pairs:
                    into[...] = what

    def each(stream: int) -> Iterator[Any]:
        for part, run in every:
            copy(part.before, stream)
            yield run
            copy(part.after, stream)

    def launch(send: int, recv: int, stream: int) -> None:
        for run in each(stream):
            run(send, recv, stream)

    def start(send: int, recv: int, stream: int) -> Steps:
        for run in each(stream):
            yield from run(send, recv, stream)

    label = CallFingerprint(HALO, sum(call.prepared.label.nbytes for call in calls))
    return label, DeviceImplementation(launch) if backend else DeviceImplementation(start=start)


def _by_host(calls: tuple[Call, ...]) -> Callable[[int, int, int], Steps]:
    """Return the function for the steps of messages in which the host takes part."""

    def start(_send: int, _recv: int, stream: int) -> Steps:
        return at_once([call.prepared.more.start(*pointers(call), stream) for call in calls])

    return start


def check_batch(calls: tuple[Call, ...], rank: int) -> None:
    """Raise unless calls can be put on a stream together.

    Raises
    ------
    UsageError
        If they are on several streams, one of them touches another one's output, or this rank sends
        to itself without a matching receive.
    """
    first = calls[0].queue
    assert first is not None
    if any(call.queue is None or call.queue[0] != first[0] for call in calls):
        raise UsageError("the calls of a batch are on several streams; give all of them one stream")
    _check_apart(calls)
    check_own(calls, rank)


def check_own(calls: tuple[Call, ...], rank: int) -> None:
    """Raise if this rank sends to itself without a matching receive in the same calls.

    On a stream the one would wait for the other for ever.
    """
    messages: list[tuple[Any, Any]] = [
        (call.send if to == rank else None, call.recv if origin == rank else None)
        for call in calls
        for to, origin in (call.ends,)
    ]
    going = [send.nbytes for send, _ in messages if send is not None and send.nbytes]
    coming = [recv.nbytes for _, recv in messages if recv is not None and recv.nbytes]
    if going != coming:
        raise UsageError(
            f"this rank sends messages of {going} bytes to itself and receives {coming} in this call or "
            "batch; on a device both ends are given together: in one send_recv of the same size, or in "
            "one batch, in the same order"
        )


def _check_apart(calls: tuple[Call, ...]) -> None:
    """Raise if one call of a batch touches what another one writes: they are carried out at once."""
    far = written = _Extent(0, 0, False, "")  # of those so far, that which reaches farthest
    for extent in sorted(each for call in calls for each in _extents(call)):
        other = far if extent.written else written
        if extent.start < other.end:
            raise UsageError(
                f"{other.name} and {extent.name} of a batch share memory that one of them writes, and "
                "a device carries a batch out at once; take one of them out of it"
            )
        far = max(far, extent, key=attrgetter("end"))
        if extent.written:
            written = max(written, extent, key=attrgetter("end"))


class _Extent(NamedTuple):
    """Memory that one call touches."""

    start: int
    end: int
    written: bool
    name: str


def _extents(call: Call) -> list[_Extent]:
    """Return the memory that a call reads and writes. Its own arrays are checked elsewhere."""
    name = call.prepared.label.name
    read, write = _extent(call.send, False, name), _extent(call.recv, True, name)
    if read is not None and write is not None and read.start < write.end and write.start < read.end:
        return [_Extent(min(read.start, write.start), max(read.end, write.end), True, name)]
    return [each for each in (read, write) if each is not None]


def _extent(array: Any, written: bool, name: str) -> _Extent | None:
    if array is None or not array.nbytes:
        return None
    start = address(array)
    return _Extent(start, start + array.nbytes, written, name)
