"""The control plane: small byte strings between all ranks of a communicator.

Broadcast, gather and agreement on bytes, over the point-to-point calls of any backend in binomial
trees: the longest path has 2⌈log2 n⌉ messages. Bootstrap, objects, plans and the first agreement of
calls use it. Every call is collective and blocks, under the communicator's deadline.
"""

import struct
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import PACKET_BYTES, Packet, Request, Steps, Transport
from hpccomm.runtime.waiting import completed

CONTROL_TAG = 1
AGREEMENT_TAG = 0

_FIRST_BYTES = PACKET_BYTES - 8
"""Bytes of a payload in the full packet before the rest."""

T = TypeVar("T")

Result = Generator[bool, None, T]
"""A polled operation that returns a value."""

Drive = Callable[[str, Steps], None]
"""``drive(name, steps)`` runs polled steps to their end, under the communicator's deadline."""


class Control:
    """The control plane of one communicator.

    Parameters
    ----------
    transport : Transport
        Point-to-point between its ranks.
    drive : callable
        Waits for polled steps.
    """

    def __init__(self, transport: Transport, drive: Drive) -> None:
        self._transport = transport
        self._drive = drive

    def bcast(self, payload: bytes | None, root: int = 0) -> bytes:
        """Return the root's `payload` on every rank."""
        return self._result("control.bcast", self.bcast_steps(payload or b"", root))

    def gather(self, payload: bytes, root: int = 0) -> list[bytes] | None:
        """Return every rank's payload, by rank, at the root; None elsewhere."""
        return self._result("control.gather", self.gather_steps(payload, root))

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Return every rank's payload, by rank, on every rank."""
        return self._result("control.all_gather", self.all_gather_steps(payload))

    def _result(self, name: str, steps: Result[T]) -> T:
        results: list[T] = []

        def driven() -> Steps:
            results.append((yield from steps))

        self._drive(name, driven())
        return results[0]

    def differing(self, payload: bytes) -> dict[int, bytes]:
        """Return the payloads that differ from rank 0's, by rank, on every rank.

        The dictionary is empty if all ranks agree. Otherwise it also contains rank 0's payload.
        """
        reference = self.bcast(payload)
        same = payload == reference
        answers = self.all_gather(b"" if same else b"!" + payload)
        others = {rank: answer[1:] for rank, answer in enumerate(answers) if answer}
        return {0: reference, **others} if others else {}

    def objections(self, mine: str) -> str:
        """Return the obstacle of some rank, the same on all; empty without one.

        Parameters
        ----------
        mine : str
            What keeps this rank from it, or ''.
        """
        theirs = [each.decode() for each in self.all_gather(mine.encode())]
        if len(set(theirs)) == 1:
            return theirs[0]
        return "; ".join(f"rank {rank}: {why}" for rank, why in enumerate(theirs) if why)

    def all_gather_steps(self, payload: bytes) -> Result[list[bytes]]:
        """`all_gather`, polled.

        In ⌈log2 n⌉ rounds: J. Bruck et al., "Efficient algorithms for all-to-all communications in
        multiport message-passing systems", 1997. Before a round that reaches `distance` ranks far, a rank
        has the payloads of that many ranks from itself on.
        """
        transport = self._transport
        rank, size = transport.rank, transport.size
        collected = [payload]
        while (distance := len(collected)) < size:
            number = min(distance, size - distance)
            packet = transport.irecv_packet((rank + distance) % size, CONTROL_TAG)
            sent = begin_bytes(
                transport,
                _pack(collected[:number]),
                (rank - distance) % size,
                CONTROL_TAG,
                CONTROL_TAG,
            )
            came = yield from arrive(transport, packet, (rank + distance) % size, CONTROL_TAG)
            collected += _unpack(came, number)
            for test in sent:
                yield from iter(test, True)
        return [collected[(each - rank) % size] for each in range(size)]

    def largest_steps(self, numbers: NDArray[np.int64]) -> Steps:
        """Replace each number by the largest of all ranks, on every rank; polled.

        In the rounds of a dissemination barrier: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for
        barrier synchronization", 1988. After round k a rank knows of the 2^(k+1) ranks up to itself.
        """
        transport = self._transport
        rank, size = transport.rank, transport.size
        theirs = np.empty_like(numbers)
        distance = 1
        while distance < size:
            receive = transport.irecv(theirs, (rank - distance) % size, AGREEMENT_TAG)
            send = transport.isend(numbers, (rank + distance) % size, AGREEMENT_TAG)
            while not receive():
                yield False
            while not send():
                yield False
            np.maximum(numbers, theirs, out=numbers)
            distance *= 2

    def send_steps(self, payload: bytes, dst: int) -> Steps:
        """Send bytes to one rank, polled."""
        begun = begin_bytes(self._transport, payload, dst, CONTROL_TAG, CONTROL_TAG)
        return completed(begun) if len(begun) > 1 else iter(begun[0], True)

    def receive_steps(self, src: int) -> Result[bytes]:
        """Receive bytes from one rank, polled."""
        transport = self._transport
        return arrive(transport, transport.irecv_packet(src, CONTROL_TAG), src, CONTROL_TAG)

    def bcast_steps(self, payload: bytes, root: int) -> Result[bytes]:
        """`bcast`, polled."""
        transport = self._transport
        parent, children = binomial(transport.rank, transport.size, root)
        if parent is not None:
            payload = yield from self.receive_steps(parent)
        for child in reversed(children):
            yield from self.send_steps(payload, child)
        return payload

    def gather_steps(self, payload: bytes, root: int) -> Result[list[bytes] | None]:
        """`gather`, polled."""
        # A child at distance b brings the payloads of the b relative ranks that begin with it, so
        # that appending the children's, nearest first, gives them in relative order.
        transport = self._transport
        size = transport.size
        parent, children = binomial(transport.rank, size, root)
        collected = [payload]
        for child in children:
            came = yield from self.receive_steps(child)
            # It brings as much as was collected before, or what the last ranks have.
            number = min(len(collected), size - (child - root) % size)
            collected += _unpack(came, number)
        if parent is not None:
            yield from self.send_steps(_pack(collected), parent)
            return None
        return [collected[(rank - root) % size] for rank in range(size)]


