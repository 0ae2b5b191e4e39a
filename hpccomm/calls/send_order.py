"""Keeps messages in the order in which they were begun, whichever is ready first.

`aware` and `staged` exchange users' messages by it.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from hpccomm.contracts.device import Piece
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.dtypes import DType
from hpccomm.runtime.lifetime import keep
from hpccomm.runtime.waiting import completed

Messages = Sequence[tuple[Piece, Any]]
"""Messages, each with the memory that the transport is given: an ndarray of uint8."""


class SendOrder:
    """The order of the messages of one communicator. They are begun by one thread at a time.

    Parameters
    ----------
    transport : Transport
        Moves them.
    wire : callable
        ``wire(tag, dtype)`` gives the transport's tag for a user's.
    """

    def __init__(self, transport: Transport, wire: Callable[[int, DType], int]) -> None:
        self._transport = transport
        self._wire = wire
        # How many have left, and how many were begun; where all have left, there is nothing to remember.
        self._counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._lock = threading.Lock()

    def exchange(
        self, receives: Messages, sends: Messages, tag: int, begin: Callable[[], Callable[[], bool]]
    ) -> Steps:
        """Begin receives, and take places among the messages of each end, now; return the steps of the rest.

        Parameters
        ----------
        receives, sends : sequence of tuple of Piece and ndarray
            The messages. Their memory is not touched before `begin` says so.
        tag : int
            The user's.
        begin : callable
            Begins what makes the memory ready, and returns a test whether it is.
        """
        isend, wire = self._transport.isend, self._wire
        # These only take their turn: what comes is taken when they are polled.
        requests = [
            self._transport.irecv(memory, piece.peer, wire(tag, piece.data.dtype))
            for piece, memory in receives
        ]
        places = [self._take(piece.peer, tag) for piece, _ in sends]

        def steps() -> Steps:
            try:
                ready = begin()
                while not ready():
                    yield False
                for (piece, memory), place in zip(sends, places, strict=True):
                    counts = self._counts[piece.peer, tag]
                    while counts[0] != place:
                        yield False
                    requests.append(isend(memory, piece.peer, wire(tag, piece.data.dtype)))
                    with self._lock:
                        counts[0] += 1
                        if counts[0] == counts[1]:
                            del self._counts[piece.peer, tag]
                yield from completed(requests)
            except BaseException:  # the call failed, or was abandoned
                keep(requests, receives, sends)
                raise

        return steps()

    def _take(self, dst: int, tag: int) -> int:
        """Return the place of a message that begins now, among those to one rank with one tag."""
        with self._lock:
            counts = self._counts[dst, tag]
            counts[1] += 1
        return counts[1] - 1
