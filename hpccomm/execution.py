"""Runs one rank's schedule over a transport."""

from collections.abc import Iterator, Sequence
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
    """What this rank does in one round."""

    receives: tuple[Message, ...]
    sends: tuple[Message, ...]
    local: tuple[Fold | Copy, ...]
    meets: bool


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
    shared = any(turn.meets for channel in channels for turn in channel)
    return Program(tuple(channel for channel in channels if channel), schedule.scratch, shared)


def _turn(each: Round) -> Turn:
    return Turn(
        tuple(message for table in each.receives for message in _messages(table)),
        tuple(message for table in each.sends for message in _messages(table)),
        tuple(step for table in each.local for step in _local(table)),
        each.barrier is not None and len(each.barrier.rank) > 0,
    )


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
        own = [scratch if each is None else each for each in (send, recv)]
        buffers = (*own, scratch)
        if program.shared:
            return self._shared(program, fold, buffers)
        channels = program.channels
        if len(channels) == 1:
            return self._channel(channels[0], FIRST_TAG, fold, buffers, ())
        return _at_once(
            [
                self._channel(channel, FIRST_TAG + number, fold, buffers, ())
                for number, channel in enumerate(channels)
            ]
        )

    def _shared(self, program: Program, fold: Folder | None, buffers: Buffers) -> Steps:
        """Run a program that reaches into its peers' memory."""
        shared = self._transport.shared
        assert shared is not None
        assert len(program.channels) <= 1  # a barrier is all ranks', and not a channel's
        yield from shared.publish(buffers)
        try:
            for channel in program.channels:
                yield from self._channel(channel, FIRST_TAG, fold, buffers, shared.peers)
        finally:
            shared.withdraw()

    def _channel(
        self,
        turns: tuple[Turn, ...],
        tag: int,
        fold: Folder | None,
        buffers: Buffers,
        peers: Sequence[Buffers],
    ) -> Steps:
        isend, irecv = self._transport.isend, self._transport.irecv
        for receives, sends, local, meets in turns:
            requests = [
                irecv(buffers[number][where], peer, tag) for peer, number, where in receives
            ]
            for peer, number, where in sends:
                requests.append(isend(buffers[number][where], peer, tag))
            if requests:
                yield from completed(requests)
            for step in local:
                _, where, peer = step.target
                mine = buffers if peer < 0 else peers[peer]
                target = mine[step.target.buffer][where]
                if isinstance(step, Fold):
                    assert fold is not None
                    sources = [
                        (buffers if peer < 0 else peers[peer])[number][where]
                        for number, where, peer in step.sources
                    ]
                    fold(sources, target, step.final)
                else:
                    number, where, peer = step.source
                    _copy((buffers if peer < 0 else peers[peer])[number][where], target)
            if meets:
                assert self._transport.shared is not None
                yield from completed([self._transport.shared.meet()])


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
