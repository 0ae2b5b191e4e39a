"""Keeps messages in the order in which they were begun, whichever is ready first.

`aware` and `staged` send users' messages by it.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.runtime.waiting import completed

Outgoing = tuple[int, Any, int, int]
"""A message to send: the receiver, an ndarray of uint8, the transport's tag, and the place as of `take`."""


class SendOrder:
    """The order of the messages of one communicator. They are begun by one thread at a time."""

    def __init__(self) -> None:
        # How many have left, and how many were begun; where all have left, there is nothing to remember.
        self._counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._lock = threading.Lock()

    def take(self, dst: int, tag: int) -> int:
        """Return the place of a message that begins now, among those to one rank with one tag."""
        with self._lock:
            counts = self._counts[dst, tag]
            number = counts[1]
            counts[1] = number + 1
        return number

    def sent(
        self, transport: Transport, outgoing: Sequence[Outgoing], tag: int, requests: list[Request]
    ) -> Steps:
        """Send messages, each once those before it have left; wait, polled, until all is complete.

        Parameters
        ----------
        transport : Transport
            Moves them.
        outgoing : sequence of Outgoing
            The messages.
        tag : int
            The user's, as in `take`.
        requests : list of Request
            Other requests under way; the messages join them.
        """
        for peer, data, wire, number in outgoing:
            counts = self._counts[peer, tag]
            while counts[0] != number:
                yield False
            requests.append(transport.isend(data, peer, wire))
            with self._lock:
                counts[0] += 1
                if counts[0] == counts[1]:
                    del self._counts[peer, tag]
        yield from completed(requests)
