"""Runs one rank's schedule over a transport."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Copies,
    Folds,
    Group,
    Place,
    Round,
    Schedule,
    Transfers,
)
from hpccomm.contracts.transport import Request, Transport
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch
from hpccomm.reductions import Folder
from hpccomm.waiting import Steps

FIRST_TAG = 2
"""Tag of a schedule's first channel; each has its own. A pair's messages of one channel arrive in
their order, and all ranks run the same calls. The control plane has the tags below."""

KEPT_BYTES = 64 << 20
"""A larger scratch is given back after the call."""

_NUMBER = {SEND: 0, RECV: 1, SCRATCH: 2}

Buffers = Sequence[NDArray[Any]]
"""`SEND`, `RECV` and `SCRATCH` of one rank."""

Reach = Callable[[int, int], NDArray[Any]]
"""Gives a peer's buffer, by rank and number."""

_NOTHING = np.empty(0, np.uint8)


class Slice(NamedTuple):
    """Elements of a buffer, and whose it is: -1 is this rank's own."""

    buffer: int
    where: slice
    peer: int = -1


class Message(NamedTuple):
    """A message to or from `peer`."""

    peer: int
    buffer: int
    where: slice


class Fold(NamedTuple):
    """Fold `sources` into `target`."""

    sources: tuple[Slice, ...]
    target: Slice
    final: bool


class Copy(NamedTuple):
    """Copy `source` to `target`."""

    source: Slice
    target: Slice


class Turn(NamedTuple):
    """What this rank does in one round.

    Attributes
    ----------
    receives, sends : tuple of Message
        Under way at once.
    local : tuple of Fold or Copy
        In their order, once those are complete.
    meetings : tuple of (int, int)
        At the end, one after the other: whom it tells that it is here, and whom it hears from.
    """

    receives: tuple[Message, ...]
    sends: tuple[Message, ...]
    local: tuple[Fold | Copy, ...]
    meetings: tuple[tuple[int, int], ...]


class Program(NamedTuple):
    """One rank's schedule, ready to be run again and again.

    Attributes
    ----------
    channels : tuple
        The rounds of each, without those in which this rank does nothing.
    scratch : int
        Elements of its scratch.
    shared : bool
        Whether it reaches into its peers' memory.
    """

    channels: tuple[tuple[Turn, ...], ...]
    scratch: int
    shared: bool


def compiled(schedule: Schedule) -> Program:
    """Return the program of the one rank for which `schedule` was made."""
    channels = tuple(
        tuple(turn for turn in map(_turn, channel()) if any(turn)) for channel in schedule.channels
    )
    shared = any(turn.meetings for channel in channels for turn in channel)
    return Program(tuple(channel for channel in channels if channel), schedule.scratch, shared)


def _turn(each: Round) -> Turn:
    return Turn(
        tuple(message for table in each.receives for message in _messages(table)),
        tuple(message for table in each.sends for message in _messages(table)),
        tuple(step for table in each.local for step in _local(table)),
        () if each.barrier is None else tuple(_meetings(each.barrier)),
    )


def _meetings(group: Group) -> Iterator[tuple[int, int]]:
    """Return the steps of a dissemination barrier: after ⌈log2 n⌉ all know of all.

    D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988.
    """
    distance = 1
    while len(group.rank) and distance < group.size:
        ahead, behind = ((group.at + step) % group.size for step in (distance, -distance))
        yield int(group.peer(ahead)[0]), int(group.peer(behind)[0])
        distance *= 2


def _messages(table: Transfers) -> Iterator[Message]:
    buffer = _NUMBER[table.buffer]
    columns = (table.peer.tolist(), table.start.tolist(), table.count.tolist())
    for peer, start, count in zip(*columns, strict=True):
        yield Message(peer, buffer, slice(start, start + count))


def _local(table: Folds | Copies) -> Iterator[Fold | Copy]:
    for row, count in enumerate(table.count.tolist()):
        target = _slice(table.target, row, count)
        if isinstance(table, Copies):
            yield Copy(_slice(table.source, row, count), target)
        else:
            sources = tuple(_slice(source, row, count) for source in table.sources)
            yield Fold(sources, target, table.final)


def _slice(place: Place, row: int, count: int) -> Slice:
    start = int(place.start[row]) if isinstance(place.start, np.ndarray) else place.start
    peer = -1 if place.peer is None else int(place.peer[row])
    return Slice(_NUMBER[place.buffer], slice(start, start + count), peer)


