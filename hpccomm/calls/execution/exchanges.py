"""Small messages between ranks of a node, equal in every call: bound once, begun repeatedly.

`runner` lets ranks meet and exchange their records by them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpccomm.contracts.transport import RECORD, BoundSet, Record, Request, Steps, Transport

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


EAGER_POLLS = 64
"""Polls before deadlines are checked: some microseconds, enough for a simultaneous call."""

_NOTHING = np.empty(0, np.uint8)


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
        for _ in range(EAGER_POLLS):
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