def begin_bytes(
    transport: Transport, payload: bytes, dst: int, tag: int, rest: int
) -> list[Request]:
    """Begin to send bytes, whose number the receiver need not know.

    A payload shorter than a packet is one. Another one is a full packet, which has the number and the first
    bytes, and a message with the others. Its tag `rest` may be the same where one receive comes after another.
    """
    if len(payload) < PACKET_BYTES:
        return [transport.isend_packet(payload, dst, tag)]
    head = struct.pack("<q", len(payload)) + payload[:_FIRST_BYTES]
    others = np.frombuffer(payload, np.uint8)[_FIRST_BYTES:]
    return [transport.isend_packet(head, dst, tag), transport.isend(others, dst, rest)]


def arrive(transport: Transport, packet: Packet, src: int, rest: int) -> Result[bytes]:
    """Wait for the packet of a payload, and receive what follows it, polled."""
    while (head := packet()) is None:
        yield False
    return head if len(head) < PACKET_BYTES else (yield from whole(transport, head, src, rest))


def whole(transport: Transport, head: bytes, src: int, rest: int) -> Result[bytes]:
    """Receive what follows a full packet, and return all of the payload, polled."""
    (nbytes,) = struct.unpack_from("<q", head)
    payload = np.empty(nbytes, np.uint8)
    payload[:_FIRST_BYTES] = np.frombuffer(head, np.uint8, offset=PACKET_BYTES - _FIRST_BYTES)
    yield from iter(transport.irecv(payload[_FIRST_BYTES:], src, rest), True)
    return payload.tobytes()


def _pack(parts: list[bytes]) -> bytes:
    if len(parts) == 1:
        return parts[0]
    return struct.pack(f"<{len(parts)}q", *map(len, parts)) + b"".join(parts)


def _unpack(packed: bytes, number: int) -> list[bytes]:
    if number == 1:
        return [packed]
    ends = accumulate(struct.unpack_from(f"<{number}q", packed), initial=8 * number)
    return [packed[start:end] for start, end in pairwise(ends)]


@lru_cache(1024)
def binomial(rank: int, size: int, root: int) -> tuple[int | None, Sequence[int]]:
    """Return the parent of `rank` in a binomial tree, and its children, nearest first.

    The child at distance b has the subtree of the b ranks that begin with it, counted from the root.
    """
    # Ranks are renumbered so that the root is 0. A rank's parent is itself without its lowest set
    # bit; its children are itself with a lower bit set.
    relative = (rank - root) % size
    children = []
    bit = 1
    while bit < size and not relative & bit:
        if relative + bit < size:
            children.append((relative + bit + root) % size)
        bit <<= 1
    return (None if relative == 0 else (relative - bit + root) % size), children
