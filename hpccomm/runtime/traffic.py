"""How many messages a rank has begun to send to each peer, and how many receives from each.

Ranks that wait tell each other these numbers, so that a message that nobody sends can be named.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any


class Repeated:
    """An exchange that a plan repeats. To count its messages each time would be a tenth of its cost.

    Attributes
    ----------
    times : int
        How often it has begun.
    came, went : Counter
        By rank, receives and sends of one time.
    """

    __slots__ = ("came", "times", "went")

    def __init__(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.times = 0
        self.came, self.went = Counter(sources), Counter(targets)


class Traffic:
    """The messages of one communicator.

    Parameters
    ----------
    size : int
        Ranks of the communicator.

    Attributes
    ----------
    sent, posted : list of int
        Messages to each rank that have begun to be sent, and receives from each that have begun, but for those
        of exchanges that are repeated. Whoever makes a call counts it here, in its turn.
    """

    def __init__(self, size: int) -> None:
        self.sent, self.posted = [0] * size, [0] * size
        self._repeated: list[Repeated] = []
        self._gone: deque[Repeated] = deque()  # of those, the ones whose plan is gone

    def repeated(self, exchange: Repeated, plan: Callable[[], Any]) -> None:
        """Count an exchange for as long as its plan lives, and what it did afterwards. In turn."""
        while self._gone:
            ended = self._gone.popleft()
            self._repeated.remove(ended)
            for peer, number in ended.came.items():
                self.posted[peer] += number * ended.times
            for peer, number in ended.went.items():
                self.sent[peer] += number * ended.times
        self._repeated.append(exchange)
        # Any thread may drop a plan, and must not count then: this list is changed in turn.
        weakref.finalize(plan, self._gone.append, exchange).atexit = False

    def between(self, rank: int) -> tuple[int, int]:
        """Return how many messages were sent to a rank, and how many receives from it were begun.

        From any thread. A call that begins meanwhile may be counted or not.
        """
        sent, posted = self.sent[rank], self.posted[rank]
        for each in tuple(self._repeated):
            sent += each.went[rank] * each.times
            posted += each.came[rank] * each.times
        return sent, posted
