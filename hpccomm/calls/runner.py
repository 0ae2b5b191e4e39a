"""Runs programs over a transport, or on shared memory, as steps that the engine polls.

`Exchanges` lets the ranks of a node meet and exchange the records of their arrays. Its messages are the same in every
call, so they are bound once and begun repeatedly. `algorithms` makes one `Runner` for a communicator; `cuda_aware` uses
its first tag.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.program import (
    ChannelRounds,
    Program,
    Reached,
    ReachedForm,
    Variants,
    copy,
)
from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.transport import (
    CALLS,
    CHANNELS,
    RECORD,
    BoundSet,
    Exposure,
    Reach,
    Record,
    Request,
    Steps,
    Transport,
)
from hpccomm.dtypes import DType
from hpccomm.memory.folding import Folder
from hpccomm.memory.views import ScratchBuffer
from hpccomm.runtime.service import keep
from hpccomm.runtime.waiting import at_once

PATIENT_POLLS = 1000
"""Number of polls of a receive before a look at the messages that arrived instead."""

Suspects = frozenset[int]
"""Identities of requests."""

NONE: Suspects = frozenset()


def suspected(
    transport: Transport,
    suspects: Suspects,
    expected: Sequence[tuple[int, int]],
    requests: Sequence[Request],
    left: Sequence[Request],
    tag: int,
) -> Suspects:
    """Return the receives that seem to wait in vain; raise if one of them seemed to do so at the last look.

    A single look does not prove it: the message that is seen may be the next round's, and the awaited message may have
    arrived with it. Then the receive is complete at its next poll.

    Parameters
    ----------
    transport : Transport
        Looks at arrived messages.
    suspects : frozenset of int
        The suspects of the last look.
    expected : sequence of (int, int)
        The sender and the bytes of each receive.
    requests : sequence of Request
        The receives first, in that order.
    left : sequence of Request
        The incomplete requests.
    tag : int
        The tag of the call.

    Raises
    ------
    BufferMismatch
        If the message that arrived does not fit.
    """
    waiting = {id(request) for request in left}
    seen: dict[int, int] = {}
    for (peer, nbytes), request in zip(expected, requests, strict=False):
        if id(request) in waiting and peer not in seen:
            again = id(request) in suspects
            seen[peer] = id(request) if transport.look(peer, tag, nbytes, take=again) else 0
    return frozenset(seen.values())


MEETING_POLLS = 64
"""Number of polls before deadlines are checked. They take some microseconds, enough if the other rank calls at the same
time."""


class Token(NamedTuple):
    """A message to one rank and one from another, of equal size.

    Attributes
    ----------
    begun : callable
        Begins both messages, and returns whether both are complete. Blocks for some microseconds at most.
    received, sent : Request
        Return whether the message is complete; they may be called again after that.
    peer : int
        The sender of the received message.
    nbytes : int
        Bytes of each message.
    tag : int
        Tag of the messages.
    """

    begun: Callable[[], bool]
    received: Request
    sent: Request
    peer: int
    nbytes: int
    tag: int


def exchange(receive: BoundSet, send: BoundSet, peer: int, nbytes: int, tag: int) -> Token:
    """Return the `Token` of two bound messages."""
    begin_receive, received = receive
    begin_send, sent = send

    def begun() -> bool:
        begin_receive()
        begin_send()
        for _ in range(MEETING_POLLS):
            if received():
                return sent()
        return False

    return Token(begun, received, sent, peer, nbytes, tag)


class Tokens(dict[tuple[int, int], Token]):
    """The exchanges of messages without data, keyed by the sender of the received one and the receiver of the sent one.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    tag : int
        Tag of the messages.
    """

    def __init__(self, transport: Transport, tag: int) -> None:
        super().__init__()
        self._transport = transport
        self._tag = tag

    def __missing__(self, pair: tuple[int, int], /) -> Token:
        """Make an exchange when it is first needed."""
        hears, tells = pair
        receive = self._transport.irecv_again(_NOTHING, hears, self._tag)
        send = self._transport.isend_again(_NOTHING, tells, self._tag)
        exchanged = self[pair] = exchange(receive, send, hears, 0, self._tag)
        return exchanged


class Exchanges:
    """The exchanges of the ranks of a node over one transport. One call at a time uses them.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    members : sequence of int
        The ranks of the node. They have the same cyclic order on all ranks, and begin with this rank.

    Attributes
    ----------
    table : ndarray of int64, shape (ranks of the node, RECORD)
        The records that the members published last, in the order of `members`.
    """

    def __init__(self, transport: Transport, members: Sequence[int]) -> None:
        self._transport = transport
        self._members = members
        self.table: Record = np.zeros((len(members), RECORD), np.int64)
        self._published: Record | None = None
        self._by_tag: dict[int, tuple[tuple[Token, ...], Tokens]] = {}

    def begin(self, tag: int, record: Record) -> tuple[tuple[Token, ...], Tokens]:
        """Return the exchanges of a call in which this rank publishes a record.

        Returns
        -------
        tuple of Token
            The exchanges that fill the table with the records of all members, one after the other.
        Tokens
            The exchanges of barriers.
        """
        if record is not self._published:
            self.table[0] = self._published = record
        meeting = self._by_tag.get(tag)
        if meeting is None:
            tokens = Tokens(self._transport, tag)
            meeting = self._by_tag[tag] = tuple(self._meeting(tag)), tokens
        return meeting

    def late(self, exchange: Token) -> Steps:
        """Wait, polled, for an exchange that has begun.

        Raises
        ------
        BufferMismatch
            If another message arrives instead.
        """
        received, sent = exchange.received, exchange.sent
        idle = 0
        suspects = NONE
        while not (received() and sent()):
            yield False
            idle += 1
            if idle % PATIENT_POLLS == 0:
                suspects = suspected(
                    self._transport,
                    suspects,
                    [(exchange.peer, exchange.nbytes)],
                    [received],
                    [] if received() else [received],
                    exchange.tag,
                )

    def _meeting(self, tag: int) -> list[Token]:
        """Return the exchanges that fill the table; before them, each rank has only the first row of its table.

        They are those of J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all
        communications in multiport message-passing systems", 1997: ⌈log2 n⌉ messages, as many as a barrier has.
        """
        transport, members, table = self._transport, self._members, self.table
        tokens = []
        known = 1
        while known < len(members):
            count = min(known, len(members) - known)
            new, old = table[known : known + count].reshape(-1), table[:count].reshape(-1)
            receive = transport.irecv_again(new, members[known], tag)
            send = transport.isend_again(old, members[-known], tag)
            tokens.append(exchange(receive, send, members[known], new.nbytes, tag))
            known += count
        return tokens


FIRST_TAG = 2
"""Tag of the first channel of a communicator's first schedule. The control plane has the tags below."""

