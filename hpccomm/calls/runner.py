"""Runs programs over a transport, or on shared memory, as steps that the engine polls.

`Exchanges` lets the ranks of a node meet and exchange the records of their arrays: small messages that are
equal in every call, bound once and begun repeatedly. `hpccomm.calls.algorithms` makes one `Runner` for
each form of a call.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.program import (
    ChannelRounds,
    MemoryProgram,
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
"""So often a receive is polled before a look at what came instead."""

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
    """Return which receives seem to wait in vain; raise if one of them did so before.

    What is seen may be the next round's message, come with the one that is awaited: then that
    receive is complete at its next poll.

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
        The incomplete ones.
    tag : int
        The call's.

    Raises
    ------
    BufferMismatch
        If what came does not fit.
    """
    waiting = {id(request) for request in left}
    seen: dict[int, int] = {}
    for (peer, nbytes), request in zip(expected, requests, strict=False):
        if id(request) in waiting and peer not in seen:
            again = id(request) in suspects
            seen[peer] = id(request) if transport.look(peer, tag, nbytes, take=again) else 0
    return frozenset(seen.values())


MEETING_POLLS = 64
"""Polls before deadlines are checked: some microseconds, enough for a simultaneous call."""


class Token(NamedTuple):
    """A message to one rank and one from another, of equal size.

    Attributes
    ----------
    begun : callable
        Begins both, and tells whether they are complete. Never blocks for longer than some microseconds.
    received, sent : Request
        Tell whether each is complete, also after that.
    peer : int
        Whose message is received.
    nbytes : int
        Its size.
    tag : int
        Its tag.
    """

    begun: Callable[[], bool]
    received: Request
    sent: Request
    peer: int
    nbytes: int
    tag: int


def exchange(receive: BoundSet, send: BoundSet, peer: int, nbytes: int, tag: int) -> Token:
    """Return the exchange of two messages."""
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
    """The exchanges of messages without data: by whose is received, and who gets one.

    Parameters
    ----------
    transport : Transport
        Moves them.
    tag : int
        Their tag.
    """

    def __init__(self, transport: Transport, tag: int) -> None:
        super().__init__()
        self._transport = transport
        self._tag = tag

    def __missing__(self, pair: tuple[int, int], /) -> Token:
        """Make the exchange, when it is first needed."""
        hears, tells = pair
        receive = self._transport.irecv_again(_NOTHING, hears, self._tag)
        send = self._transport.isend_again(_NOTHING, tells, self._tag)
        exchanged = self[pair] = exchange(receive, send, hears, 0, self._tag)
        return exchanged


class Exchanges:
    """The exchanges of the ranks of a node over one transport. One call at a time has them.

    Parameters
    ----------
    transport : Transport
        Moves the messages.
    members : sequence of int
        The ranks of the node in an order that is the same on all, but beginning with this rank.

    Attributes
    ----------
    table : ndarray of int64, shape (ranks of the node, RECORD)
        What the members published last, in that order.
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
            Fill the table with the records of all, one after the other.
        Tokens
            The tokens of barriers.
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
            If another message comes instead.
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
        """Return the exchanges that fill a table with all rows; each rank has its first row.

        J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all
        communications in multiport message-passing systems", 1997: ⌈log2 n⌉ messages, as a barrier's.
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
