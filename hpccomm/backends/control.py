"""The control plane: small byte strings between all ranks of a communicator.

Broadcast, gather and agreement on bytes, over the point-to-point calls of any backend in binomial
trees: the longest path has 2⌈log2 n⌉ messages. Bootstrap, objects, plans and the first agreement of
calls use it. Every call is collective and blocks, under the communicator's deadline.
"""

import struct
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import numpy as np

from hpccomm.contracts.transport import Steps, Transport
from hpccomm.runtime.waiting import completed

CONTROL_TAG = 1
AGREEMENT_TAG = 0

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
        """`all_gather`, polled."""
        gathered = yield from self.gather_steps(payload, 0)
        packed = yield from self.bcast_steps(_pack(gathered or []), 0)
        return _unpack(packed)

    def alike_steps(self, numbers: Sequence[int]) -> Result[bool]:
        """Return, on every rank, whether all ranks bring the same integers; polled.

        In the rounds of a dissemination barrier: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for
        barrier synchronization", 1988. After round k a rank knows of the 2^(k+1) ranks up to itself.
        """
        transport = self._transport
        rank, size = transport.rank, transport.size
        alike = True
        theirs = np.empty(len(numbers) + 1, np.int64)
        distance = 1
        while distance < size:
            own = np.array([*numbers, alike], np.int64)
            peer = (rank - distance) % size
            receive = transport.irecv(theirs, peer, AGREEMENT_TAG)
            send = transport.isend(own, (rank + distance) % size, AGREEMENT_TAG)
            while not receive():
                yield False
            while not send():
                yield False
            alike = alike and own.tobytes() == theirs.tobytes()
            distance *= 2
        return alike

    def send_steps(self, payload: bytes, dst: int) -> Steps:
        """Send bytes to one rank, polled."""
        data = np.frombuffer(payload, np.uint8)
        header = np.array([data.size], np.int64)
        requests = [self._transport.isend(header, dst, CONTROL_TAG)]
        if data.size:
            requests.append(self._transport.isend(data, dst, CONTROL_TAG))
        yield from completed(requests)

    def receive_steps(self, src: int) -> Result[bytes]:
        """Receive bytes from one rank, polled."""
        header = np.empty(1, np.int64)
        yield from completed([self._transport.irecv(header, src, CONTROL_TAG)])
        data = np.empty(int(header[0]), np.uint8)
        if data.size:
            yield from completed([self._transport.irecv(data, src, CONTROL_TAG)])
        return data.tobytes()

    def bcast_steps(self, payload: bytes, root: int) -> Result[bytes]:
        """`bcast`, polled."""
        parent, children = _binomial(self._transport.rank, self._transport.size, root)
        if parent is not None:
            payload = yield from self.receive_steps(parent)
        for child in reversed(children):
            yield from self.send_steps(payload, child)
        return payload

    def gather_steps(self, payload: bytes, root: int) -> Result[list[bytes] | None]:
        """`gather`, polled."""
        # A child at distance b brings the payloads of the b relative ranks that begin with it, so
        # that appending the children's, nearest first, gives them in relative order.
        parent, children = _binomial(self._transport.rank, self._transport.size, root)
        collected = [payload]
        for child in children:
            collected.extend(_unpack((yield from self.receive_steps(child))))
        if parent is not None:
            yield from self.send_steps(_pack(collected), parent)
            return None
        size = self._transport.size
        return [collected[(rank - root) % size] for rank in range(size)]


def _pack(parts: list[bytes]) -> bytes:
    lengths = struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts))
    return lengths + b"".join(parts)


def _unpack(packed: bytes) -> list[bytes]:
    (number,) = struct.unpack_from("<q", packed)
    lengths = struct.unpack_from(f"<{number}q", packed, 8)
    parts = []
    start = 8 * (number + 1)
    for length in lengths:
        parts.append(packed[start : start + length])
        start += length
    return parts


def _binomial(rank: int, size: int, root: int) -> tuple[int | None, list[int]]:
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
