"""Runs programs over a transport."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.buffers import address
from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.transport import CALLS, CHANNELS, Exposure, Request, Transport
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch
from hpccomm.execution.program import OWN, Message, Program, Turn
from hpccomm.reductions import Folder
from hpccomm.waiting import Steps

FIRST_TAG = 2
"""Tag of the first channel of a communicator's first schedule. The control plane has those below."""

KEPT_BYTES = 64 << 20
"""A larger scratch is given back after the call."""

EAGER_POLLS = 8
"""So often a channel that is alone polls before it lets others look at deadlines: a small message from
a rank that calls at the same time takes a microsecond."""

PATIENT_POLLS = 1000
"""So often a receive is polled before a look at what came instead."""

_NOTHING = np.empty(0, np.uint8)

_NOBODY: frozenset[int] = frozenset()

_in_vain: list[object] = []
"""What failed with receives under way, and their memory: a message to come may still match them."""


class Room:
    """Memory for what a call needs besides its arrays; calls have it one after the other."""

    __slots__ = ("_bytes", "_taken")

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._taken = self._bytes

    def take(self, count: int, dtype: DType) -> NDArray[Any]:
        """Return `count` elements, which the next call has as well."""
        taken = self._taken
        if taken.size == count and taken.dtype == dtype:
            return taken
        nbytes = count * dtype.itemsize
        if nbytes > KEPT_BYTES:
            return np.empty(count, dtype)
        if nbytes > self._bytes.size:
            self._bytes = np.empty(nbytes, np.uint8)
        self._taken = taken = self._bytes[:nbytes].view(dtype)
        return taken


Suspects = frozenset[int]
"""Identities of requests."""


class Buffers(Protocol):
    """The buffers that a program numbers."""

    def __getitem__(self, number: int, /) -> NDArray[Any]:
        """Return the buffer of that number."""
        ...


class _Reached:
    """The buffers of a rank, and those of its peers."""

    def __init__(self, own: Sequence[NDArray[Any]], exposure: Exposure) -> None:
        self._own = own
        self._exposure = exposure

    def __getitem__(self, number: int, /) -> NDArray[Any]:
        if number < len(OWN):
            return self._own[number]
        return self._exposure.reach(number // len(OWN) - 1, number % len(OWN))


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
        # Ranks come to the same number of a call, since they run the same calls.
        self._tags = cycle(range(FIRST_TAG, CHANNELS * CALLS, CHANNELS))

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
        tag = next(self._tags)
        scratch = self._room.take(program.scratch, dtype)
        # Where a rank has no array its program names none: any will do.
        buffers = (scratch if send is None else send, scratch if recv is None else recv, scratch)
        if program.shared:
            return self._exposed(program, tag, fold, buffers)
        channels = program.channels
        if len(channels) == 1:
            return self._channel(channels[0], tag, fold, buffers, EAGER_POLLS)
        return self._at_once(channels, tag, fold, buffers)

    def _exposed(
        self, program: Program, tag: int, fold: Folder | None, own: Sequence[NDArray[Any]]
    ) -> Steps:
        """Run a program that reaches into its peers' memory."""
        assert self._transport.shared is not None
        exposure = self._transport.shared.expose(own)
        yield from self._at_once(program.channels, tag, fold, _Reached(own, exposure))
        exposure.withdraw()

    def _at_once(
        self, channels: Sequence[tuple[Turn, ...]], tag: int, fold: Folder | None, buffers: Buffers
    ) -> Steps:
        """Move all channels on at the same time, until all are done."""
        under_way = [
            self._channel(channel, tag + number, fold, buffers)
            for number, channel in enumerate(channels)
        ]
        while under_way:
            moved = False
            left = []
            for channel in under_way:
                step = next(channel, None)
                if step is not None:
                    left.append(channel)
                moved |= step is not False
            under_way = left
            if under_way:
                yield moved

    def _channel(
        self,
        turns: tuple[Turn, ...],
        tag: int,
        fold: Folder | None,
        buffers: Buffers,
        eager: int = 0,
    ) -> Steps:
        # The latency of small arrays is made here: one function more is a tenth of it.
        isend, irecv = self._transport.isend, self._transport.irecv
        pair = None if fold is None else fold.pair
        requests: list[Request] = []
        try:
            for receives, sends, local, meetings in turns:
                requests = []
                for peer, (number, where) in receives:
                    data = buffers[number] if where is None else buffers[number][where]
                    requests.append(irecv(data, peer, tag))
                for peer, (number, where) in sends:
                    data = buffers[number] if where is None else buffers[number][where]
                    requests.append(isend(data, peer, tag))
                left = [request for request in requests if not request()]
                idle = 0
                suspects: Suspects = _NOBODY
                while left:
                    if idle >= eager:
                        yield not idle
                    before = len(left)
                    left = [request for request in left if not request()]
                    idle = idle + 1 if len(left) == before else 0
                    if idle and idle % PATIENT_POLLS == 0:
                        suspects = self._look(suspects, receives, requests, left, tag, buffers)
                for sources, (number, where), final in local:
                    target = buffers[number] if where is None else buffers[number][where]
                    inputs = []
                    for number, where in sources:
                        inputs.append(buffers[number] if where is None else buffers[number][where])
                    if final is None:
                        _copy(inputs[0], target)
                    elif pair is not None and len(inputs) == 2:
                        pair(*inputs, target)
                    else:
                        fold(inputs, target, final)  # type: ignore[misc]  # a reduction has one
                for ahead, behind in meetings:
                    requests = [irecv(_NOTHING, behind, tag), isend(_NOTHING, ahead, tag)]
                    yield from completed(requests)
        except BaseException:  # the call failed, or nobody goes on with it
            _in_vain.append((requests, buffers))
            raise

    def _look(
        self,
        suspects: Suspects,
        receives: tuple[Message, ...],
        requests: list[Request],
        left: list[Request],
        tag: int,
        buffers: Buffers,
    ) -> Suspects:
        """Return which receives seem to wait in vain; raise if one of them did so before.

        What is seen may be the next round's message, come with the one that is awaited: then that
        receive is complete at its next poll.
        """
        waiting = {id(request) for request in left}
        seen: dict[int, int] = {}
        for (peer, (number, where)), request in zip(receives, requests, strict=False):
            if id(request) in waiting and peer not in seen:
                seen[peer] = id(request)
                data = buffers[number] if where is None else buffers[number][where]
                again = id(request) in suspects
                if not self._transport.look(peer, tag, data.nbytes, take=again):
                    seen[peer] = 0
        return frozenset(seen.values())


def completed(requests: list[Request]) -> Steps:
    """Wait, polled, until all `requests` are complete.

    Where a message has another size than its array, the others are completed before that is raised:
    one that was left behind would take, or keep from others, the messages to come.
    """
    lost: list[BufferMismatch] = []
    while requests:
        before = len(requests)
        requests = _left(requests, lost)
        if requests:
            yield len(requests) < before
    if lost:
        raise lost[0]


def _left(requests: list[Request], lost: list[BufferMismatch]) -> list[Request]:
    """Move `requests` on; return those that are not complete, and note in `lost` what did not fit."""
    left = []
    for request in requests:
        try:
            if not request():
                left.append(request)
        except BufferMismatch as error:
            lost.append(error)
    return left


def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    # In place the two may be the same memory; to copy that would take as long as any copy.
    if not np.may_share_memory(source, target) or address(source) != address(target):
        target[:] = source
