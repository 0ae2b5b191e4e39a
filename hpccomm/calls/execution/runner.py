"""Runs programs over a transport, or on shared memory, as steps that the engine polls.

`hpccomm.calls.algorithms` makes one for each call's form.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.execution.exchanges import NONE, PATIENT_POLLS, Exchanges, suspected
from hpccomm.calls.execution.program import ChannelRounds, MemoryProgram, Program, Reached, copy
from hpccomm.calls.execution.variants import ReachedForm, Variants
from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.transport import CALLS, CHANNELS, Exposure, Reach, Request, Steps, Transport
from hpccomm.dtypes import DType
from hpccomm.memory.folding import Folder
from hpccomm.memory.views import ScratchBuffer
from hpccomm.runtime.service import keep
from hpccomm.runtime.waiting import at_once

FIRST_TAG = 2
"""Tag of the first channel of a communicator's first schedule. The control plane has those below."""

EAGER_POLLS = 8
"""So often a channel that is alone polls before it lets others look at deadlines: a small message from
a rank that calls at the same time takes a microsecond."""

_NOTHING = np.empty(0, np.uint8)

Buffers = Sequence[NDArray[Any]] | Reached
"""The buffers that a program numbers."""


class Runner:
    """Runs programs over one transport, one at a time: they share their scratch.

    Parameters
    ----------
    transport : Transport
        Moves the slices.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._room = ScratchBuffer()
        self._results = ScratchBuffer()
        self._exchanges: Exchanges | None = None
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
        # Where a rank has no array its program names none: any will do.
        scratch = self._room.take(program.scratch, dtype) if program.scratch else _NOTHING
        buffers = (scratch if send is None else send, scratch if recv is None else recv, scratch)
        return self._program(program, tag, fold, buffers)

    def formed(self, forms: Variants, send: Buffer, recv: Buffer) -> Steps:
        """Run the form that fits what the ranks of the node reach of each other, polled.

        Parameters
        ----------
        forms : Variants
            The forms, with the same members for one runner.
        send, recv : ndarray or None, 1-D of its dtype
            This rank's arrays.

        Raises
        ------
        BufferMismatch
            If they do not make the same call. On all of them, before memory is touched.
        PeerLost
            If a peer's process has ended.
        """
        tag = next(self._tags)
        shared = self._transport.shared
        assert shared is not None
        exchanges = self._exchanges
        if exchanges is None:
            exchanges = self._exchanges = Exchanges(self._transport, forms.members)
        exposure = forms.exposed(shared, send, recv)
        try:
            # The ranks of the node meet, and run the form that fits.
            meeting, tokens = exchanges.begin(tag, exposure.record)
            for each in meeting:
                if not each.begun():
                    yield from exchanges.late(each)
            form = forms.learned(exchanges.table, exposure, self._results)
            turns = form.turns
            if turns is None:
                program = form.program
                buffers = self._reached(form, exposure, forms, send, recv)
                if not isinstance(program, MemoryProgram):
                    yield from self._program(program, tag, forms.fold, buffers)
                    exposure.release()
                    return
                turns = (
                    (buffers.actions(each.local, forms.fold), each.barrier)
                    for each in program.rounds
                )
            for actions, barrier in turns:
                for action in actions:
                    action()
                for pair in barrier:
                    token = tokens[pair]
                    if not token.begun():
                        yield from exchanges.late(token)
        except BaseException:  # the call failed, or was abandoned
            keep(exposure, exchanges, send, recv)
            raise
        exposure.release()

    def _reached(
        self, found: ReachedForm, exposure: Exposure, forms: Variants, send: Buffer, recv: Buffer
    ) -> Reached:
        """Return the buffers of this call and of its peers."""
        elements, dtype = found.program.scratch, forms.dtype
        if found.reach is Reach.STAGED:
            assert exposure.scratch is not None
            scratch = exposure.scratch[: elements * dtype.itemsize].view(dtype)
        else:
            scratch = self._room.take(elements, dtype)
        own = [scratch if send is None else send, scratch if recv is None else recv, scratch]
        return Reached(own, found.peers, self._results)

    def _program(self, program: Program, tag: int, fold: Folder | None, buffers: Buffers) -> Steps:
        channels = program.channels
        if len(channels) == 1:
            return self._channel(channels[0], tag, fold, buffers, EAGER_POLLS)
        return at_once(
            self._channel(channel, tag + number, fold, buffers)
            for number, channel in enumerate(channels)
        )

    def _channel(
        self,
        turns: ChannelRounds,
        tag: int,
        fold: Folder | None,
        buffers: Buffers,
        eager: int = 0,
    ) -> Steps:
        # The latency of small arrays is made here: one function more is a tenth of it.
        isend, irecv = self._transport.isend, self._transport.irecv
        near = buffers if isinstance(buffers, Reached) else None
        pair = None if fold is None else fold.pair
        requests: list[Request] = []
        try:
            for receives, sends, local in turns:
                requests = []
                for peer, (number, where) in receives:
                    data = buffers[number] if where is None else buffers[number][where]
                    requests.append(irecv(data, peer, tag))
                for peer, (number, where) in sends:
                    data = buffers[number] if where is None else buffers[number][where]
                    requests.append(isend(data, peer, tag))
                left = [request for request in requests if not request()]
                idle = 0
                suspects = NONE
                while left:
                    if idle >= eager:
                        yield not idle
                    before = len(left)
                    left = [request for request in left if not request()]
                    idle = idle + 1 if len(left) == before else 0
                    if idle and idle % PATIENT_POLLS == 0:
                        expected = []
                        for peer, (number, where) in receives:
                            data = buffers[number] if where is None else buffers[number][where]
                            expected.append((peer, data.nbytes))
                        suspects = suspected(
                            self._transport, suspects, expected, requests, left, tag
                        )
                if near is not None:
                    for action in near.actions(local, fold):
                        action()
                    local = ()
                for sources, (number, where), final in local:
                    target = buffers[number] if where is None else buffers[number][where]
                    inputs = []
                    for number, where in sources:
                        inputs.append(buffers[number] if where is None else buffers[number][where])
                    if final is None:
                        copy(inputs[0], target)
                    elif pair is not None and len(inputs) == 2:
                        pair(*inputs, target)
                    else:
                        fold(inputs, target, final)  # type: ignore[misc]  # a reduction has one
        except BaseException:  # the call failed, or was abandoned
            keep(requests, buffers)
            raise
