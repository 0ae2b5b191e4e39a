"""Messages that leave in the order in which they were begun, whichever is ready first."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.runtime.waiting import completed


class Ticket:
    """A message's place in the order of those to one rank with one tag."""

    __slots__ = ("_gone", "_number")

    def __init__(self, number: int, gone: list[int]) -> None:
        self._number = number
        self._gone = gone

    def come(self) -> bool:
        """Tell whether all before it have left."""
        return self._gone[0] == self._number

    def over(self) -> None:
        """Let the next one leave."""
        self._gone[0] += 1


class SendOrder:
    """The order of the messages of one communicator. They are begun by one thread at a time."""

    def __init__(self) -> None:
        # How many have left, and how many were begun.
        self._counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])

    def take(self, dst: int, tag: int) -> Ticket:
        """Return the place of a message that is begun now."""
        counts = self._counts[dst, tag]
        number = counts[1]
        counts[1] = number + 1
        return Ticket(number, counts)

    def sent(
        self,
        transport: Transport,
        outgoing: Sequence[tuple[int, Any, Ticket]],
        tag: int,
        requests: list[Request],
    ) -> Steps:
        """Send messages, each once those before it have left; wait, polled, until all is complete.

        Parameters
        ----------
        transport : Transport
            Moves them.
        outgoing : sequence of (int, ndarray of uint8, Ticket)
            The receiver of each, its bytes, and its place.
        tag : int
            The transport's.
        requests : list of Request
            What is under way besides; the messages join it.
        """
        for peer, data, ticket in outgoing:
            while not ticket.come():
                yield False
            requests.append(transport.isend(data, peer, tag))
            ticket.over()
        yield from completed(requests)