class Room:
    """Memory for what a call needs besides its arrays; calls have it one after the other."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, count: int, dtype: DType) -> NDArray[Any]:
        """Return `count` elements, which the next call has as well."""
        nbytes = count * dtype.itemsize
        if nbytes > KEPT_BYTES:
            return np.empty(count, dtype)
        if nbytes > self._bytes.size:
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes].view(dtype)


class Runner:
    """Runs programs over one transport, one at a time: they share their scratch.

    Parameters
    ----------
    transport : Transport
        Moves the slices.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._room = Room()

    def steps(
        self, program: Program, dtype: DType, fold: Folder | None, send: Buffer, recv: Buffer
    ) -> Steps:
        """Run `program`, polled.

        Parameters
        ----------
        program : Program
            What this rank does.
        dtype : dtype
            Of its elements.
        fold : Folder or None
            The reduction, if there is one.
        send, recv : ndarray or None, 1-D of `dtype`
            This rank's arrays.
        """
        scratch = self._room.take(program.scratch, dtype)
        buffers = (scratch if send is None else send, scratch if recv is None else recv, scratch)
        if program.shared:
            return self._shared(program, fold, buffers)
        channels = program.channels
        if len(channels) == 1:
            return self._channel(channels[0], FIRST_TAG, fold, buffers, _own_only)
        return _at_once(
            [
                self._channel(channel, FIRST_TAG + number, fold, buffers, _own_only)
                for number, channel in enumerate(channels)
            ]
        )

    def _shared(self, program: Program, fold: Folder | None, own: Buffers) -> Steps:
        """Run a program that reaches into its peers' memory."""
        shared = self._transport.shared
        assert shared is not None
        exposure = shared.expose(own)

        channels = [
            self._channel(channel, FIRST_TAG + number, fold, own, exposure.reach)
            for number, channel in enumerate(program.channels)
        ]
        yield from _at_once(channels)
        exposure.withdraw()

    def _channel(
        self, turns: tuple[Turn, ...], tag: int, fold: Folder | None, buffers: Buffers, reach: Reach
    ) -> Steps:
        isend, irecv = self._transport.isend, self._transport.irecv
        for receives, sends, local, meetings in turns:
            requests = [
                irecv(buffers[number][where], peer, tag) for peer, number, where in receives
            ]
            for peer, number, where in sends:
                requests.append(isend(buffers[number][where], peer, tag))
            if requests:
                yield from completed(requests)
            for step in local:
                number, where, peer = step.target
                target = buffers[number][where] if peer < 0 else reach(peer, number)[where]
                if isinstance(step, Fold):
                    assert fold is not None
                    sources = [
                        buffers[number][where] if peer < 0 else reach(peer, number)[where]
                        for number, where, peer in step.sources
                    ]
                    fold(sources, target, step.final)
                else:
                    number, where, peer = step.source
                    _copy(
                        buffers[number][where] if peer < 0 else reach(peer, number)[where], target
                    )
            for ahead, behind in meetings:
                yield from completed([irecv(_NOTHING, behind, tag), isend(_NOTHING, ahead, tag)])


def _own_only(peer: int, _number: int) -> NDArray[Any]:
    raise AssertionError(f"the schedule reaches into the memory of rank {peer} and has no barrier")


def _at_once(channels: list[Steps]) -> Steps:
    """Move several on at the same time, until all are done."""
    while channels:
        moved = False
        left = []
        for channel in channels:
            step = next(channel, None)
            if step is not None:
                left.append(channel)
            moved |= step is not False
        channels = left
        if channels:
            yield moved


def completed(requests: list[Request]) -> Steps:
    """Wait, polled, until all `requests` are complete.

    Where a message has another size than its array, the others are completed before that is raised:
    one that was left behind would take, or keep from others, the messages to come.
    """
    mismatch: BufferMismatch | None = None
    while requests:
        left = []
        for request in requests:
            try:
                if not request():
                    left.append(request)
            except BufferMismatch as error:
                mismatch = mismatch or error
        if left:
            yield len(left) < len(requests)
        requests = left
    if mismatch is not None:
        raise mismatch


def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    # In place the two may be the same memory.
    if source.__array_interface__["data"] != target.__array_interface__["data"]:
        target[:] = source