EAGER_POLLS = 8
"""Number of polls of a single channel before it lets others check deadlines: a small message from
a rank that calls at the same time takes a microsecond."""

_NOTHING = np.empty(0, np.uint8)

Buffers = Sequence[NDArray[Any]] | Reached
"""The buffers of a call, indexed by a program's numbers."""


class Runner:
    """Runs programs over one transport, one at a time, since programs share scratch.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._room = ScratchBuffer()
        self._results = ScratchBuffer()
        self._exchanges: Exchanges | None = None
        # Ranks count alike, since they run the same calls.
        self._tags = cycle(range(FIRST_TAG, CHANNELS * CALLS, CHANNELS))

    def steps(
        self, program: Program, dtype: DType, fold: Folder | None, send: Buffer, recv: Buffer
    ) -> Steps:
        """Run `program`, polled.

        Parameters
        ----------
        program : Program
            The actions of this rank.
        dtype : dtype
            Type of the elements.
        fold : Folder or None
            The reduction, if there is one.
        send, recv : ndarray or None, 1-D of `dtype`
            This rank's arrays.
        """
        tag = next(self._tags)
        # If a rank has no array, its program does not refer to one: any buffer will do.
        scratch = self._room.take(program.scratch, dtype) if program.scratch else _NOTHING
        buffers = (scratch if send is None else send, scratch if recv is None else recv, scratch)
        return self._program(program, tag, fold, buffers)

    def formed(self, forms: Variants, send: Buffer, recv: Buffer) -> Steps:
        """Run, polled, the form for the memory that the ranks of the node reach of each other.

        Parameters
        ----------
        forms : Variants
            The forms. All forms of one runner have the same members.
        send, recv : ndarray or None, 1-D of the forms' dtype
            This rank's arrays.

        Raises
        ------
        RankMismatch
            If the ranks do not make the same call; on all of them, before memory is touched.
        BufferMismatch
            If another message arrives in place of a record.
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
                if program.in_memory is None:
                    yield from self._program(program, tag, forms.fold, buffers)
                    exposure.release()
                    return
                turns = (
                    (buffers.actions(local, forms.fold), barrier)
                    for local, barrier in program.in_memory
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
        """Return the buffers of this rank and of its peers in this call."""
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
        # This code determines the latency of small arrays: one more function call is a tenth of it.
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
